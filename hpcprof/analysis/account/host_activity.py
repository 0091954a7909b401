"""Activity of host threads at a moment: the innermost range, its path as a place, and the outermost call."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from hpcprof.analysis.account.places import NONE as NONE
from hpcprof.analysis.account.places import OUTSIDE as OUTSIDE
from hpcprof.analysis.account.places import is_inside as is_inside
from hpcprof.analysis.steps.range_tree import NO_PARENT, parents
from hpcprof.analysis.steps.step_detection import rows_named
from hpcprof.analysis.steps.step_ranges import shown_name, steps_of
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.intervals import outermost
from hpcprof.profiles.columns.ordering import as_of, ascends
from hpcprof.profiles.columns.unique import in_ranges, numbered_rows, rows_by_key
from hpcprof.profiles.timeline import AFTER_ALL, NO_NAME, ApiCalls, Ints, Ranges, Timeline

Thread = tuple[int, int]
"""The process and the thread."""


def at(column: Ints, rows: Ints) -> Ints:
    """Return the values of a column in some rows, 0 for the row `NONE`, without a copy of the column."""
    has_row = rows != NONE
    result = np.zeros(len(rows), np.int64)
    result[has_row] = column[rows[has_row]]
    return result


class StepFunction(msgspec.Struct, frozen=True):
    """A value for each moment: ``value[i]`` holds from ``time[i]`` on, and `NONE` before the first."""

    time: Ints
    value: Ints

    def at(self, moment: Ints) -> Ints:
        """Return the value at each moment, shape (n,)."""
        (values,) = as_of(self.time, moment, np.append(NONE, self.value))
        return values

    def or_else(self, other: "StepFunction") -> "StepFunction":
        """Return this function, with the values of another one wherever it is `NONE`."""
        time = np.sort(np.concatenate((self.time, other.time)))
        value = self.at(time)
        return StepFunction(time, np.where(value == NONE, other.at(time), value))

    def changes_inside(self, start: Ints, end: Ints) -> Ints:
        """Return the moments inside disjoint intervals, sorted by start, at which the value changes."""
        time = self.time[
            slice(*np.searchsorted(self.time, (start.min(initial=AFTER_ALL), end.max(initial=0))))
        ]
        interval = np.searchsorted(start, time) - 1
        inside = (interval >= 0) & (time < np.append(end, 0)[interval])
        return time[inside]


def marking_thread(timeline: Timeline) -> Thread:
    """Return the thread that marks the steps of a timeline that has steps."""
    ranges = steps_of(timeline).ranges
    return int(ranges.process[0]), int(ranges.thread[0])


def threads_of(calls: ApiCalls, rows: Ints) -> tuple[list[Thread], Ints]:
    """Return the threads of some calls, and the number of each call's thread, `NONE` for the row `NONE`."""
    has_row = rows != NONE
    threads, number = numbered_rows(calls.process[rows[has_row]], calls.thread[rows[has_row]])
    thread = np.full(len(rows), NONE)
    thread[has_row] = number
    return [(process, thread_number) for process, thread_number in threads.tolist()], thread


def calls_touching(calls: ApiCalls, thread: Thread, start: Ints, end: Ints) -> Ints:
    """Return the rows of the calls of a thread that touch disjoint intervals; both are sorted by start.

    Calls inside other calls are left out, so that the calls that are left do not overlap.
    """
    process, number = thread
    rows = np.flatnonzero((calls.process == process) & (calls.thread == number))
    begin = calls.start[rows]
    if not ascends(begin):
        order = np.argsort(begin, kind="stable")
        rows, begin = rows[order], begin[order]
    high = np.searchsorted(begin, end, side="right")
    del begin  # The columns of all calls take much memory.
    reach = calls.end[rows]
    np.maximum.accumulate(reach, out=reach)
    # The first call that reaches an interval contains the later ones that end before it.
    low = np.searchsorted(reach, start)
    del reach
    low = np.maximum(low, np.append(0, high[:-1]))
    rows = rows[in_ranges(low, np.maximum(high - low, 0))]
    return rows[outermost(calls.start[rows], calls.end[rows])]


@computed_once
def innermost_ranges(timeline: Timeline) -> dict[Thread, StepFunction]:
    """Return, for each thread, the name of its innermost range at each moment.

    Only ranges that the program itself marked count, not a library's, which have a domain.
    """
    ranges = timeline.ranges
    open_ranges = ranges.take((ranges.domain == NO_NAME) & (ranges.one_thread != 0))
    return {
        (process, thread): innermost(open_ranges.take(rows))
        for (process, thread), rows in rows_by_key(open_ranges.process, open_ranges.thread)
    }


