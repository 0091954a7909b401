"""Steps of programs that mark none: the main loop repeats its sequence of messages and collectives.

Calls that communicate without a recorded message or collective count where the recorded ones do not repeat.

Steps begin where every n-th call of a name ends. All ranks join such a call, so every rank finds the same
steps without data of the other ranks. The calls between two of them may differ from rank to rank, and on a
master that serves from step to step. Where a loop has no such call, each rank takes its own sequence.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.common.memoize import computed_once
from hpcprof.profiles.collective_operations import POINT_TO_POINT, WAITING, mpi_function
from hpcprof.profiles.columns.unique import distinct, numbered, numbered_rows, rows_by_key
from hpcprof.profiles.timeline import (
    NO_BYTES,
    NO_NAME,
    Ints,
    Mask,
    MpiCalls,
    Ranges,
    Table,
    Timeline,
    concatenate,
)

PREFIX = "mpi:"
"""Prefix of the names of steps that calls of MPI mark."""

OWN_SEQUENCE = f"{PREFIX}sequence"
"""The name of steps that each rank finds in its own sequence of calls."""

OWN_LOOP = f"{PREFIX}loop"
"""The name of longer ones, of all calls of the loop around a sequence that repeats in it."""

_NAME = re.compile(rf"{PREFIX}(?P<call>\w+)(?::(?P<bytes>\d+))?(?:/(?P<every>[1-9]\d*))?")

MIN_INSTANCES = 5
"""Minimum number of steps of a program that marks none."""

_MAX_KINDS, _MAX_PERIOD = 32, 64
"""Maximum number of kinds of calls, tags or sizes that count, and maximum period in calls of one kind."""

_MIN_SIMILAR_SHARE, _MIN_SIMILAR_TIME = 0.7, 0.5
"""Minimum shares of equal intervals, and of their time, for a period of one call."""

_MIN_REPEATED_SHARE = 0.9
"""Minimum share of intervals that repeat after a longer period."""

_ALTERNATION_PERIODS = (2, 3, 4)
"""Possible periods of equal calls whose times alternate."""

_MIN_EXPLAINED_SHARE, _MIN_TIME_RATIO = 0.9, 1.5
"""For alternating times: minimum share of their variance that the place in the period explains, and minimum
ratio of the mean times of two places."""

_MAX_NAMED_CALLS = 8
"""Maximum number of different calls of a step in a sentence."""

_MAX_EQUAL_RATIO = 1.1
"""Maximum ratio of the lengths of equally long periods."""

_MAX_END_RATIO = 4.0
"""Maximum ratio of an interval at the ends to the median for a step."""

_MAX_LEAD_RATIO, _MIN_MAJORITY = 1.25, 0.9
"""For a step before the first call of a kind: maximum ratio to most other intervals, and the share of these.

Programs prepare their loops there, and profilers do some work. After a barrier, the loop has begun."""

_MIN_WORK_SHARE = 0.25
"""Minimum ratio of the time before a call to its mean, for a call without a record to follow work.

