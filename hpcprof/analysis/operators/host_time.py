"""Host time in operators: computing, communicating, or with idle threads."""

import re

import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, columns_of, none_in
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.collective_operations import communicates
from hpcprof.profiles.columns.intervals import Intervals, coverage, difference, length, union, union_of
from hpcprof.profiles.columns.unique import name_matches, rows_by_key
from hpcprof.profiles.losses import LossKind
from hpcprof.profiles.timeline import Collectives, Ints, Operators, Ranges, Timeline

_DEVICE_CALL = re.compile(r"(?:cuda|cu|hip)\w*Launch|(?:cuda|hip)Memcpy")

_LOADING = re.compile(r"enumerate\(Data(?:Loader|Pipe)\)#|.*dataloader_next$")
"""Ranges in which PyTorch or Lightning takes the next batch: samples are loaded and augmented there."""


@computed_once
def uses_device(timeline: Timeline) -> bool:
    """Return whether a program used a device without any recorded work."""
    # A lost category of events may be the work of a device.
    devices = any(loss.kind is LossKind.CATEGORY for loss in timeline.origin.losses)
    return not timeline.operation_count and (
        devices or bool(name_matches(timeline, timeline.calls.name, _DEVICE_CALL.match).any())
    )


def measured_on_host(timeline: Timeline) -> bool:
    """Return whether the program used no GPU and its operators were recorded."""
    return not timeline.operation_count and len(timeline.operators) > 0 and not uses_device(timeline)


@computed_once
def host_compute(timeline: Timeline) -> Intervals:
    """Return the times in which a thread executes an operator that neither communicates nor loads a batch."""
    table, ranges = timeline.operators, timeline.ranges
    loading = ranges.take(np.flatnonzero(name_matches(timeline, ranges.name, _LOADING.match)))
    loads = {
        key: _open_times(loading.take(rows)) for key, rows in rows_by_key(loading.process, loading.thread)
    }
    communicating = name_matches(timeline, table.name, communicates)
    parts = [_open_times(table.take(slice(0)))]  # empty, for a program without threads that compute
    for key, rows in _computing_threads(timeline):
        computing, other = rows[~communicating[rows]], rows[communicating[rows]]
        # Operators are nested: one that communicates is often inside one that does not.
        part = difference(_open_times(table.take(computing)), _open_times(table.take(other)))
        parts.append(difference(part, loads[key]) if key in loads else part)
    return union_of(*parts)


@computed_once
def _computing_threads(timeline: Timeline) -> list[tuple[tuple[int, ...], Ints]]:
    """Return process, thread and the rows of the operators of each thread that computes.

    The threads of a ``ProcessGroup`` of PyTorch only execute operators within its collectives.
    """
    table, collectives = timeline.operators, timeline.host_collectives
    collective_rows = dict(rows_by_key(collectives.process, collectives.thread))
    computing_threads = []
    for key, rows in rows_by_key(table.process, table.thread):
        inner = collectives.take(collective_rows.get(key, np.empty(0, np.int64)))
        outside = difference(_open_times(table.take(rows)), _open_times(inner))
        if len(outside[0]):
            computing_threads.append((key, rows))
    return computing_threads


@computed_once
def host_communication(timeline: Timeline) -> Intervals:
    """Return the times in which a collective runs that the host carries out."""
    return _open_times(timeline.host_collectives)


def idle_threads(timeline: Timeline) -> Outcome:
    """Return the time in which each thread with operators executes none of them.

    ``span_ns`` is the wall time of all steps or, in a profile without steps, the time from the start of the
    first operator to the end of the last one. Threads that only carry out collectives are left out.
    """
    table = timeline.operators
    threads = _computing_threads(timeline)
    if not threads:
        return none_in(timeline, "operators")
    steps = step_intervals(timeline)
    start, end = union(steps.start, steps.end)
    if not len(start):
        start, end = np.array([table.start.min()]), np.array([table.end.max()])
    span = length(start, end)
    rows: list[dict[str, int | float | None]] = []
    for (process, thread), rows_of_thread in threads:
        busy = int(coverage(start, end, _open_times(table.take(rows_of_thread))).sum())
        rows.append(
            {
                "pid": process,
                "tid": thread,
                "operators": len(rows_of_thread),
                "span_ns": span,
                "busy_ns": busy,
                "idle_ns": span - busy,
                "idle_pct": round(100 * (span - busy) / span, 2) if span else None,
            }
        )
    return Outcome(columns_of(rows))


def _open_times(table: Operators | Collectives | Ranges) -> Intervals:
    """Return the times in which any row of a table is open."""
    return union(table.start, table.end)
