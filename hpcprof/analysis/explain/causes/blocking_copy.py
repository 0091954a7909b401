"""Blocking copies: copies between host and GPU that nothing hides."""

import re
from collections.abc import Iterator

import numpy as np

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.account.places import NONE
from hpcprof.analysis.explain.annotations import Scene, Times
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Figures, Remove, Trait, idle
from hpcprof.profiles.columns.intervals import length
from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.profiles.host_memory import HostMemory
from hpcprof.profiles.timeline import Category, Ints, Mask

TO_HOST = r"(?i)device-to-host|dtoh|d2h|DeviceToHost"
"""Names of copies from a GPU to its host."""
FROM_HOST = r"(?i)host-to-device|htod|h2d|HostToDevice"
"""Names of copies from a host to its GPU."""

_MIN_PINNED_SHARE = 0.9
"""Minimum share of pinned memory, by time, for advice that does not ask to pin the memory of copies."""

_PINNED = (
    "The copies of {where} use pinned memory already. Start them earlier, on a stream of their own beside "
    "kernels that do not need their data, or keep the data on the GPU."
)

_SMALL_COPY_NS = 5_000
"""Maximum time of a copy of a few values, in ns."""

MIN_SMALL_COPIES = 3
"""Minimum number of small copies per step and rank that one copy could replace."""

_MAX_HOST_GAP_NS = 100_000
"""Maximum time of the host between two copies that joining them saves as well, in ns."""


def candidates(scene: Scene) -> Iterator[Candidate]:
    """Yield the copies of each place, and its small copies to the GPU that follow each other."""
    small = scene.removals.with_host & small_copies(scene, to_host=False)
    for place in scene.places:
        yield copies_in(scene, place)
        yield from consecutive_copies(scene, place, small, BLOCKING_COPY)


def small_copies(scene: Scene, *, to_host: bool) -> Mask:
    """Return a mask of the short copies to the host or, without ``to_host``, of the others."""
    work = scene.graph.work
    small: Mask = (work.category == Category.MEM) & (work.time < _SMALL_COPY_NS)
    small &= scene.named(lambda name: re.search(TO_HOST, name)) == to_host
    return small


def consecutive_copies(scene: Scene, place: str, small: Mask, cause: CauseDeclaration) -> Iterator[Candidate]:
    """Yield the small copies of a place that follow others without a launch between, which one could replace.

    Their removal includes the waits between them, and short work of the host there.
    """
    graph, work, calls = scene.graph, scene.graph.work, scene.graph.calls
    rows = np.flatnonzero(small & scene.removals.inside(place)[work.place])
    copying = np.unique(work.call[rows])
    previous = calls.before[copying]
    waits = np.where((previous != NONE) & (calls.kind[previous] == CallKind.WAIT), previous, NONE)
    previous_work = np.where(waits == NONE, previous, calls.before[waits])
    repeats = np.isin(previous_work, copying)
    if np.count_nonzero(repeats) < MIN_SMALL_COPIES * graph.steps * len(scene.ranks):
        return
    removed_calls = np.union1d(copying[repeats], waits[repeats & (waits != NONE)])
    copies = rows[np.isin(work.call[rows], removed_calls)]
    less = np.where(
        np.isin(np.arange(len(calls)), removed_calls) & (calls.gap < _MAX_HOST_GAP_NS), calls.gap, 0
    )
    count = round(len(copying) / graph.steps / len(scene.ranks))
    copied = f"{{where}} copies a value or some {count} times in each step, one copy after another."
    advice = f"{copied} Put them together, and copy all at once."
    time = calls.time[removed_calls] + less[removed_calls]
    remove = removal(scene, removed_calls, less, copies)
    yield scene.candidate(cause, place, remove, graph.call_rank[removed_calls], time, advice=advice)


def removal(scene: Scene, calls: Ints, host_ns: Ints, operations: Ints) -> Remove:
    """Return the removal of calls, of operations, and of ``host_ns`` before each call."""
    removals = scene.removals

    def remove(times: Times) -> Times:
        free = removals.less_before(removals.calls_at_once(times, calls), host_ns).without_work(operations)
        return removals.without_launches(free, operations)

    return remove


def copies_in(scene: Scene, place: str) -> Candidate:
    """Return the copies between host and device that a place starts."""
    work, removals = scene.graph.work, scene.removals
    chosen = np.flatnonzero(removals.with_host & removals.inside(place)[work.place])
    time = work.time[chosen]
    pinned = time[work.host_memory[chosen] == HostMemory.PINNED].sum()
    advice = _PINNED if pinned > _MIN_PINNED_SHARE * time.sum() else ""
    rows = _busiest_direction(scene, chosen)
    # Several GPUs of a rank have links of their own.
    link_ns = length(work.start[rows], work.end[rows]) / scene.graph.steps

    def remove(times: Times) -> Times:
        hidden = removals.copies(times, place)
        # Where less than half of a step is copies, the rest of it hides them.
        if 2 * link_ns < float(np.mean(scene.replay.elapsed(scene.replay.unchanged))):
            return hidden
        rest_ns = float(np.mean(scene.replay.elapsed(scene.replay.moments(hidden, exact=False))))
        return hidden.set_alone(rows, times.alone[rows] * max(1 - rest_ns / link_ns, 0.0))

    return scene.candidate(BLOCKING_COPY, place, remove, scene.graph.work_rank[chosen], time, advice=advice)


def _busiest_direction(scene: Scene, rows: Ints) -> Ints:
    """Return the pinned copies of the direction and rank that take longest; others do not fill a link."""
    work, rank = scene.graph.work, scene.graph.work_rank
    pinned = rows[work.host_memory[rows] == HostMemory.PINNED]
    to_host = scene.named(lambda name: re.search(TO_HOST, name))[pinned]
    _, link = numbered_rows(rank[pinned], to_host.astype(np.int64))
    time = np.bincount(link, work.time[pinned], 1)
    busiest: Ints = pinned[link == time.argmax()]
    return busiest


BLOCKING_COPY = CauseDeclaration(
    name="blocking_copy",
    title="blocking copies",
    meaning="copies between host and GPU that nothing hides",
    about="copies between host and GPU that nothing hides; of small ones to the GPU that follow each other, "
    "all but the first. A step without them takes at least as long as its pinned copies in one direction",
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
    traits=frozenset({Trait.ON_GPU}),
    column="exposed_mem_ns",
    calls="Memcpy",
)
