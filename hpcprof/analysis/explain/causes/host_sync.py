"""Host synchronization: the host waits for the GPU inside the step, and the GPU runs dry after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.explain.candidate import Candidate
from hpcprof.analysis.explain.cause import CauseDeclaration, Figures, Trait, idle, named
from hpcprof.profiles.timeline import Ints

if TYPE_CHECKING:
    from hpcprof.analysis.explain.replay import Times
    from hpcprof.analysis.explain.scene import Scene


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the calls of each place that wait for the GPU, with the copies that wait for other work."""
    if scene.graph.is_of_host:
        return
    removals, graph, copies = scene.removals, scene.graph, scene.waiting_copies
    for place in scene.places:
        waiting = np.union1d(
            removals.calls_in(place, (CallKind.WAIT,)),
            copies[removals.inside(place)[graph.calls.place[copies]]],
        )
        held = np.intersect1d(waiting, graph.blocked)

        def remove(times: Times, ranks: tuple[int, ...] | None, waiting: Ints = waiting) -> Times:
            chosen = removals.of_ranks(graph.call_rank[waiting], ranks)
            return removals.waits(times, waiting[chosen])

        own = scene.per_step(graph.call_rank[held], graph.calls.end[held] - graph.calls.start[held])
        yield Candidate(HOST_SYNC, place, scene.ranks, remove, *own)


HOST_SYNC = CauseDeclaration(
    name="host_sync",
    title="host synchronization",
    meaning="the host waits for the GPU inside the step, and the GPU runs dry",
    about="the host waits for the GPU inside a step (`.item()`, a synchronization, a copy back), and the GPU "
    "runs dry after it",
    advice="keep values on the GPU (`detach()`, not `.item()`) and read them every N steps; no "
    "`torch.cuda.synchronize()` in the loop",
    remedy="Avoid .item(), .cpu() and synchronize() in {where}: keep values on the GPU, and read them once "
    "every few steps, or with non_blocking=True and an event.",
    remedies={
        "jax": "Avoid float(), .item(), np.asarray() and block_until_ready() in {where}: keep values on the "
        "device, and read those of an earlier step, once every few steps."
    },
    candidates=candidates,
    figures=(
        Figures("idle_causes", "idle_ns_per_step", idle("sync")),
        Figures("api", "total_ns", named("Synchronize")),
    ),
    traits=frozenset({Trait.SYNCHRONIZES}),
    column="idle_ns",
    calls="Synchronize|Memcpy",
)