The calls of an exchange have one name, and packing at most between them: the first one follows the work."""

_WITHOUT_RECORD = re.compile(
    r"MPI_(?:I?neighbor_\w+|Isendrecv(?:_replace)?|R?(?:put|get|accumulate|get_accumulate)|fetch_and_op"
    r"|compare_and_swap|win_(?:start|complete|post|wait|(?:un)?lock(?:_all)?|flush(?:_local)?(?:_all)?)"
    r"|file_i?(?:read|write)(?:_at|_shared|_ordered)?(?:_all)?)(?:_c)?",
    re.IGNORECASE,
)
"""Further functions that communicate, of which profilers record no message or collective."""

_SAME_SIZE = frozenset({"AllReduce", "AllGather", "AlltoAll", "Broadcast", "Reduce"})
"""Operations that all ranks call with one size."""


@dataclass(frozen=True)
class _Begun(Table):
    """The messages and collectives of a rank's main thread by the calls that begin them, in their order.

    ``name`` and ``op`` are ids of texts, ``size`` is in bytes, `NO_BYTES` if it may differ between ranks.
    ``own`` is the number of the kind of message or collective, ``unsized`` the same without regard to sizes.
    ``shared`` is 1 if all ranks join the call, ``barrier`` if it is a barrier, and ``place`` is its position
    among all calls of the thread.
    """

    start: Ints
    end: Ints
    name: Ints
    op: Ints
    size: Ints
    own: Ints
    unsized: Ints
    shared: Ints
    barrier: Ints
    place: Ints


class MpiStep(msgspec.Struct, frozen=True):
    """A possible step: from the end of every n-th call of a name, and of a size, to the next."""

    name: str
    """Its name as a step range."""
    instances: int
    length: int
    """From the start of the first to the end of the last one, in ns."""
    regular: bool
    """True if they repeat a sequence."""
    waiting: bool
    """True if all ranks wait for each other at its end."""
    last: int
    """End of the last one."""


def is_mpi_step(name: str) -> bool:
    """Return whether a step of this name is marked by calls of MPI."""
    return _NAME.fullmatch(name) is not None


def unnamed_ranges(moments: Ints, process: int, thread: int) -> Ranges:
    """Return the ranges of a thread from each moment to the next one."""
    constants = (np.full(len(moments) - 1, value, np.int64) for value in (process, thread, NO_NAME))
    return Ranges(moments[:-1], moments[1:], *constants)


@computed_once
def mpi_calls_in_order(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the rows of the MPI calls by thread and start, and the number of each one's thread.

    The thread with the most calls is the first.
    """
    calls = timeline.mpi_calls
    groups = [rows for _, rows in rows_by_key(calls.process, calls.thread)]
    groups.sort(key=lambda rows: -len(rows))
    ordered = [rows[np.argsort(calls.start[rows], kind="stable")] for rows in groups]
    number = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
    return np.concatenate([*ordered, np.empty(0, np.int64)]).astype(np.int64), number


def main_thread_calls(timeline: Timeline) -> MpiCalls:
    """Return the MPI calls of the thread with the most of them, by start."""
    rows, thread = mpi_calls_in_order(timeline)
    return timeline.mpi_calls.take(rows[thread == 0])


@computed_once
def _communication_begins(timeline: Timeline) -> _Begun:
    """Return the recorded messages and collectives, with the calls without a record if only these repeat."""
    recorded = _recorded_begins(timeline)
    every = _with_unrecorded(timeline, recorded)
    if len(every) == len(recorded):
        return recorded
    repeats = any(step.regular for step in _joined_candidates(timeline, recorded))
    return recorded if repeats or _repeated_marks(recorded) or not _repeated_marks(every) else every


def _with_unrecorded(timeline: Timeline, recorded: _Begun) -> _Begun:
    """Add the calls of the main thread that communicate without a record; their kind is their name.

    Whether a call follows work also counts for its kind.
    """
    calls = main_thread_calls(timeline)
    used, number = numbered(calls.name)
    communicates = [
        bool(text and (mpi_function(text) or _WITHOUT_RECORD.fullmatch(text)))
        for text in timeline.names(used)
    ]
    rows = np.setdiff1d(np.flatnonzero(np.array(communicates, bool)[number]), recorded.place)
    if not len(rows):
        return recorded
    before = calls.start[rows] - np.append(calls.start[:1], calls.end[:-1])[rows]
    after_work = (before >= _MIN_WORK_SHARE * before.mean()).astype(np.int64)
    name = calls.name[rows]
    _, kind = numbered_rows(name, after_work)
    unrecorded = _Begun(
        start=calls.start[rows],
        end=np.maximum(calls.start[rows], calls.end[rows]),
        name=name,
        op=np.full(len(rows), NO_NAME),
        size=np.full(len(rows), NO_BYTES),
        own=recorded.own.max(initial=-1) + 1 + kind,
        unsized=recorded.unsized.max(initial=-1) + 1 + numbered(name)[1],
        shared=np.zeros(len(rows), np.int64),
        barrier=np.zeros(len(rows), np.int64),
        place=rows,
    )
    every = concatenate(_Begun, (recorded, unrecorded))
    return every.take(np.argsort(every.place, kind="stable"))


