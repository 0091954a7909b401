"""Blocking copies: copies between host and GPU that nothing hides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, idle

if TYPE_CHECKING:
    from hpcprof.analysis.explain.scene import Scene


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the copies of each place."""
    if not scene.graph.is_of_host:
        yield from (copies_in(scene, place) for place in scene.places)


def copies_in(scene: Scene, place: str) -> Candidate:
    """Return the copies between host and device that a place starts."""
    work, removals = scene.graph.work, scene.removals
    chosen = np.flatnonzero(removals.with_host & removals.inside(place)[work.place])
    return Candidate(
        BLOCKING_COPY,
        place,
        scene.ranks,
        lambda times, ranks: removals.copies(times, place, ranks),
        *scene.per_step(scene.graph.work_rank[chosen], work.end[chosen] - work.start[chosen]),
    )


BLOCKING_COPY = CauseDeclaration(
    name="blocking_copy",
    title="blocking copies",
    meaning="copies between host and GPU that nothing hides",
    advice="`pin_memory=True` and `.to(device, non_blocking=True)`, copy the next batch on a stream of its "
    "own",
    remedy="Copy from pinned memory (DataLoader(pin_memory=True) or .pin_memory()) with .to(device, "
    "non_blocking=True), one step ahead on a stream of its own.",
    remedies={
        "cuda": "Copy from pinned memory (cudaHostAlloc) with cudaMemcpyAsync on a stream of its own, "
        "beside kernels that do not need the data, and move less: keep on the GPU what it alone changes.",
        "jax": "Start the copy one step ahead: jax.device_put of the next batch before the step that needs "
        "this one.",
    },
    candidates=candidates,
    figures=(
        Figures("idle_causes", "idle_ns_per_step", idle("copy")),
        Figures("step_account", "exposed_mem_ns"),
        Figures("memops", "total_ns", lambda table, _: table["operation"].notna()),
    ),
    column="exposed_mem_ns",
    calls="Memcpy",
)
