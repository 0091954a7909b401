"""Layout conversions: tensors are moved between channels first and channels last around convolutions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from hpcprof.analysis.explain.candidate import Candidate
from hpcprof.analysis.explain.cause import CauseDeclaration, Figures, Trait, named
from hpcprof.analysis.explain.kernel_kinds import KernelKind, kernel_kinds

if TYPE_CHECKING:
    from hpcprof.analysis.explain.scene import Scene


_STRIDED_COPY = re.compile(r"(?<!vectorized_)(?<!unrolled_)elementwise_kernel<.*direct_copy_kernel")
"""PyTorch's copy between tensors of other strides, as ``contiguous()`` makes it; others are vectorized."""

_CONVOLUTION = re.compile("fprop|dgrad|wgrad|convolve|conv2d|implicit_convolve", re.IGNORECASE)


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield all conversions: the layout of one place decides on those of the next."""
    graph, work = scene.graph, scene.graph.work
    copies, convolves = (
        np.array([*map(bool, map(one.search, graph.names)), False])[work.name]
        for one in (_STRIDED_COPY, _CONVOLUTION)
    )
    # A copy to other strides converts a layout where the place has convolutions.
    copies &= np.isin(work.place, work.place[convolves])
    converts = np.flatnonzero((scene.once(kernel_kinds) == KernelKind.LAYOUT) | copies)
    if len(converts):
        yield scene.of_operations(LAYOUT_CONVERSION, converts, (work.end - work.start)[converts])


LAYOUT_CONVERSION = CauseDeclaration(
    name="layout_conversion",
    title="conversions of layout",
    meaning="tensors are converted between channels first and channels last",
    about="tensors are converted between channels first (NCHW) and channels last (NHWC) around "
    "convolutions, which use the tensor cores in one of them; also copies to other strides (`contiguous()`) "
    "where convolutions are",
    advice="`model.to(memory_format=torch.channels_last)` and the same for the input",
    remedy="Keep one layout: model.to(memory_format=torch.channels_last) and the same for the input of "
    "{where}; operators without it (views, some norms) convert back.",
    remedies={"jax": "Keep one layout in {where}: channels last in inputs and in dimension_numbers."},
    candidates=candidates,
    figures=(Figures("kernels", "total_ns", named("(?i)nchw|nhwc|direct_copy_kernel")),),
    traits=frozenset({Trait.ALL_RANKS}),
    column="compute_ns",
    operations="compute",
    kernels=lambda name: "nchw" in name.lower() or bool(_STRIDED_COPY.search(name)),
    without="with one layout",
)
