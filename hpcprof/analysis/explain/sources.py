"""Source lines of the host work of a finding, from recorded stacks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np

from hpcprof.analysis.explain.explanation import Cause, Source
from hpcprof.analysis.explain.host_activity import (
    NONE,
    StepFunction,
    Thread,
    calls_touching,
    divided,
    executed,
    innermost,
    is_inside,
    marking_thread,
    places_of,
)
from hpcprof.analysis.steps.wall_time import StepTimes, step_intervals
from hpcprof.profiles.columns.unique import rows_by_key
from hpcprof.profiles.frames import NO_LINE
from hpcprof.profiles.timeline import NO_NAME, Functions, Ranges, Timeline

CALLS = {
    Cause.HOST_SYNC: re.compile(r"Synchronize|Memcpy"),
    Cause.DEVICE_ALLOCATION: re.compile(r"Malloc|Alloc|Free|MemCreate|MemMap|MemUnmap|HostRegister"),
    Cause.BLOCKING_COPY: re.compile(r"Memcpy"),
}
"""The API calls in which these causes happen; those of the others happen in any code of the host."""

NOT_OF_HOST = (
    *(Cause.LATE_RANK_GPU, Cause.EXPOSED_COMMUNICATION, Cause.PIPELINE_BUBBLE, Cause.SLOW_MATH),
    *(Cause.CONTENTION, Cause.STEP_SPIKES, Cause.STEP_DRIFT, Cause.CAPTURE_INCOMPLETE),
)
"""Causes that are no work of the host, or not at one place of it."""

MOST_RANKS = 16
"""The functions of so many ranks are looked at."""

_MOST, _LEAST_PCT = 3, 5.0

_Line = tuple[str, str, int]


def sources_of(
    cause: Cause, where: str, ranks: tuple[int, ...], timelines: Mapping[int, Timeline]
) -> tuple[Source, ...] | None:
    """Return the functions that take most of the host work of a finding, those that take most first.

    Parameters
    ----------
    where : str
        The path of its range; empty for the whole step.

    Returns
    -------
    tuple of Source or None
        None if the work is not of the host, or no stacks were recorded.
    """
    if cause in NOT_OF_HOST:
        return None
    time: Counter[_Line | None] = Counter()
    for rank in ranks:
        if rank in timelines and len(timelines[rank].functions):
            time += _time_by_line(timelines[rank], cause, where)
    return _by_function(time) or None


def _by_function(time: Mapping[_Line | None, int]) -> tuple[Source, ...]:
    """Return the functions that take most time, each with the line that takes most of it."""
    total, of_function = sum(time.values()), defaultdict[tuple[str, str], dict[int, int]](dict)
    for place, length in time.items():
        if place is not None:
            function, file, line = place
            of_function[function, file][line] = length
    sources = []
    for (function, file), lines in of_function.items():
        longest = max(lines, key=lines.__getitem__)
        share = round(100 * sum(lines.values()) / total, 1)
        sources.append(Source(file or None, None if longest == NO_LINE else longest, function, share))
    sources.sort(key=lambda source: -source.share_pct)
    return tuple(source for source in sources[:_MOST] if source.share_pct >= _LEAST_PCT)


def _time_by_line(timeline: Timeline, cause: Cause, where: str) -> Counter[_Line | None]:
    """Return the time in ns of each line in the host work of a finding; None stands for other code."""
    steps, functions = step_intervals(timeline), timeline.functions
    found: Counter[_Line | None] = Counter()
    if not len(steps.start):
        return found
    places = places_of(timeline, int(steps.start.min()), int(steps.end.max()))
    inside = np.array([*(is_inside(text, where) for text in places.texts), not where], bool)
    working = {*working_threads(timeline), marking_thread(timeline)}
    for (process, number), rows in rows_by_key(functions.process, functions.thread):
        thread = (process, number)
        if thread not in working:
            continue
        own = functions.take(rows)
        function, (place, outside) = _innermost(own), places.of(thread)
        calling = _calling(timeline, cause, thread, steps)
        _, start, end = divided([function, place, outside, calling], steps.start, steps.end)
        at = place.at(start)
        kept = inside[np.where(at == NONE, outside.at(start), at)]
        if cause in CALLS:
            kept &= calling.at(start) != NONE
        row, length = function.at(start[kept]), (end - start)[kept]
        for one in np.unique(row).tolist():
            found[_line(timeline, own, one)] += int(length[row == one].sum())
    return found


def _calling(timeline: Timeline, cause: Cause, thread: Thread, steps: StepTimes) -> StepFunction:
    """Return the call of a thread at each moment, of those in which a cause happens."""
    calls = timeline.calls
    rows = calls_touching(calls, thread, steps.start, steps.end) if cause in CALLS else np.empty(0, np.int64)
    names = timeline.names(calls.name[rows])
    happens = np.array([bool(CALLS[cause].search(name or "")) for name in names], bool)
    return executed(calls, rows[happens])


def _innermost(functions: Functions) -> StepFunction:
    """Return the row of the innermost function of a thread at each moment."""
    none = np.full(len(functions), NO_NAME)
    rows = np.arange(len(functions))
    extents = (functions.start, functions.end, functions.process, functions.thread, rows)
    return innermost(Ranges(*extents, domain=none, style=none, closed=none, one_thread=none))


def _line(timeline: Timeline, functions: Functions, row: int) -> _Line | None:
    if row == NONE:
        return None
    function, file = timeline.names(np.array([functions.function[row], functions.file[row]]))
    return function or "", file or "", int(functions.line[row])


def working_threads(timeline: Timeline) -> list[Thread]:
    """Return the threads that call the GPU or, on a CPU, operators."""
    table = timeline.calls if len(timeline.calls) else timeline.operators
    return [(process, thread) for (process, thread), _ in rows_by_key(table.process, table.thread)]
