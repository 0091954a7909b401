"""Elementwise chains: kernels that read and write one tensor after another, in passes that one could share.

A fused kernel reads the input and writes the result once. Of elementwise kernels that follow each other with
equal grids, so over equally large tensors, only the longest is left. No profile records which tensors they
share: places whose products take longer than their elementwise kernels are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from hpcprof.analysis.explain.candidate import Candidate
from hpcprof.analysis.explain.cause import CauseDeclaration, Figures, Trait, named
from hpcprof.analysis.explain.kernel_kinds import KernelKind, kernel_kinds, stream_runs
from hpcprof.profiles.timeline import Ints, Mask

if TYPE_CHECKING:
    from hpcprof.analysis.explain.scene import Scene

_LONG_NS = 10_000
"""Minimum time of a kernel of a chain: shorter ones are bound by their launch."""

_FEWEST = 3
"""Minimum number of kernels of a chain."""


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the chains of the step, all of them as one cause."""
    work, kind = scene.graph.work, scene.once(kernel_kinds)
    time = work.end - work.start
    elementwise = np.flatnonzero((kind == KernelKind.ELEMENTWISE) & (time >= _LONG_NS) & _moves_bytes(scene))
    runs = [part for run in stream_runs(scene, elementwise) for part in _alike(work.grid[run], run)]
    spare = [run[np.arange(len(run)) != int(np.argmax(time[run]))] for run in runs if len(run) >= _FEWEST]
    if spare:
        gone = np.concatenate(spare)
        yield scene.of_operations(ELEMENTWISE_CHAIN, gone, time[gone])


def _moves_bytes(scene: Scene) -> Mask:
    """Return which operations lie in places whose elementwise kernels take longer than their products."""
    work, kind = scene.graph.work, scene.once(kernel_kinds)
    products, elementwise = (
        # `NONE` is -1.
        np.bincount(work.place + 1, (work.end - work.start) * (kind == one), len(scene.graph.places) + 1)
        for one in (KernelKind.PRODUCT, KernelKind.ELEMENTWISE)
    )
    mostly: Mask = (elementwise > products)[work.place + 1]
    return mostly


def _alike(grid: Ints, run: Ints) -> list[Ints]:
    """Divide a run where the grid changes."""
    return np.split(run, np.flatnonzero(np.diff(grid)) + 1)


ELEMENTWISE_CHAIN = CauseDeclaration(
    name="elementwise_chain",
    title="chains of elementwise kernels",
    meaning="elementwise kernels in a row move the same bytes again and again",
    about="three or more elementwise kernels (casts, masks, activations) in a row over equally large "
    "tensors, of 10 µs or more, in a place whose elementwise kernels take longer than its products: each "
    "reads and writes what one could keep. The saving is that of all but the longest",
    advice="`torch.compile`, fused operators (fused dropout and residual, fused activations), no casts back "
    "and forth",
    remedy="Fuse the elementwise kernels of {where}: torch.compile, or one operator instead of several "
    "(fused bias, activation, dropout and residual); keep one precision instead of casting back and forth.",
    remedies={
        "jax": "Let XLA fuse {where}: jit all of it together, without values that leave the program between."
    },
    candidates=candidates,
    figures=(Figures("kernels", "total_ns", named("elementwise|triton_poi|fusion")),),
    traits=frozenset({Trait.ALL_RANKS, Trait.ESTIMATED}),
    column="compute_ns",
    operations="compute",
    kernels=lambda name: "elementwise" in name,
    without="with fused elementwise kernels",
)
