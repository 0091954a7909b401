"""Activity of one rank's host and GPU in the steps that are explained: the material of the graph.

The calls that count are those that launch work, wait, allocate, or record an event, on threads that launch
work, and calls of MPI. The time between two of them is host time of the thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hpcprof.analysis.account.call_kinds import MIN_MAPPING_NS, STREAM_ORDERED, CallKind, kind_of_call
from hpcprof.analysis.account.host_activity import NONE, Places, places_of, split_by_function
from hpcprof.analysis.statistics.confidence_intervals import grows_with
from hpcprof.analysis.steps.lost_launches import steps_with_lost_launches
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.analysis.steps.streams import NEVER, launch_calls, launch_starts
from hpcprof.profiles.columns.unique import begins_run, name_matches, numbered, numbered_rows, rows_by_key
from hpcprof.profiles.host_memory import HostMemory
from hpcprof.profiles.timeline import Category, GpuWork, Ints, Mask, NamedSpans, Table, Timeline, concatenate
from hpcprof.profiles.waiting_calls import launches_graph

_GRID_WEIGHTS = np.array([1 << 32, 1 << 16, 1])
"""CUDA's grids have less than 2**31 blocks in their first direction, and less than 2**16 in the others."""


def grid_blocks(grid: Ints) -> Ints:
    """Return the number of blocks of grids that are given as one number (`Work.grid`)."""
    number, blocks = grid, np.ones_like(grid)
    for weight in _GRID_WEIGHTS.tolist():
        blocks, number = blocks * (number // weight), number % weight
    return blocks


@dataclass(frozen=True)
class HostCalls(Table):
    """The calls of a rank that count, by start; none lies inside another.

    ``row`` is the row among the calls of the timeline, with those of MPI behind the others, ``thread`` the
    number of the thread, ``kind`` a `CallKind`, ``before`` the call that this one follows on the host, or
    `NONE`. ``others`` is the number of the thread's other calls since its call before; they do not count, but
    cost the profiler time.
    """

    row: Ints
    start: Ints
    end: Ints
    thread: Ints
    kind: Ints
    name: Ints
    place: Ints
    step: Ints
    before: Ints
    others: Ints

    @property
    def time(self) -> Ints:
        """The time from the start of each call to its end, in ns."""
        return self.end - self.start

    @property
    def gap(self) -> Ints:
        """The time between each call and the one that it follows, in ns; 0 for the first ones."""
        return np.where(self.before == NONE, 0, self.start - self.end[self.before])


@dataclass(frozen=True)
class Work(Table):
    """The operations of a rank on its GPUs, in the order of their streams.

    ``row`` is the row among the operations of the timeline, ``stream`` the number of the stream, ``call`` the
    call that launched the operation, or `NONE`, ``before`` the operation before it on the stream, or `NONE`.
    ``grid`` is the size of the grid of a kernel as one number, 0 if unknown and for other operations.
    ``host_memory`` is the `hpcprof.profiles.host_memory.HostMemory` of a copy, ``NONE`` for other operations.
    """

    row: Ints
    start: Ints
    end: Ints
    stream: Ints
    category: Ints
    name: Ints
    grid: Ints
    host_memory: Ints
    call: Ints
    place: Ints
    step: Ints
    before: Ints

    @property
    def time(self) -> Ints:
        """The time of each operation in ns."""
        return self.end - self.start

    @property
    def is_compute(self) -> Mask:
        """Mask of the kernels that compute."""
        mask: Mask = self.category == Category.COMP
        return mask

    @property
    def is_communication(self) -> Mask:
        """Mask of the operations that communicate."""
        mask: Mask = self.category == Category.COMM
        return mask


@dataclass(frozen=True)
class HostPieces(Table):
    """The time of a thread between a call and the one before, divided by place; in ns.

    ``step`` is the position of the step in which a piece begins; the call may be in the next one.
    """

    call: Ints
    place: Ints
    length: Ints
    step: Ints


@dataclass(frozen=True)
class RankActivity:
    """The explained steps of one rank, on the profile's own clock.

    A rank without work on a GPU has no streams, and the calls at which steps begin in ``front``.
    """

    timeline: Timeline
    calls: HostCalls
    work: Work
    pieces: HostPieces
    places: tuple[str, ...]
    """The texts of the column ``place``."""
    names: Sequence[str]
    """The texts of the column ``name``."""
    streams: Ints
    """The device and the stream of each number; shape (streams, 2)."""
    front: Ints
    """The first operation of each step; the last one ends at the front of the next, or with ``last``; shape
    (steps,).
    """
    last: int
    """The operation that ends last in the last step, `NONE` if the front of a further step is known."""


def step_fronts(timeline: Timeline) -> Ints:
    """Return the first operation of each step by its start.

    It is `NONE` for a step that launches none, or whose operations are partly missing in the profile.
    """
    ranges, launched = steps_of(timeline).ranges, launch_starts(timeline)
    (start,) = timeline.of_operations("start")
    order = np.lexsort((start, launched))
    low = np.searchsorted(launched[order], ranges.start)
    high = np.searchsorted(launched[order], np.minimum(ranges.end, NEVER - 1), side="right")
    first = [
        rows[np.argmin(start[rows])] if len(rows := order[a:b]) else NONE
        for a, b in zip(low, high, strict=True)
    ]
    return np.where(steps_with_lost_launches(timeline), NONE, np.array(first, np.int64))


def rank_activity(timeline: Timeline, steps: slice, fronts: Ints) -> RankActivity:
    """Gather what a rank does in some of its steps, all of which have work on the GPU.

    The step before is gathered too, so that the first one begins as it did. ``fronts`` are the `step_fronts`.
    """
    ranges = steps_of(timeline).ranges
    first, last = steps.start, steps.stop
    begin = int(ranges.start[max(first - 1, 0)])
    # The front of a step that lost operations is unknown: the step before it ends with its last operation.
    further = last < len(ranges) and fronts[last] != NONE
    end = int(launch_starts(timeline)[fronts[last]]) if further else int(ranges.end[last - 1])
    places = places_of(timeline, begin, end)
    all_calls: NamedSpans = timeline.calls
    if len(timeline.mpi_calls):
        all_calls = concatenate(NamedSpans, (timeline.calls, timeline.mpi_calls))
    calls, owner = _calls(timeline, all_calls, begin, end, places, ranges.start)
    work, streams = _work(timeline, calls, owner, places)
    position = np.full(timeline.operation_count, NONE)
    position[work.row] = np.arange(len(work))
    front = position[fronts[first : last + further]]
    ended = np.flatnonzero(work.step == last - 1)
    final = NONE if further or not len(ended) else int(ended[np.argmax(work.end[ended])])
    rows = all_calls.take(calls.row)
    pieces = _pieces(calls, rows.process, rows.thread, places, ranges.start)
    names = timeline.strings.tolist()
    return RankActivity(timeline, calls, work, pieces, places.texts, names, streams, front, final)


def _calls(
    timeline: Timeline, calls: NamedSpans, begin: int, end: int, places: Places, steps: Ints
) -> tuple[HostCalls, Ints]:
    """Return the outermost calls to replay, by start, and the one around each row of ``calls``, or `NONE`.

    A last `NONE` stands for no row.
    """
    launch = launch_calls(timeline)
    launched = launch[launch != NONE]
    memory = np.zeros(len(calls), bool)
    (category,) = timeline.of_operations("category")
    memory[launched[category[launch != NONE] == Category.MEM]] = True
    launching = np.zeros(len(calls), bool)
    launching[launched] = True
    used, name = numbered(calls.name)
    by_name = np.array([kind_of_call(text or "") for text in timeline.names(used)], np.int64)[name]
    maps = name_matches(timeline, calls.name, STREAM_ORDERED.search)
    by_name[maps & (calls.end - calls.start >= MIN_MAPPING_NS)] = CallKind.ALLOCATE
    _, thread = numbered_rows(calls.process, calls.thread)
    working = np.zeros(int(thread.max(initial=-1)) + 1, bool)
    working[thread[launching]] = True
    memory &= ~name_matches(timeline, calls.name, launches_graph)
    kind = np.where(launching, np.where(memory, CallKind.COPY, CallKind.LAUNCH), by_name)
    first_mpi = len(timeline.calls)
    working[thread[first_mpi:]] = True
    kind[first_mpi:] = CallKind.MPI
    wanted = (kind != CallKind.OTHER) & working[thread] & (calls.start >= begin) & (calls.start <= end)
    rows = np.flatnonzero(wanted)
    rows = rows[np.lexsort((-calls.end[rows], calls.start[rows], thread[rows]))]
    outermost = _outermost(thread[rows], calls.end[rows])
    outer = np.maximum.accumulate(np.where(outermost, np.arange(len(rows)), 0))
    kept_rows = rows[outermost]
    order = np.argsort(calls.start[kept_rows], kind="stable")
    place = np.empty(len(kept_rows), np.int64)
    place[order] = np.arange(len(kept_rows))
    position = place[(np.cumsum(outermost) - 1)[outer]]
    owner = np.full(len(calls) + 1, NONE)
    owner[rows] = position
    kept_rows = kept_rows[order]
    start, finish = calls.start[kept_rows], calls.end[kept_rows]
    other_rows = np.flatnonzero((kind == CallKind.OTHER) & working[thread])
    # An inner call decides the kind: a runtime call may launch by a call of the driver. MPI may copy itself.
    strongest = np.full(len(kept_rows), int(CallKind.OTHER))
    np.minimum.at(strongest, position, kind[rows])
    host_calls = HostCalls(
        row=kept_rows,
        start=start,
        end=finish,
        thread=thread[kept_rows],
        kind=np.where(kept_rows >= first_mpi, CallKind.MPI, strongest),
        name=calls.name[kept_rows],
        place=places.at(timeline, calls.process[kept_rows], calls.thread[kept_rows], start),
        step=np.searchsorted(steps, start, side="right") - 1,
        before=predecessors(start, finish, thread[kept_rows]),
        others=_count_calls_between(kept_rows, other_rows, thread, calls),
    )
    return host_calls, owner


def _count_calls_between(kept_rows: Ints, other_rows: Ints, thread: Ints, calls: NamedSpans) -> Ints:
    """Return the number of other calls between each kept call and the one before on its thread.

    Both are rows of ``calls``; ``thread`` is the thread's number for each row of ``calls``.
    """
    count = np.zeros(len(kept_rows), np.int64)
    order = np.lexsort((calls.start[kept_rows], thread[kept_rows]))
    span = int(calls.start.max(initial=0)) + 1
    key = thread[kept_rows[order]] * span + calls.start[kept_rows[order]]
    place = np.searchsorted(key, thread[other_rows] * span + calls.start[other_rows])
    first = begins_run(thread[kept_rows[order]])
    # Calls before the first kept call of a thread, or after its last one, are between none.
    between = place[(place > 0) & (place < len(kept_rows))]
    np.add.at(count, order[between[~first[between]]], 1)
    return count


def _outermost(thread: Ints, end: Ints) -> Mask:
    if not len(end):
        return np.empty(0, bool)
    span = int(end.max() - end.min()) + 1
    reach = np.maximum.accumulate(end - end.min() + thread * span)
    inside = (end[1:] - end.min() + thread[1:] * span) <= reach[:-1]
    return np.append(True, ~(inside & (thread[1:] == thread[:-1])))


_MAX_HANDOVER_SHARE = 0.2
"""Maximum share of a thread's calls that follow other threads: above it, the threads run at the same time."""


_MAX_WAKING_SHARE = 0.01
"""Threads that rest for at least as long, and then call within this share of it, were woken by the same."""


def predecessors(start: Ints, end: Ints, thread: Ints) -> Ints:
    """Return the call that each call follows.

    1. A call follows the one before on its thread or, if another thread has ended a call since, that call:
       the thread then waited for the other one, as the main thread does for autograd's.
    2. A thread with many such calls runs beside the others, and follows only itself.
    3. But if the other thread waits for it in turn, as Python's does for a thread of XLA that copies its
       input, it follows that thread after all.
    4. Threads of a pool that rested until a thread that follows others was woken follow its first call.
    """
    count = len(start)
    order = np.lexsort((start, thread))
    previous, following = np.full(count, NONE), np.full(count, NONE)
    same_thread = thread[order][1:] == thread[order][:-1]
    earlier, later = order[:-1][same_thread], order[1:][same_thread]
    previous[later], following[earlier] = earlier, later
    by_end = np.argsort(end, kind="stable")
    latest = np.append(NONE, by_end)[np.searchsorted(end[by_end], start, side="right")]
    lowest = np.iinfo(np.int64).min
    own_end = np.where(previous == NONE, lowest, end[previous])
    other = (latest != NONE) & (thread[latest] != thread) & (end[latest] > own_end)
    calls = np.bincount(thread, minlength=1)
    share = np.bincount(thread[other], minlength=len(calls)) / np.maximum(calls, 1)
    follows = other & ((share <= _MAX_HANDOVER_SHARE)[thread] | (previous == NONE))
    beside = np.flatnonzero(other & ~follows & (following[latest] != NONE))
    for _, rows in rows_by_key(thread[beside], thread[latest[beside]]):
        chosen = beside[rows]
        end_lag, gap = (
            times - end[latest[chosen]] for times in (end[chosen], start[following[latest[chosen]]])
        )
        follows[chosen] |= grows_with(end_lag, gap)
    idle = np.where(previous == NONE, 0, start - own_end)
    longest = np.zeros(len(calls), np.int64)
    np.maximum.at(longest, thread, idle)
    woken = np.flatnonzero(follows & (2 * idle > longest[thread]))
    if len(woken):
        woken = woken[np.argsort(end[woken], kind="stable")]
        place = np.searchsorted(end[woken], start, side="right") - 1
        first = woken[place]
        together = start - start[first] <= _MAX_WAKING_SHARE * np.minimum(idle, idle[first])
        together &= other & ~follows & (place >= 0) & (end[first] > own_end)
        latest, follows = np.where(together, first, latest), follows | together
    return np.where(follows, latest, previous)


def _work(timeline: Timeline, calls: HostCalls, owner: Ints, places: Places) -> tuple[Work, Ints]:
    """Return the work of the replayed calls by stream and start, and device and stream of each stream."""
    operations = timeline.columns_of_operations(GpuWork)
    call = owner[launch_calls(timeline)]
    rows = np.flatnonzero(call != NONE)
    streams, stream = numbered_rows(operations.device[rows], operations.stream[rows])
    order = np.lexsort((operations.end[rows], operations.start[rows], stream))
    rows, stream, call = rows[order], stream[order], call[rows][order]
    work = operations.take(rows)
    again = ~begins_run(stream)
    grid = np.zeros(timeline.operation_count, np.int64)
    kernels = len(timeline.kernels)
    # A kernel whose shape is unknown has blocks of one thread.
    shaped = timeline.kernels.block.prod(axis=1) > 1
    grid[:kernels] = np.where(shaped, timeline.kernels.grid @ _GRID_WEIGHTS, 0)
    host_memory = np.full(timeline.operation_count, int(HostMemory.NONE))
    host_memory[kernels : kernels + len(timeline.memops)] = timeline.memops.host_memory
    return (
        Work(
            row=rows,
            start=work.start,
            end=work.end,
            stream=stream,
            category=work.category,
            name=work.name,
            grid=grid[rows],
            host_memory=host_memory[rows],
            call=call,
            place=calls.place[call],
            step=calls.step[call],
            before=np.where(again, np.arange(len(rows)) - 1, NONE),
        ),
        streams,
    )


def _pieces(calls: HostCalls, processes: Ints, threads: Ints, places: Places, steps: Ints) -> HostPieces:
    """Divide the time before each call, since the one that it follows, by place.

    ``steps`` has the starts of the steps.
    """
    parts = []
    for (process, thread), rows in rows_by_key(processes, threads):
        rows = rows[calls.before[rows] != NONE]
        rows = rows[calls.start[rows] > calls.end[calls.before[rows]]]
        start, end = calls.end[calls.before[rows]], calls.start[rows]
        place = places.of((process, thread))
        owner, begin, finish = split_by_function((place,), start, end)
        step = np.searchsorted(steps, begin, side="right") - 1
        parts.append(HostPieces(rows[owner], place.at(begin), finish - begin, step))
    return concatenate(HostPieces, parts)


_MIN_PAUSE_NS = 100_000
"""Minimum length of a pause in which a host may wait, in ns."""

_MAX_GAP_NS = 20_000
"""Maximum distance of a call from the moment at which the GPU runs dry, for a call that waited for it, in
ns."""

_MIN_EXACT_PAUSES, _MIN_EXACT_SHARE = 20, 0.5
"""Minimum number and share of long pauses that end when the GPU runs dry, for a host that keeps pace with
it."""

_MAX_LATE_SHARE = 0.25
"""Maximum share of a pause after that moment for a wait of such a host."""

_MIN_WHOLE_PAUSES, _WHOLE_PAUSE_NS, _MAX_RETURN_SHARE = 5, 1_000_000, 0.03
"""Minimum number and length (ns) of longer pauses, and maximum share of one after that moment, where no call
of the host waits: after XLA's waits for all work, Python first has to come back."""


class Pace(NamedTuple):
    """The calls of a rank before which its host waits for an operation, and that operation of each."""

    call: Ints
    work: Ints


def with_pauses(activity: RankActivity) -> RankActivity:
    """Add calls of the kind `CallKind.PAUSE` where the host waits for the GPU without a call that does so.

    Each one begins where the call before it ends, and ends when the GPU has run dry.
    """
    calls, pace = activity.calls, pace_of(activity.calls, activity.work)
    count = len(pace.call)
    if not count:
        return activity
    before = calls.before[pace.call]
    start = calls.end[before]
    end = np.clip(activity.work.end[pace.work], start, calls.start[pace.call])
    pauses = replace(
        calls.take(pace.call),
        start=start,
        end=end,
        kind=np.full(count, int(CallKind.PAUSE)),
        name=np.full(count, NONE),
        place=calls.place[before],
        step=calls.step[before],
        before=before,
        others=np.zeros(count, np.int64),
    )
    all_calls = concatenate(HostCalls, (calls, pauses))
    all_calls.before[pace.call] = len(calls) + np.arange(count)
    order = np.argsort(all_calls.start, kind="stable")
    position = np.append(np.argsort(order), NONE)
    all_calls = all_calls.take(order)
    pieces, work = activity.pieces, activity.work
    shorter = _without_beginnings(pieces, dict(zip(pace.call.tolist(), (end - start).tolist(), strict=True)))
    return replace(
        activity,
        calls=replace(all_calls, before=position[all_calls.before]),
        work=replace(work, call=position[work.call]),
        pieces=replace(shorter, call=position[shorter.call]),
    )


def _without_beginnings(pieces: HostPieces, time: dict[int, int]) -> HostPieces:
    """Shorten the pieces before some calls by the time that the host waited first, in ns by call."""
    length = pieces.length.copy()
    for row in np.flatnonzero(np.isin(pieces.call, [*time])).tolist():
        call = int(pieces.call[row])
        removed_ns = min(time[call], int(length[row]))
        length[row] -= removed_ns
        time[call] -= removed_ns
    return replace(pieces, length=length).take(length > 0)


def pace_of(calls: HostCalls, work: Work) -> Pace:
    """Return the operations for which a host waits in its long pauses; empty if it does not keep pace."""
    launched = calls.start[work.call]
    order = np.argsort(launched, kind="stable")
    # The last to end among each operation and the operations launched before it.
    reach = np.maximum.accumulate(work.end[order]) if len(order) else order
    newest = np.maximum.accumulate(np.where(work.end[order] == reach, np.arange(len(order)), 0))
    long = np.flatnonzero(calls.before != NONE)
    long = long[calls.start[long] - calls.end[calls.before[long]] > _MIN_PAUSE_NS]
    place = np.searchsorted(launched[order], calls.start[long]) - 1
    long, place = long[place >= 0], place[place >= 0]
    begin = calls.end[calls.before[long]]
    pause, until_place = calls.start[long] - begin, reach[place] - begin
    late = pause - until_place
    exact = np.abs(late) <= _MAX_GAP_NS
    whole = (pause >= _WHOLE_PAUSE_NS) & ~np.any(calls.kind == CallKind.WAIT)
    returns = whole & (exact | ((late > 0) & (late <= _MAX_RETURN_SHARE * pause)))
    if exact.sum() >= max(_MIN_EXACT_PAUSES, _MIN_EXACT_SHARE * len(long)):
        waits = exact | ((late > 0) & (late <= _MAX_LATE_SHARE * pause))
    elif returns.sum() >= max(_MIN_WHOLE_PAUSES, _MIN_EXACT_SHARE * whole.sum()):
        waits = returns
    else:
        waits = np.zeros(len(long), bool)
        busy = np.flatnonzero(until_place > _MIN_PAUSE_NS)
        for _, rows in rows_by_key(calls.name[long[busy]], calls.place[long[busy]]):
            waits[busy[rows]] = grows_with(until_place[busy[rows]] - _MAX_GAP_NS, pause[busy[rows]])
    return Pace(long[waits], order[newest[place[waits]]])
