"""Contention: communication slows the kernels beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Trait

if TYPE_CHECKING:
    from hpcprof.analysis.explain.scene import Scene


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the time that kernels lose to the communication beside them."""
    lost = scene.per_step(scene.graph.work_rank, scene.replay.lost)
    yield Candidate(CONTENTION, "", scene.ranks, lambda times, _: replace(times, contended=False), *lost)


CONTENTION = CauseDeclaration(
    name="contention",
    title="contention with communication",
    meaning="communication slows the kernels beside it",
    remedy="Leave the communication fewer SMs (NCCL_MAX_CTAS, NCCL_NTHREADS), or overlap it with kernels "
    "that are bound by something else.",
    candidates=candidates,
    figures=(Figures("slowdown", "slowdown", lambda table, _: table["slowdown"].astype(float) > 1),),
    traits=frozenset({Trait.ON_GPU, Trait.ALL_RANKS}),
    operations="compute",
)