@computed_once
def _recorded_begins(timeline: Timeline) -> _Begun:
    calls = main_thread_calls(timeline)
    ops = timeline.mpi_operations
    if not len(calls) or not len(ops):
        return _Begun.empty()
    ops = ops.take((ops.process == calls.process[0]) & (ops.thread == calls.thread[0]))
    at = np.minimum(np.searchsorted(calls.start, ops.start), len(calls) - 1)
    matching = np.flatnonzero(calls.start[at] == ops.start)
    # A call that sends and receives is one call of the sequence.
    _, first = np.unique(at[matching], return_index=True)
    ops, at = ops.take(matching[first]), at[matching[first]]
    name = calls.name[at]
    size = np.maximum(ops.bytes, ops.received_bytes)
    _, unsized = numbered_rows(name, ops.communicator, ops.peer, ops.comm_peer, _kinds(ops.tag))
    _, sized = numbered_rows(unsized, _kinds(size))
    texts = timeline.names(ops.operation)
    collective = np.array([text not in POINT_TO_POINT for text in texts], bool)
    shared = collective & (ops.ranks == ops.ranks[collective].max(initial=NO_BYTES)) & (ops.ranks > 1)
    has_same_size = np.array([text in _SAME_SIZE for text in texts], bool)
    return _Begun(
        start=calls.start[at],
        end=np.maximum(calls.start[at], calls.end[at]),
        name=name,
        op=ops.operation,
        size=np.where(has_same_size | ~shared, size, NO_BYTES),
        own=sized,
        unsized=unsized,
        shared=shared.astype(np.int64),
        barrier=np.array([text == "Barrier" for text in texts], np.int64),
        place=at,
    )


def _kinds(values: Ints) -> Ints:
    """Return values, or zeros if there are too many distinct ones: then they count messages or amounts."""
    return values if len(distinct(values)) <= _MAX_KINDS else np.zeros_like(values)


def communicating_time(timeline: Timeline) -> int:
    """Return the time from the end of the first message or collective to that of the last, in ns."""
    end = _communication_begins(timeline).end
    return int(end[-1] - end[0]) if len(end) else 0


def share_begun_inside(timeline: Timeline, ranges: Ranges) -> float:
    """Return the share of messages and collectives inside ranges, of those from the first to the last range.

    It is 1 if there are hardly any.
    """
    calls = _communication_begins(timeline)
    if not len(ranges) or not len(calls):
        return 1.0
    begin = np.sort(ranges.start)
    reach = np.maximum.accumulate(ranges.end[np.argsort(ranges.start, kind="stable")])
    between = calls.start[(calls.start >= begin[0]) & (calls.start <= reach[-1])]
    inside = between <= reach[np.searchsorted(begin, between, side="right") - 1]
    return float(inside.mean()) if len(between) >= MIN_INSTANCES else 1.0


class _Hashes:
    """Rolling hashes of the parts of a sequence of numbers: polynomials modulo 2 to the 64."""

    _BASE = np.uint64(0x9E3779B97F4A7C15 | 1)

    def __init__(self, sequence: Ints) -> None:
        generator = np.random.default_rng(len(sequence))
        value = generator.integers(1, 1 << 63, int(sequence.max(initial=0)) + 1).astype(np.uint64)
        power = np.cumprod(np.full(len(sequence) + 1, self._BASE))
        inverse = np.uint64(pow(int(self._BASE), -1, 1 << 64))
        self._backwards = np.cumprod(np.full(len(sequence) + 1, inverse))
        sums = np.cumsum(value[sequence] * power[: len(sequence)], dtype=np.uint64)
        self._sums = np.append(np.zeros(1, np.uint64), sums)

    def of(self, low: Ints, high: Ints) -> NDArray[np.uint64]:
        """Return the hash of the part from each ``low`` to below ``high``."""
        return (self._sums[high] - self._sums[low]) * self._backwards[low]


