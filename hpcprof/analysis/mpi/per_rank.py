"""The MPI calls, messages and collectives of a rank, and the steps and phases around them."""

from functools import partial

import numpy as np

from hpcprof.analysis.account.host_activity import innermost_ranges
from hpcprof.analysis.framework.outcome import Outcome, Values, none_in
from hpcprof.analysis.steps.mpi_steps import mpi_calls_in_order
from hpcprof.analysis.steps.phases import phases_of
from hpcprof.analysis.steps.step_ranges import shown_name, steps_of
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.profiles.columns.unique import numbered, object_array, rows_by_key
from hpcprof.profiles.timeline import NO_NAME, NO_WAIT, Ints, Timeline

NO_CALL = -1
"""Stands for the call that ends an operation, if the profile lacks it."""


def mpi_call_list(timeline: Timeline) -> Outcome:
    """List the calls by thread and start.

    ``range`` is the innermost range when the call begins, and ``range_before`` the one in the middle of the
    time since the call before it.
    """
    rows, thread = mpi_calls_in_order(timeline)
    if not len(rows):
        return none_in(timeline, "MPI calls")
    calls = timeline.mpi_calls.take(rows)
    before = np.append(calls.start[:1], calls.end[:-1])
    first = np.flatnonzero(np.diff(thread, prepend=-1))
    before[first] = calls.start[first]
    at_start, between = np.full(len(rows), NO_NAME), np.full(len(rows), NO_NAME)
    ranges = innermost_ranges(timeline)
    for key, places in rows_by_key(calls.process, calls.thread):
        function = ranges.get((key[0], key[1]))
        if function is not None:
            start = calls.start[places]
            at_start[places] = function.at(start)
            between[places] = function.at(before[places] + (start - before[places]) // 2)
    return Outcome(
        {
            "thread": thread,
            "call": _texts(timeline, calls.name),
            "range": _texts(timeline, at_start, ranges=True),
            "range_before": _texts(timeline, between, ranges=True),
            "start_ns": calls.start,
            "end_ns": np.maximum(calls.start, calls.end),
        }
    )


def _texts(timeline: Timeline, ids: Ints, *, ranges: bool = False) -> list[str | None]:
    used, number = numbered(ids)
    names = timeline.names(used)
    if ranges:
        names = [shown_name(timeline, name) for name in names]
    texts: list[str | None] = object_array(names)[number].tolist()
    return texts


def mpi_operation_list(timeline: Timeline) -> Outcome:
    """List the messages and collectives by the call that begins them.

    ``begin_call`` and ``end_call`` are positions in `mpi_call_list`; the second is `NO_CALL` where the
    profile does not have the call in which the operation ends.
    """
    if not len(timeline.mpi_calls):
        return none_in(timeline, "MPI calls")
    rows, _ = mpi_calls_in_order(timeline)
    calls, operations = timeline.mpi_calls.take(rows), timeline.mpi_operations
    begin, end = np.full(len(operations), NO_CALL), np.full(len(operations), NO_CALL)
    calls_of_thread = dict(rows_by_key(calls.process, calls.thread))
    for key, places in rows_by_key(operations.process, operations.thread):
        index = calls_of_thread.get(key)
        if index is not None:
            begin[places] = _positions(index, calls.start[index], operations.start[places])
            end[places] = _positions(index, np.maximum.accumulate(calls.end[index]), operations.end[places])
    end[operations.wait_ns == NO_WAIT] = NO_CALL
    begun_rows = np.flatnonzero(begin != NO_CALL)
    begun_rows = begun_rows[np.argsort(begin[begun_rows], kind="stable")]
    if not len(begun_rows):
        return none_in(timeline, "messages and collectives of MPI")
    begun = operations.take(begun_rows)
    return Outcome(
        {
            "op": _texts(timeline, begun.operation),
            "comm_id": _texts(timeline, begun.communicator),
            **{"comm_ranks": begun.ranks, "peer": begun.peer, "comm_peer": begun.comm_peer},
            **{"root": begun.root, "tag": begun.tag},
            **{"bytes": begun.bytes, "received_bytes": begun.received_bytes},
            **{"begin_call": begin[begun_rows], "end_call": end[begun_rows]},
        }
    )


def _positions(places: Ints, stamps: Ints, wanted: Ints) -> Ints:
    """Return the place with exactly each wanted stamp, of ascending stamps; `NO_CALL` without one."""
    at = np.minimum(np.searchsorted(stamps, wanted), len(stamps) - 1)
    return np.where(stamps[at] == wanted, places[at], NO_CALL)


def mpi_regions(timeline: Timeline) -> Outcome:
    """List the intervals of the steps (scope ``step``) and of their phases (scope ``phase``)."""
    if not len(timeline.mpi_calls):
        return none_in(timeline, "MPI calls")
    regions = regions_of(timeline)
    return Outcome(regions) if regions else none_in(timeline, "steps")


def regions_of(timeline: Timeline) -> dict[str, Values]:
    """Return the columns of `mpi_regions`; empty without steps."""
    steps = steps_of(timeline)
    if not len(steps):
        return {}
    times = step_intervals(timeline)
    _, rows = phases_of(timeline, steps)
    phases = timeline.ranges.take(rows)
    text_of = partial(shown_name, timeline)
    return {
        "scope": ["step"] * len(steps) + ["phase"] * len(rows),
        "name": [steps.name] * len(steps) + [text_of(name) for name in timeline.names(phases.name)],
        "start_ns": np.append(times.start, phases.start),
        "end_ns": np.append(times.end, np.maximum(phases.start, phases.end)),
    }
