"""What each thread of the host does at a moment: the innermost range and the outermost call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcprof.analysis.steps.range_tree import NO_PARENT, parents
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.analysis.steps.streams import NO_CALL
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.intervals import outermost
from hpcprof.profiles.columns.unique import rows_by_key
from hpcprof.profiles.timeline import NO_NAME, ApiCalls, Ints, Ranges, Timeline

NONE = NO_CALL
"""Stands for no row and for no thread."""

Thread = tuple[int, int]
"""The process and the thread."""


def at(column: Ints, rows: Ints) -> Ints:
    """Return the values of a column in some rows, 0 for the row `NONE`; a large column is not copied."""
    known = rows != NONE
    result = np.zeros(len(rows), np.int64)
    result[known] = column[rows[known]]
    return result


@dataclass(frozen=True)
class StepFunction:
    """A value for each moment: ``value[i]`` holds from ``time[i]`` on, and `NONE` before the first."""

    time: Ints
    value: Ints

    def at(self, moment: Ints) -> Ints:
        """Return the value at each moment, shape (n,)."""
        values: Ints = np.append(NONE, self.value)[np.searchsorted(self.time, moment, side="right")]
        return values

    def changes_inside(self, start: Ints, end: Ints) -> Ints:
        """Return the moments inside disjoint intervals, sorted by start, at which the value changes."""
        interval = np.searchsorted(start, self.time) - 1
        inside = (interval >= 0) & (self.time < np.append(end, 0)[interval])
        found: Ints = self.time[inside]
        return found


@dataclass(frozen=True)
class Host:
    """The threads of a timeline.

    Attributes
    ----------
    calls : ApiCalls
        The calls of the timeline.
    threads : list of Thread
        The threads that make calls; their numbers are the indices.
    rows : list of ndarray of int64
        The rows of the calls of each thread.
    marking : Thread
        The thread that marks the steps.
    """

    calls: ApiCalls
    threads: list[Thread]
    rows: list[Ints]
    marking: Thread

    def of_calls(self, rows: Ints) -> Ints:
        """Return the number of the thread of each call, `NONE` for the row `NONE`."""
        result = np.full(len(rows), NONE)
        process, thread = at(self.calls.process, rows), at(self.calls.thread, rows)
        for number, (one, other) in enumerate(self.threads):
            result[(process == one) & (thread == other) & (rows != NONE)] = number
        return result

    def calls_touching(self, thread: int, start: Ints, end: Ints) -> ApiCalls:
        """Return the calls of a thread that touch disjoint intervals, sorted by start.

        Calls inside other calls are left out, so that the calls that are left do not overlap.
        """
        calls, rows = self.calls, self.rows[thread]
        touching = np.searchsorted(start, calls.end[rows], side="right") > np.searchsorted(
            end, calls.start[rows]
        )
        rows = rows[touching]
        return calls.take(rows[outermost(calls.start[rows], calls.end[rows])])


@computed_once
def host(timeline: Timeline) -> Host:
    """Return the threads of a timeline that has steps."""
    calls = timeline.calls
    found = rows_by_key(calls.process, calls.thread)
    step = int(steps_of(timeline).rows[0])
    marking = int(timeline.ranges.process[step]), int(timeline.ranges.thread[step])
    threads = [(process, thread) for (process, thread), _ in found]
    return Host(calls, threads, [rows for _, rows in found], marking)


@computed_once
def innermost_ranges(timeline: Timeline) -> dict[Thread, StepFunction]:
    """Return, for each thread, the name of its innermost range at each moment.

    Only ranges that the program itself marked count, not those of libraries, which have a domain.
    """
    ranges = timeline.ranges
    own = ranges.take((ranges.domain == NO_NAME) & (ranges.one_thread == 1))
    return {
        (process, thread): innermost(own.take(rows))
        for (process, thread), rows in rows_by_key(own.process, own.thread)
    }


def innermost(ranges: Ranges) -> StepFunction:
    """Return the name of the innermost of the ranges of one thread at each moment."""
    above = parents(ranges)
    outside = np.where(above == NO_PARENT, NO_NAME, ranges.name[above])
    time = np.concatenate((ranges.start, ranges.end))
    value = np.concatenate((ranges.name, outside))
    # Of changes at one moment the last counts: a range ends before the next begins, the longest first.
    length = ranges.end - ranges.start
    order = np.lexsort((np.concatenate((-length, length)), np.repeat([1, 0], len(ranges)), time))
    return StepFunction(time[order], value[order])


def executed(calls: ApiCalls) -> StepFunction:
    """Return the row in ``calls``, which do not overlap, of the call that is executed at each moment."""
    rows = np.arange(len(calls))
    time = np.column_stack((calls.start, calls.end)).ravel()
    return StepFunction(time, np.column_stack((rows, np.full(len(rows), NONE))).ravel())


def divided(functions: Sequence[StepFunction], start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Divide disjoint intervals, sorted by start, where a function changes: the interval, start and end."""
    moments = np.sort(np.concatenate([one.changes_inside(start, end) for one in functions]))
    low = np.searchsorted(moments, start, side="right")
    count = np.searchsorted(moments, end) - low + 1
    owner = np.repeat(np.arange(len(start)), count)
    first = np.cumsum(count) - count
    # The moments inside an interval end its parts but the last, and begin its parts but the first.
    begin, finish = np.empty(len(owner), np.int64), np.empty(len(owner), np.int64)
    inner = np.ones(len(owner), bool)
    inner[first] = False
    begin[first], begin[inner] = start, moments
    finish[first + count - 1], finish[np.roll(inner, -1)] = end, moments
    return owner, begin, finish
