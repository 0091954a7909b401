"""Slow attention: products, masks and a softmax over sequence × sequence instead of one fused kernel.

A fused kernel keeps the scores on the chip. So

1. what runs between a product and the next one around a softmax, or its gradient, takes no time;
2. the two products no longer write and read the scores, at the rate at which the softmax moves them (it reads
   and writes them once): each takes half of the softmax's time less, but at least half of its own.

Source: T. Dao et al., "FlashAttention: fast and memory-efficient exact attention with IO-awareness", 2022.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from hpcprof.analysis.explain.candidate import Candidate
from hpcprof.analysis.explain.cause import CauseDeclaration, Figures, Trait, named
from hpcprof.analysis.explain.kernel_kinds import KernelKind, kernel_kinds
from hpcprof.profiles.timeline import Floats

if TYPE_CHECKING:
    from hpcprof.analysis.explain.scene import Scene

_MOST_BETWEEN = 8
"""Maximum number of kernels between a softmax and the product before or after it."""

_OF_PRODUCT = 0.5
"""Maximum share of a product's time that it takes to move the scores."""


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield all attention without a fused kernel, as one cause: it is the same in each layer."""
    less = _less(scene)
    gone = np.flatnonzero(less)
    if len(gone):
        yield scene.of_operations(SLOW_ATTENTION, gone, less[gone])


def _less(scene: Scene) -> Floats:
    """Return the time that each operation takes less with fused attention, in ns."""
    work, kind = scene.graph.work, scene.once(kernel_kinds)
    time = (work.end - work.start).astype(float)
    less = np.zeros(len(work))
    for softmax in np.flatnonzero(kind == KernelKind.SOFTMAX).tolist():
        first, last = (_product(scene, softmax, by) for by in (-1, 1))
        if first is None or last is None:
            continue
        inner = np.arange(first + 1, last)
        less[inner] = time[inner]
        for product in (first, last):
            less[product] = max(less[product], min(time[softmax] / 2, _OF_PRODUCT * time[product]))
    return less


def _product(scene: Scene, softmax: int, by: int) -> int | None:
    """Return the product before or after a softmax on its stream, with only elementwise kernels between."""
    work, kind = scene.graph.work, scene.once(kernel_kinds)
    for row in range(softmax + by, softmax + by * (_MOST_BETWEEN + 2), by):
        if not 0 <= row < len(work) or work.stream[row] != work.stream[softmax]:
            return None
        if kind[row] == KernelKind.PRODUCT:
            return row
        if kind[row] != KernelKind.ELEMENTWISE:
            return None
    return None


SLOW_ATTENTION = CauseDeclaration(
    name="slow_attention",
    title="attention without a fused kernel",
    meaning="attention writes and reads its scores, sequence by sequence, instead of keeping them on the "
    "chip",
    about="products, masks and a softmax over sequence × sequence instead of one fused kernel. The saving "
    "is that of not moving the scores: all that runs between the two products, and the products' share of "
    "it",
    advice="`torch.nn.functional.scaled_dot_product_attention`, FlashAttention, "
    "`jax.nn.dot_product_attention`",
    remedy="Use fused attention in {where}: torch.nn.functional.scaled_dot_product_attention (its flash or "
    "cuDNN backend needs half precision and masks that it knows), or FlashAttention.",
    remedies={
        "jax": "Use fused attention in {where}: jax.nn.dot_product_attention(implementation='cudnn'), in "
        "half precision."
    },
    candidates=candidates,
    figures=(Figures("kernels", "total_ns", named("(?i)softmax")),),
    traits=frozenset({Trait.ALL_RANKS, Trait.ESTIMATED}),
    column="compute_ns",
    operations="compute",
    kernels=lambda name: "softmax" in name.lower(),
    without="with fused attention",
)