def innermost(ranges: Ranges) -> StepFunction:
    """Return the name of one thread's innermost range at each moment."""
    ranges = ranges.take(ranges.end > ranges.start)
    above = parents(ranges)
    outside = np.where(above == NO_PARENT, NO_NAME, ranges.name[above])
    time = np.concatenate((ranges.start, ranges.end))
    value = np.concatenate((ranges.name, outside))
    # The last change at a moment counts: a range ends before the next begins, the longest first.
    length = ranges.end - ranges.start
    order = np.lexsort((np.concatenate((-length, length)), np.repeat([1, 0], len(ranges)), time))
    return StepFunction(time[order], value[order])


def call_at(calls: ApiCalls, rows: Ints) -> StepFunction:
    """Return the row of the call at each moment; ``rows`` are calls that do not overlap, by start."""
    time = np.column_stack((calls.start[rows], calls.end[rows])).ravel()
    # In a damaged profile a call may begin before the one before it ends.
    time = np.maximum.accumulate(time)
    return StepFunction(time, np.column_stack((rows, np.full(len(rows), NONE))).ravel())


def split_by_function(functions: Sequence[StepFunction], start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Divide disjoint intervals, sorted by start, where any function changes.

    Returns the interval, the start and the end of each piece.
    """
    moments = np.sort(np.concatenate([function.changes_inside(start, end) for function in functions]))
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


NOWHERE = StepFunction(np.empty(0, np.int64), np.empty(0, np.int64))
"""The place of a thread that has none at any moment."""


class Places(msgspec.Struct, frozen=True):
    """The place of each thread at a moment, as a number of ``texts``; `NONE` outside every range.

    A thread outside its own ranges is in the place of the thread that marks the steps.
    """

    texts: tuple[str, ...]
    threads: dict[Thread, StepFunction]
    marking: StepFunction

    def of(self, thread: Thread) -> StepFunction:
        """Return the place of a thread at each moment."""
        return self.threads.get(thread, NOWHERE).or_else(self.marking)

    def at(self, timeline: Timeline, process: Ints, thread: Ints, moment: Ints) -> Ints:
        """Return the place of each thread at its moment, shape (n,)."""
        result = np.empty(len(moment), np.int64)
        for (first, other), rows in rows_by_key(process, thread):
            result[rows] = self.of((first, other)).at(moment[rows])
        return result


def places_of(timeline: Timeline, begin: int, end: int) -> Places:
    """Return the places of the threads between two moments.

    Only ranges that the program itself marked count, not a library's, which have a domain. Executions of
    programs that mark the steps count too: between them, threads are outside. The marks of the start-up hook
    are no place.
    """
    steps = steps_of(timeline)
    ranges = timeline.ranges
    counts = ranges.domain == NO_NAME
    if steps.by_hook:
        counts &= ~rows_named(timeline, steps.name)
    elif steps.marker:
        counts[steps.rows] = True
    touching = (ranges.end >= begin) & (ranges.start <= end)
    open_ranges = ranges.take(counts & (ranges.one_thread != 0) & touching)
    above = parents(open_ranges)
    used = {text: shown_name(timeline, text) or "" for text in set(timeline.names(open_ranges.name)) if text}
    names = [used.get(text or "", "") for text in timeline.names(open_ranges.name)]
    paths = _paths(names, above, steps.name)
    texts = tuple(sorted(set(paths)))
    number = {text: i for i, text in enumerate(texts)}
    placed = replace(open_ranges, name=np.array([number[path] for path in paths], np.int64))
    threads = {
        (process, thread): innermost(placed.take(rows))
        for (process, thread), rows in rows_by_key(open_ranges.process, open_ranges.thread)
    }
    # The capture as the only step has no marking thread.
    marking = threads.get(marking_thread(timeline), NOWHERE) if len(steps) else NOWHERE
    return Places(texts, threads, marking)


def _paths(names: Sequence[str], above: Ints, step: str) -> list[str]:
    """Return the path of each range: the names from the one below the step, joined by slashes."""
    paths: dict[int, str] = {}

    def path(row: int) -> str:
        chain = []
        while row != NO_PARENT and row not in paths and row not in chain:
            chain.append(row)
            row = int(above[row])
        prefix = paths.get(row, "")
        for entry in reversed(chain):
            inside = prefix if prefix != step else ""
            prefix = names[entry] if names[entry] == step else f"{inside}/{names[entry]}".removeprefix("/")
            paths[entry] = prefix
        return prefix

    return [path(row) for row in range(len(names))]
