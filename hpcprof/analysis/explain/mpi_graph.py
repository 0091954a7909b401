"""The graph of a run whose steps are measured on the host: its MPI calls, and the work between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.account.host_activity import NONE, Thread, places_of, split_by_function
from hpcprof.analysis.explain.rank_activity import HostCalls, HostPieces, RankActivity, Work
from hpcprof.analysis.explain.rank_edges import Edges, RankEdges, host_edges
from hpcprof.analysis.explain.run_graph import CommonClock, RunGraph, run_graph
from hpcprof.analysis.mpi.matching import RunMpi
from hpcprof.analysis.mpi.waits import between_calls
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.profiles.columns.intervals import coverage, union
from hpcprof.profiles.columns.unique import begins_run, numbered_rows, rows_by_key
from hpcprof.profiles.os_calls import file_calls
from hpcprof.profiles.timeline import Ints, Timeline, concatenate


@dataclass(frozen=True)
class HostSteps:
    """The steps of a rank on its own clock, as arrays of shape (steps,), and its number of MPI calls."""

    number: Ints
    start: Ints
    end: Ints
    calls: int

    @classmethod
    def of(cls, timeline: Timeline) -> "HostSteps":
        """Return the steps of a timeline."""
        steps = steps_of(timeline)
        return cls(steps.number, steps.ranges.start, steps.ranges.end, len(timeline.mpi_calls))

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.number)

    def bounds(self, numbers: Ints) -> Ints:
        """Return the begin of each of some steps, and the end of the last one, in ns."""
        at = np.searchsorted(self.number, numbers)
        last = int(at[-1])
        end = self.start[last + 1] if last + 1 < len(self) else self.end[last]
        return np.append(self.start[at], max(int(end), int(self.start[last])))

    def around(self, numbers: Ints) -> tuple[int, int]:
        """Return the begin of the step before some steps, and the end of the step after them, in ns."""
        first, last = np.searchsorted(self.number, numbers[[0, -1]]).tolist()
        following = min(last + 1, len(self) - 1)
        return int(self.start[max(first - 1, 0)]), int(self.end[following]) + 1


def common_steps(steps: Mapping[int, HostSteps]) -> Ints:
    """Return the numbers of the steps that all ranks have."""
    return reduce(np.intersect1d, (step.number for step in steps.values()))


def mpi_graph(
    timelines: Mapping[int, Timeline], run: RunMpi, clock: CommonClock, bounds: Mapping[int, Ints]
) -> RunGraph:
    """Build the graph of some steps of a program without work on a GPU.

    Its calls are those of MPI, and one without a length where each step begins. ``timelines`` are in
    ascending order of the ranks, and contain the steps; ``run`` has the calls of these ranks on the common
    clock. ``bounds``, of shape (steps + 1,), are the begins of a rank's steps and the end of the last one,
    on its own clock.
    """
    parts = [_rank_calls(rank, run, clock, bounds[rank]) for rank in timelines]
    activities, edges = {}, {}
    for (rank, timeline), part in zip(timelines.items(), parts, strict=True):
        calls, (places, pieces) = part.calls, _pieces(timeline, part, run)
        # A call is where its rank was before it.
        calls.place[pieces.call] = pieces.place
        streams = np.empty((0, 2), np.int64)
        activities[rank] = RankActivity(
            *(timeline, calls, Work.empty(), pieces, places, run.calls.names, streams, part.fronts, NONE)
        )
        host = concatenate(Edges, host_edges(calls, calls.time))
        edges[rank] = RankEdges(host, 0, 0, np.empty(0, np.int64))
    # The calls are on the common clock.
    common = CommonClock({}, {}, dict.fromkeys(timelines, 0))
    return run_graph(activities, edges, common, (), run, _file_times(timelines, parts, run))


@dataclass(frozen=True)
class _RankCalls:
    """The calls of a rank in the steps, and the positions among them at which steps begin.

    ``following`` is the position in the run of each call or, for the begin of a step, of the next call. The
    stamps ``own_start`` and ``own_end`` are on the rank's own clock.
    """

    calls: HostCalls
    fronts: Ints
    following: Ints
    own_start: Ints
    own_end: Ints

    @property
    def gaps(self) -> tuple[Ints, Ints, Ints]:
        """The calls that follow others on their threads, and the start and the end of the time between."""
        gaps = np.flatnonzero(self.calls.before != NONE)
        return gaps, self.own_end[self.calls.before[gaps]], self.own_start[gaps]


def _rank_calls(rank: int, run: RunMpi, clock: CommonClock, bounds: Ints) -> _RankCalls:
    all_calls = run.calls
    low, high = np.searchsorted(all_calls.rank, [rank, rank + 1])
    rows = np.arange(low, high)
    rows = rows[(all_calls.own_start[rows] >= bounds[0]) & (all_calls.own_start[rows] < bounds[-1])]
    main = all_calls.sequence[low] if high > low else 0
    last_of_main = int(np.searchsorted(all_calls.sequence[low:high], main, side="right")) + low
    count = len(bounds)
    row = np.concatenate((np.full(count, NONE), rows))
    sequence = np.concatenate((np.full(count, main), all_calls.sequence[rows]))
    start = np.concatenate((bounds, all_calls.own_start[rows]))
    end = np.concatenate((bounds, all_calls.own_end[rows]))
    order = np.lexsort((row != NONE, start, sequence))
    next_row = low + np.searchsorted(all_calls.own_start[low:last_of_main], bounds)
    following = np.concatenate((np.where(next_row < last_of_main, next_row, NONE), rows))
    row, sequence, start, end, following = (part[order] for part in (row, sequence, start, end, following))
    again = ~begins_run(sequence)
    # Calls of a thread do not overlap, but stamps of damaged profiles may.
    begin = np.maximum(start, np.where(again, np.append(start[:1], end[:-1]), start))
    step = np.clip(np.searchsorted(bounds, start, side="right") - 1, 0, count - 2)
    name = np.where(row == NONE, NONE, all_calls.name[row])
    calls = HostCalls(
        row=row,
        start=clock.common(rank, begin),
        end=clock.common(rank, np.maximum(begin, end)),
        thread=sequence,
        kind=np.where(row == NONE, int(CallKind.OTHER), int(CallKind.MPI)),
        name=name,
        place=np.full(len(row), NONE),
        step=step,
        before=np.where(again, np.arange(len(row)) - 1, NONE),
        others=np.zeros(len(row), np.int64),
    )
    return _RankCalls(calls, np.flatnonzero(row == NONE), following, begin, np.maximum(begin, end))


def _pieces(timeline: Timeline, part: _RankCalls, run: RunMpi) -> tuple[tuple[str, ...], HostPieces]:
    """Return the places of a rank, and the time before each call divided by them.

    Outside the program's own ranges, a place is that between two calls of MPI.
    """
    number: dict[str, int] = {}
    calls, (gaps, start, end) = part.calls, part.gaps
    filled = end > start
    gaps, start, end = gaps[filled], start[filled], end[filled]
    innermost = np.full(len(gaps), NONE)
    owner, begin, finish = np.arange(len(gaps)), start, end
    if len(timeline.ranges) and len(gaps):
        owner, begin, finish, innermost = _divide_gaps(timeline, run, calls.thread[gaps], start, end, number)
    between = _places_between(run, part.following[gaps], number)
    place = np.where(innermost == NONE, between[owner], innermost)
    return tuple(number), HostPieces(gaps[owner], place, finish - begin, calls.step[gaps[owner]])


def _divide_gaps(
    timeline: Timeline, run: RunMpi, thread: Ints, start: Ints, end: Ints, number: dict[str, int]
) -> tuple[Ints, Ints, Ints, Ints]:
    """Divide the gaps between MPI calls by the range around them.

    Returns the gap, the start, the end and the number of the place of each piece, each of shape (pieces,).
    """
    places = places_of(timeline, int(start.min()), int(end.max()))
    columns = []
    for (sequence,), own_rows in rows_by_key(thread):
        place_at = places.of(_thread(timeline, run, sequence))
        owner, begin, finish = split_by_function((place_at,), start[own_rows], end[own_rows])
        columns.append((own_rows[owner], begin, finish, place_at.at(begin)))
    owner, begin, finish, place = (np.concatenate(column) for column in zip(*columns, strict=True))
    texts = [number.setdefault(text, len(number)) if text else NONE for text in places.texts]
    return owner, begin, finish, np.array([*texts, NONE], np.int64)[place]


def _thread(timeline: Timeline, run: RunMpi, sequence: int) -> Thread:
    calls = timeline.mpi_calls
    first = run.calls.own_start[np.searchsorted(run.calls.sequence, sequence)]
    row = int(np.argmax(calls.start == first))
    return int(calls.process[row]), int(calls.thread[row])


def _file_times(timelines: Mapping[int, Timeline], parts: Sequence[_RankCalls], run: RunMpi) -> Ints:
    """Return the time in reads and writes before each call, by its own thread, in ns; shape (calls,)."""
    times = []
    for timeline, part in zip(timelines.values(), parts, strict=True):
        calls, time = file_calls(timeline), np.zeros(len(part.calls), np.int64)
        gaps, start, end = part.gaps
        for (sequence,), rows in rows_by_key(part.calls.thread[gaps] if len(calls) else gaps[:0]):
            process, thread = _thread(timeline, run, sequence)
            on_thread = calls.take((calls.process == process) & (calls.thread == thread))
            time[gaps[rows]] = coverage(start[rows], end[rows], union(on_thread.start, on_thread.end))
        times.append(time)
    return np.concatenate(times)


def _places_between(run: RunMpi, following: Ints, number: dict[str, int]) -> Ints:
    """Return the number of the place before each of ``following``: between the call before and that call."""
    calls = run.calls
    last = following == NONE
    before = np.where(following > 0, calls.name[following - 1], NONE)
    before[calls.first[np.searchsorted(calls.first, following, side="right") - 1] == following] = NONE
    pairs, which = numbered_rows(before, np.where(last, NONE, calls.name[following]))
    texts = [between_calls(*(calls.names[name] if name != NONE else None for name in pair)) for pair in pairs]
    numbers = np.array([number.setdefault(text, len(number)) for text in texts], np.int64)
    return numbers[which] if len(numbers) else np.empty(0, np.int64)
