"""Kinds of kernels by their names, and runs of kernels that follow each other on a stream."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from hpcprof.profiles.timeline import Category, Ints

if TYPE_CHECKING:
    from hpcprof.analysis.explain.scene import Scene


class KernelKind(IntEnum):
    """The computation of a kernel, as far as its name tells."""

    OTHER = 0
    PRODUCT = 1
    """A matrix product or a convolution."""
    SOFTMAX = 2
    """A softmax or its gradient, but not the logarithm of one, as in a loss."""
    ELEMENTWISE = 3
    """One pass over tensors: casts, copies, masks, scales, activations."""
    LAYOUT = 4
    """The conversion of a tensor between channels first and channels last."""


_KINDS = (
    (KernelKind.LAYOUT, r"n[cd]*hwc?_?(to|2)_?n[cd]*hw"),
    (KernelKind.PRODUCT, r"gemm|gemv|nvjet|cutlass|xmma|convolve|fprop|dgrad|wgrad|conv2d|cublas\w*Kernel"),
    (KernelKind.OTHER, r"log_?softmax"),
    (KernelKind.SOFTMAX, r"softmax"),
    (
        KernelKind.ELEMENTWISE,
        r"elementwise_kernel|elementwise_with_index|fused_dropout|masked_(fill|scale)|"
        r"triton_poi_|loop_\w*fusion|Eigen::internal::EigenMetaKernel",
    ),
)
"""The kind of a kernel, by the first pattern that its name contains.

Names are those of cuBLAS, cuDNN, CUTLASS, PyTorch (ATen and Triton) and XLA."""


def kernel_kinds(scene: Scene) -> Ints:
    """Return the `KernelKind` of each operation of a scene, shape (operations,)."""
    graph = scene.graph
    by_name = np.array([*map(_kind, graph.names), KernelKind.OTHER], np.int64)
    return np.where(graph.work.category == Category.COMP, by_name[graph.work.name], int(KernelKind.OTHER))


def _kind(name: str) -> KernelKind:
    return next((kind for kind, text in _KINDS if re.search(text, name, re.IGNORECASE)), KernelKind.OTHER)


def stream_runs(scene: Scene, chosen: Ints) -> list[Ints]:
    """Return the runs of chosen operations that follow each other on their stream within a step.

    ``chosen`` are rows, ascending; operations are in the order of their streams.
    """
    work = scene.graph.work
    if not len(chosen):
        return []
    follows = (work.before[chosen[1:]] == chosen[:-1]) & (work.step[chosen[1:]] == work.step[chosen[:-1]])
    return np.split(chosen, np.flatnonzero(~follows) + 1)
