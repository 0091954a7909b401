"""Why the GPU is idle: what the next operation waits for, nanosecond by nanosecond."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

import numpy as np
import pandas as pd

from hpcprof.analysis.explain.host_activity import (
    NONE,
    StepFunction,
    at,
    divided,
    executed,
    host,
    innermost_ranges,
)
from hpcprof.analysis.explain.step_account import busy_time, nothing_ran
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.text_columns import number_texts, text_column
from hpcprof.analysis.operators.host_time import measured_on_host
from hpcprof.analysis.steps.step_ranges import no_steps, shown_name
from hpcprof.analysis.steps.streams import launch_calls
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.analysis.summaries.api_calls import without_version
from hpcprof.profiles.columns.intervals import Intervals, difference, union
from hpcprof.profiles.columns.unique import numbered, numbered_rows
from hpcprof.profiles.timeline import ApiCalls, Category, Ints, Table, Timeline, concatenate


class Cause(IntEnum):
    """What the next operation waits for while the GPU is idle.

    ``HOST``: the thread that launches it does something else. ``SYNC``: that thread was blocked until the
    GPU had no more work, so it had launched nothing ahead. ``ALLOCATION``: it allocates or frees memory.
    ``COPY``: it is, or was, in a copy that blocks it. ``LAUNCH``: the operation was launched in time, and
    starts late. ``DEPENDENCY``: it was launched in time, and the last operation before it ran on another
    stream. ``UNKNOWN``: its launch was not recorded.
    """

    HOST = 0
    SYNC = 1
    ALLOCATION = 2
    COPY = 3
    LAUNCH = 4
    DEPENDENCY = 5
    UNKNOWN = 6


_BLOCKING = (
    (re.compile(r"(Malloc|Alloc|Free)(FromPool)?Async"), Cause.HOST),
    (re.compile(r"Malloc|Alloc|Free|Host(Unr|R)egister|MemCreate|Mem(Unm|M)ap"), Cause.ALLOCATION),
    (re.compile(r"Synchronize"), Cause.SYNC),
    (re.compile(r"Mem(cpy|set)"), Cause.COPY),
)
"""What holds a thread up that is in a call while the GPU becomes idle; the first part of a name that fits."""

_LAG_NS = 10_000
"""The time from a launch call to the start of the operation, where no operation shows it."""


@dataclass(frozen=True)
class _Gaps(Table):
    """The intervals inside steps in which no GPU of the process works.

    ``operation`` is the row of the next operation, ``call`` that of its launch call and ``before`` that of
    the operation that ended last; `NONE` if there is none.
    """

    start: Ints
    end: Ints
    operation: Ints
    call: Ints
    before: Ints


@dataclass(frozen=True)
class _Pieces(Table):
    """Parts of gaps that have one cause; ``range`` and ``api`` are ids of names."""

    gap: Ints
    length: Ints
    cause: Ints
    range: Ints
    api: Ints


@dataclass(frozen=True)
class _Times(Table):
    """The start and end of operations, and where they run."""

    start: Ints
    end: Ints
    device: Ints
    stream: Ints
    category: Ints


def idle_causes(timeline: Timeline) -> Outcome:
    """Divide the idle time of the steps by what the next operation was waiting for.

    ``idle_ns_per_step`` is the mean over the steps, and ``gaps`` how many gaps have the cause. ``range`` is
    the innermost range of the thread that launches the operation, else of the thread that marks the steps;
    ``api`` is the call in which the launching thread is. Until its launch call begins, an operation waits for
    the host, and then for the launch.

    Without work on a GPU, time is idle in which no operator is executed and no collective runs. Its cause is
    ``host``, and ``range`` that of the thread that marks the steps.
    """
    file = timeline.origin.path.name
    times = step_intervals(timeline)
    if not len(times.start):
        return no_rows(no_steps(timeline))
    on_host = measured_on_host(timeline)
    if not timeline.operation_count and not on_host:
        return no_rows(nothing_ran(timeline))
    idle = difference(union(times.start, times.end), busy_time(timeline).busy)
    if not len(idle[0]):
        return no_rows(f"the {'host' if on_host else 'GPU'} is never idle in the steps of {file}")
    pieces = _between_operators(timeline, idle) if on_host else _explained(timeline, idle)
    return Outcome(_table(timeline, pieces, len(times.start)))


def _table(timeline: Timeline, pieces: _Pieces, steps: int) -> pd.DataFrame:
    calls, call = number_texts(timeline, pieces.api, without_version)
    ranges, inside = number_texts(timeline, pieces.range, partial(shown_name, timeline))
    kinds, kind = numbered_rows(pieces.cause, inside, call)
    total = np.zeros(len(kinds), np.int64)
    np.add.at(total, kind, pieces.length)
    # A gap may have several pieces of a kind.
    order = np.lexsort((pieces.gap, kind))
    again = (np.diff(kind[order]) == 0) & (np.diff(pieces.gap[order]) == 0)
    table: pd.DataFrame = pd.DataFrame(
        {
            "cause": text_column(Cause(value).name.lower() for value in kinds[:, 0].tolist()),
            "range": text_column(ranges[kinds[:, 1]]),
            "api": text_column(calls[kinds[:, 2]]),
            "idle_ns_per_step": np.rint(total / steps).astype(np.int64),
            "gaps": np.bincount(kind[order][np.append(True, ~again)], minlength=len(kinds)),
        }
    )
    return table


def _between_operators(timeline: Timeline, idle: Intervals) -> _Pieces:
    """Return the pieces of gaps between the operators of the host, one for each range."""
    place = _place(timeline, NONE)
    gap, start, end = divided((place.main,), *idle)
    cause, api = np.full(len(gap), Cause.HOST), np.full(len(gap), NONE)
    return _Pieces(gap, end - start, cause.astype(np.int64), place.at(start), api)


def _explained(timeline: Timeline, idle: Intervals) -> _Pieces:
    """Return the pieces of all gaps, whose lengths add up to those of the gaps."""
    operations = timeline.columns_of_operations(_Times)
    gaps = _gaps(timeline, operations, idle)
    threads = host(timeline)
    # Without a next operation, the GPU waits for the host until the end of the steps.
    launched = np.where(gaps.operation == NONE, gaps.end, at(timeline.calls.start, gaps.call))
    launched = np.clip(launched, gaps.start, gaps.end)
    unknown = (gaps.operation != NONE) & (gaps.call == NONE)
    launched[unknown] = gaps.start[unknown]
    thread = threads.of_calls(gaps.call)
    pieces = [_of_launches(timeline, operations, gaps, launched, thread)]
    waits_for_host = launched > gaps.start
    for number in np.unique(thread[waits_for_host]).tolist():
        rows = np.flatnonzero(waits_for_host & (thread == number))
        pieces.append(_of_host(timeline, number, rows, gaps.start[rows], launched[rows]))
    return concatenate(_Pieces, pieces)


def _gaps(timeline: Timeline, operations: _Times, idle: Intervals) -> _Gaps:
    start, end = idle
    by_start = np.argsort(operations.start, kind="stable")
    operation = np.append(by_start, NONE)[np.searchsorted(operations.start[by_start], end)]
    by_end = np.argsort(operations.end, kind="stable")
    ended = np.searchsorted(operations.end[by_end], start, side="right")
    return _Gaps(
        start=start,
        end=end,
        operation=operation,
        call=np.append(launch_calls(timeline), NONE)[operation],
        before=np.append(NONE, by_end)[ended],
    )


def _of_launches(
    timeline: Timeline, operations: _Times, gaps: _Gaps, launched: Ints, thread: Ints
) -> _Pieces:
    """Return the parts of gaps after their operation was launched, and all of those of unknown launches."""
    calls = timeline.calls
    rows = np.flatnonzero(gaps.end > launched)
    one = gaps.take(rows)
    # What does not exist is 0; its value is not used.
    began = at(calls.start, one.call)
    in_call = at(calls.end, one.call) >= one.end
    other_stream = (operations.stream[one.operation] != operations.stream[one.before]) | (
        operations.device[one.operation] != operations.device[one.before]
    )
    waited = (began + _usual_lag(timeline, gaps) < one.start) & (one.before != NONE) & other_stream
    cause = np.select(
        (one.call == NONE, in_call & (operations.category[one.operation] == Category.MEM), waited),
        (Cause.UNKNOWN, Cause.COPY, Cause.DEPENDENCY),
        default=Cause.LAUNCH,
    )
    moment = np.where(one.call == NONE, one.start, began)
    return _Pieces(
        gap=rows,
        length=one.end - launched[rows],
        cause=cause.astype(np.int64),
        range=_ranges_at(timeline, thread[rows], moment),
        api=np.where(one.call == NONE, NONE, at(calls.name, one.call)),
    )


def _usual_lag(timeline: Timeline, gaps: _Gaps) -> int:
    """Return the median time from a launch call to the start of its operation on an idle GPU."""
    launched = gaps.take(gaps.call != NONE)
    begun = timeline.calls.start[launched.call]
    lag = (launched.end - begun)[begun >= launched.start]
    return int(np.median(lag)) if len(lag) else _LAG_NS


def _ranges_at(timeline: Timeline, thread: Ints, moment: Ints) -> Ints:
    """Return the name of the innermost range of a thread at each moment, as `_Place` finds it."""
    result = np.empty(len(moment), np.int64)
    for number in np.unique(thread).tolist():
        rows = np.flatnonzero(thread == number)
        result[rows] = _place(timeline, number).at(moment[rows])
    return result


@dataclass(frozen=True)
class _Place:
    """Where a thread is: in its innermost range, else in that of the thread that marks the steps."""

    own: StepFunction
    main: StepFunction

    def at(self, moment: Ints) -> Ints:
        own = self.own.at(moment)
        return np.where(own == NONE, self.main.at(moment), own)


def _place(timeline: Timeline, number: int) -> _Place:
    threads, ranges = host(timeline), innermost_ranges(timeline)
    nowhere = StepFunction(np.empty(0, np.int64), np.empty(0, np.int64))
    main = ranges.get(threads.marking, nowhere)
    return _Place(main if number == NONE else ranges.get(threads.threads[number], nowhere), main)


def _of_host(timeline: Timeline, number: int, gap: Ints, start: Ints, end: Ints) -> _Pieces:
    """Return what a thread does from the start of each gap until it launches the next operation.

    If the thread is in a call that holds it up when the gap begins, that call is the cause of all of it.
    """
    threads = host(timeline)
    calls = ApiCalls.empty() if number == NONE else threads.calls_touching(number, start, end)
    held = np.append(_holding(timeline, calls), Cause.HOST)
    calling, place = executed(calls), _place(timeline, number)
    call = calling.at(start)
    # The call that launches the operation does not hold it up.
    blocked = (held[call] != Cause.HOST) & (np.append(calls.end, 0)[call] <= end)
    inside = call[blocked]
    whole = _Pieces(
        gap=gap[blocked],
        length=(end - start)[blocked],
        cause=held[inside],
        range=place.at(calls.start[inside]),
        api=calls.name[inside],
    )
    owner, begin, finish = divided((calling, place.own, place.main), start[~blocked], end[~blocked])
    call = calling.at(begin)
    parts = _Pieces(
        gap=gap[~blocked][owner],
        length=finish - begin,
        cause=np.where(held[call] == Cause.ALLOCATION, Cause.ALLOCATION, Cause.HOST),
        range=place.at(begin),
        api=np.append(calls.name, NONE)[call],
    )
    return concatenate(_Pieces, (whole, parts))


def _holding(timeline: Timeline, calls: ApiCalls) -> Ints:
    """Return for each call the `Cause` of the time after it if the GPU becomes idle in it."""
    used, number = numbered(calls.name)
    kinds = [int(_cause_of(name)) for name in timeline.names(used)]
    return np.array(kinds, np.int64)[number]


def _cause_of(name: str | None) -> Cause:
    return next((cause for pattern, cause in _BLOCKING if pattern.search(name or "")), Cause.HOST)