class _Marks(msgspec.Struct, frozen=True):
    """The calls at whose ends steps begin, as positions in a rank's calls, and the numbers of the steps."""

    place: Ints
    number: Ints


class _Sequence:
    """A sequence of calls in which one kind of call may mark the steps.

    ``kind`` is the number of each call's kind, equal on all ranks.
    """

    def __init__(self, calls: _Begun, rows: Ints, kind: Ints) -> None:
        self.calls, self.rows = calls, rows
        self._alike = _Hashes(kind)
        self._unsized = _Hashes(calls.unsized)

    def marks(self, chosen: Mask, calls_per_step: int) -> _Marks:
        """Return every ``calls_per_step``-th of the chosen calls, and one before them if it starts a repeat.

        Intervals at both ends do not belong to the loop if they differ from all others or are much longer;
        neither does a first interval with fewer calls than all others.
        """
        at = np.flatnonzero(chosen)[::calls_per_step]
        if len(at) < 2:
            return _Marks(self.rows[at], np.arange(len(at)))
        before = int(2 * at[0] - at[1])
        whole = np.concatenate(([before] if before >= 0 else [], at)).astype(np.int64)
        if before >= 0:
            label = self._labels(whole)
            whole = whole if label[0] == label[1] else at
        label, length = self._labels(whole), np.diff(self.calls.end[self.rows[whole]])
        _, number, count = np.unique(label, return_inverse=True, return_counts=True)
        is_outlier = length > _MAX_END_RATIO * np.median(length)
        # Without the waits of a step before it, the time before the loop's first call is a part of a step.
        count_of_calls = np.diff(self.calls.place[self.rows[whole]])
        is_outlier[0] |= whole[0] == before and count_of_calls[0] < count_of_calls[1:].min()
        if whole[0] == before and not self.calls.barrier[self.rows[before]]:
            is_outlier[0] |= length[0] > _MAX_LEAD_RATIO * np.quantile(length[1:], _MIN_MAJORITY)
        if count.max() > 1:
            is_outlier |= count[number] == 1
        usual = np.flatnonzero(~is_outlier)
        window = slice(int(usual[0]), int(usual[-1]) + 2)
        return _Marks(self.rows[whole[window]], np.arange(len(whole))[window])

    def period(self, chosen: Mask, similar: float = _MIN_SIMILAR_SHARE) -> int:
        """Return the number of chosen calls in a period of the sequence, 0 if it does not repeat.

        ``similar`` is the minimum share of equal intervals for a period of one call. The sizes of the calls
        between do not count: they may rotate.
        """
        at = np.flatnonzero(chosen)
        end = self.calls.end[self.rows[at]]
        label, length = self._labels(at), np.diff(end)
        sized = self._unsized.of(self.rows[at[:-1]] + 1, self.rows[at[1:]] + 1)
        calls_per_step = _period(sized, length, similar) or _period(label, length, similar)
        return calls_per_step * _alternation(np.diff(end[::calls_per_step])) if calls_per_step else 0

    def _labels(self, at: Ints) -> NDArray[np.uint64]:
        return self._alike.of(at[:-1] + 1, at[1:] + 1)


