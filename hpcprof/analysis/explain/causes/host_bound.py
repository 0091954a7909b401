"""Host bound: the host launches too slowly to keep the GPU busy, though no single pause or call is long."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from hpcprof.analysis.account.places import WHOLE_STEP
from hpcprof.analysis.explain.annotations import Scene
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Trait, idle
from hpcprof.analysis.explain.causes.small_kernels import is_short

_MIN_NAMED_SHARE, _MAX_NAMED_PLACES = 0.9, 3
"""Minimum share of a slow host's time in the places that are named, and their maximum number."""


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the places in which the host launches too slowly, and the whole step."""
    if not scene.is_host_bound:
        return
    for place in scene.places:
        if not is_short(scene, place):
            yield _slow_launches(scene, place)
    yield _slow_launches(scene, WHOLE_STEP)


def _slow_launches(scene: Scene, place: str) -> Candidate:
    pieces, removals = scene.graph.pieces, scene.removals
    chosen = removals.inside(place)[pieces.place] & ~removals.long_gap[pieces.call]
    rank, time = scene.graph.call_rank[pieces.call[chosen]], pieces.length[chosen]
    where = place
    if place == WHOLE_STEP:
        total = np.bincount(pieces.place[chosen] + 1, time, len(scene.graph.places) + 1)
        order = np.argsort(-total)
        most = order[: int(np.searchsorted(np.cumsum(total[order]), _MIN_NAMED_SHARE * total.sum())) + 1]
        named = map(scene.joint_place, (most - 1).tolist())
        where = ", ".join(sorted([*dict.fromkeys(named)][:_MAX_NAMED_PLACES]))
    return scene.candidate(
        HOST_BOUND, where, partial(removals.host_time, place=place, long=False), rank, time
    )


HOST_BOUND = CauseDeclaration(
    name="host_bound",
    title="slow launches",
    meaning="the host launches too slowly to keep the GPU busy, without a long pause",
    about="the host cannot keep the GPU busy, although no single pause or call is long: Python between all "
    "launches; `where` are the ranges",
    remedy="Launch {where} with less Python: torch.compile(mode='reduce-overhead') or CUDA graphs "
    "(torch.cuda.make_graphed_callables), or more work in each launch by larger batches.",
    remedies={
        "cuda": "Launch {where} with less work of the host: a CUDA graph (cudaStreamBeginCapture), fewer "
        "and larger kernels, or preparation in another thread.",
        "graph": "Launch {where} with less work of the host: put what is launched beside the CUDA graph "
        "that the program replays into it, or more work into each launch by larger batches.",
        "jax": "Launch {where} with less Python: jit the whole step with its update (donate_argnums), run "
        "several steps in one program (jax.lax.scan), or give each more work.",
    },
    candidates=candidates,
    figures=(
        Figures("idle_causes", "idle_ns_per_step", idle("host", "launch")),
        Figures("step_account", "idle_ns"),
    ),
    traits=frozenset({Trait.ON_GPU, Trait.BROAD}),
    column="idle_ns",
)
