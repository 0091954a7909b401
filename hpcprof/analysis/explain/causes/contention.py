"""Contention: communication slows the kernels beside it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from hpcprof.analysis.explain.annotations import Scene
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Trait


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the time that kernels lose to the communication beside them."""
    remove = partial(replace, contended=False)
    yield scene.candidate(CONTENTION, "", remove, scene.graph.work_rank, scene.replay.lost)


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