def _period(label: NDArray[np.uint64], length: Ints, similar: float) -> int:
    """Return the number of intervals after which their contents repeat, 0 if they do not."""
    _, number, count = np.unique(label, return_inverse=True, return_counts=True)
    usual = int(count.argmax())
    in_usual = length[number == usual].sum()
    if count[usual] >= similar * len(label) and in_usual >= _MIN_SIMILAR_TIME * length.sum():
        return 1
    longest = min(_MAX_PERIOD, len(label) // MIN_INSTANCES)
    periods = (
        lag for lag in range(2, longest + 1) if np.mean(label[lag:] == label[:-lag]) >= _MIN_REPEATED_SHARE
    )
    return next(periods, 0)


def _alternation(length: Ints) -> int:
    """Return the number of equal intervals after which their lengths repeat, 1 if these do not alternate."""
    spread = float(np.var(length))
    for period in _ALTERNATION_PERIODS:
        whole = length[: len(length) // period * period].reshape(-1, period).astype(float)
        if len(whole) < MIN_INSTANCES:
            break
        means = whole.mean(axis=0)
        if (
            spread
            and float(np.var(means)) >= _MIN_EXPLAINED_SHARE * spread
            and means.max() > _MIN_TIME_RATIO * means.min()
        ):
            return period
    return 1


def _shared_sequence(calls: _Begun) -> tuple[_Sequence, Ints]:
    """Return the sequence of the calls that all ranks join, and the kind of each."""
    rows = np.flatnonzero(calls.shared)
    _, kind = numbered_rows(calls.name[rows], calls.size[rows])
    return _Sequence(calls, rows, kind), kind


def _sequence_of_rank(calls: _Begun) -> _Sequence:
    """Return the sequence of all calls of a rank."""
    return _Sequence(calls, np.arange(len(calls)), calls.own)


@computed_once
def mpi_step_candidates(timeline: Timeline) -> tuple[MpiStep, ...]:
    """Return the possible steps that calls of MPI mark, the best first.

    The best has the shortest period. Among equal candidates, synchronizing calls come first, then the last
    call.
    """
    candidates = [*_joined_candidates(timeline, _communication_begins(timeline))]
    if not any(step.regular for step in candidates):
        candidates += _own_candidate(timeline)
    if not candidates:
        return ()
    shortest = min((step.length / step.instances for step in candidates if step.regular), default=0.0)

    def order(step: MpiStep) -> tuple[bool, bool, bool, float]:
        equal = step.length / step.instances <= _MAX_EQUAL_RATIO * shortest
        return (
            not step.regular,
            not equal,
            not step.waiting,
            -step.last if equal else step.length / step.instances,
        )

    return tuple(sorted(candidates, key=order))


def _joined_candidates(timeline: Timeline, begun: _Begun) -> Iterator[MpiStep]:
    sequence, kind = _shared_sequence(begun)
    calls = sequence.calls.take(sequence.rows)
    count = np.bincount(kind)
    for number in np.argsort(-count, kind="stable")[:_MAX_KINDS].tolist():
        if count[number] <= MIN_INSTANCES:
            break
        in_kind = kind == number
        first = int(np.argmax(in_kind))
        same_name = calls.name == calls.name[first]
        sized = bool(np.any(same_name & ~in_kind))
        call = timeline.strings[calls.name[first]]
        size = f":{calls.size[first]}" if sized else ""
        waiting = timeline.strings[calls.op[first]] in WAITING
        calls_per_step = sequence.period(in_kind)
        name = f"{PREFIX}{call}{size}" + (f"/{calls_per_step}" if calls_per_step > 1 else "")
        marks = sequence.marks(in_kind, max(calls_per_step, 1))
        if len(marks.place) > 1:
            yield _candidate(name, sequence.calls, marks, regular=calls_per_step > 0, waiting=waiting)


def _candidate(name: str, calls: _Begun, marks: _Marks, *, regular: bool, waiting: bool) -> MpiStep:
    end = calls.end[marks.place]
    instances = len(end) - 1
    regular = regular and instances >= MIN_INSTANCES
    return MpiStep(name, instances, int(end[-1] - end[0]), regular, waiting, int(end[-1]))


def _own_candidate(timeline: Timeline) -> list[MpiStep]:
    calls = _communication_begins(timeline)
    return [
        _candidate(name, calls, marks, regular=True, waiting=False)
        for name, marks in _own_marks(timeline).items()
    ]


@computed_once
def _own_marks(timeline: Timeline) -> dict[str, _Marks]:
    """Return the marks of the sequence that a rank repeats, and of a longer loop around it, by name."""
    calls = _communication_begins(timeline)
    marks, loop = _repeated_marks(calls), _repeated_marks(calls, _MIN_REPEATED_SHARE)
    by_name = {OWN_SEQUENCE: marks} if marks else {}
    return by_name | ({OWN_LOOP: loop} if marks and loop and len(loop.place) < len(marks.place) else {})


def _repeated_marks(calls: _Begun, similar: float = _MIN_SIMILAR_SHARE) -> _Marks | None:
    """Return the calls that mark the repeated sequence of a rank; None if it does not repeat any.

    The last of the kinds of calls with the shortest period is taken.
    """
    sequence, kind = _sequence_of_rank(calls), calls.own
    count = np.bincount(kind)
    best: tuple[float, _Marks] | None = None
    last = calls.end
    for number in np.argsort(-count, kind="stable")[:_MAX_KINDS].tolist():
        in_kind = kind == number
        calls_per_step = sequence.period(in_kind, similar) if count[number] > MIN_INSTANCES else 0
        if not calls_per_step:
            continue
        marks = sequence.marks(in_kind, calls_per_step)
        if len(marks.place) <= MIN_INSTANCES:
            continue
        end = last[marks.place]
        length = float(end[-1] - end[0]) / (len(end) - 1)
        longer = best is not None and length > _MAX_EQUAL_RATIO * best[0]
        earlier = (
            best is not None and _MAX_EQUAL_RATIO * length >= best[0] and end[-1] < last[best[1].place[-1]]
        )
        if not longer and not earlier:
            best = length, marks
    return None if best is None else best[1]


def mpi_steps(timeline: Timeline, name: str) -> tuple[Ranges, Ints]:
    """Return the steps of a name that calls of MPI mark, and their numbers; empty if there are none.

    Where all ranks join some of the calls of the name, only these count. Numbers are the same on all ranks.
    """
    marks = _marks(timeline, name)
    calls = timeline.mpi_calls
    if marks is None or len(marks.place) < 2:
        return Ranges.empty(), np.empty(0, np.int64)
    end = _communication_begins(timeline).end[marks.place]
    first = mpi_calls_in_order(timeline)[0][0]
    return unnamed_ranges(end, calls.process[first], calls.thread[first]), marks.number[:-1]


def _marks(timeline: Timeline, name: str) -> _Marks | None:
    if name in (OWN_SEQUENCE, OWN_LOOP):
        marks = _own_marks(timeline)
        return marks.get(name, marks.get(OWN_SEQUENCE))
    match = _NAME.fullmatch(name)
    calls = _communication_begins(timeline)
    if match is None or not len(calls):
        return None
    used = [number for number in set(calls.name.tolist()) if timeline.strings[number] == match["call"]]
    is_marking = np.isin(calls.name, used)
    if match["bytes"]:
        is_marking &= calls.size == int(match["bytes"])
    is_shared = calls.shared == 1
    shared = bool(np.any(is_marking & is_shared))
    sequence = _shared_sequence(calls)[0] if shared else _sequence_of_rank(calls)
    return sequence.marks(is_marking[sequence.rows], int(match["every"] or 1))


def sequence_text(timeline: Timeline, name: str) -> str:
    """Return the calls of a typical step of a name, such as ``2 x MPI_Irecv, MPI_Waitall``."""
    marks, calls = _marks(timeline, name), main_thread_calls(timeline)
    if marks is None or len(marks.place) < 2:
        return ""
    end = _communication_begins(timeline).end[marks.place]
    bounds = np.searchsorted(calls.start, end)
    counts = np.diff(bounds)
    typical = int(np.argsort(counts, kind="stable")[len(counts) // 2])
    names = timeline.names(calls.name[bounds[typical] : bounds[typical + 1]])
    parts: list[list[str | int]] = []
    for text in names:
        if parts and parts[-1][0] == text:
            parts[-1][1] = int(parts[-1][1]) + 1
        else:
            parts.append([text or "?", 1])
    texts = [f"{count} x {text}" if count != 1 else str(text) for text, count in parts[:_MAX_NAMED_CALLS]]
    return ", ".join(texts) + (", …" if len(parts) > _MAX_NAMED_CALLS else "")
