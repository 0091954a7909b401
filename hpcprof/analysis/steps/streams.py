"""The operations of each stream, and when they were launched."""

import numpy as np

from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.joins import launch_pairs
from hpcprof.profiles.columns.ordering import by_time
from hpcprof.profiles.columns.unique import rows_by_key
from hpcprof.profiles.timeline import Ints, Timeline

NEVER = int(np.iinfo(np.int64).max)
"""Stands for the start of a launch call that was not recorded."""

NO_CALL = -1
"""Stands for the row of a launch call that was not recorded."""


@computed_once
def streams(timeline: Timeline) -> list[tuple[int, int, Ints]]:
    """Return the device, the stream and the rows of the operations, by start and end, of each stream."""
    # Columns of all operations take much memory: places are freed before times are read.
    parts = rows_by_key(*timeline.of_operations("device", "stream"))
    start, end = timeline.of_operations("start", "end")
    return [(device, stream, rows[by_time(start[rows], end[rows])]) for (device, stream), rows in parts]


def why_no_launches(timeline: Timeline) -> str:
    """Return the reason why no operation has a recorded launch call; empty if one has."""
    file = timeline.origin.path.name
    if not timeline.operation_count:
        return f"no CUDA kernels or memory operations in {file}"
    if np.all(launch_calls(timeline) == NO_CALL):
        return f"no operation of {file} has a recorded launch call"
    return ""


def launch_starts(timeline: Timeline) -> Ints:
    """Return the start of the first launch call of each operation, or `NEVER` if none was recorded."""
    call = launch_calls(timeline)
    result = np.full(len(call), NEVER)
    launched = call != NO_CALL
    result[launched] = timeline.calls.start[call[launched]]
    return result


@computed_once
def launch_calls(timeline: Timeline) -> Ints:
    """Return the row of the first call that launched each operation, or `NO_CALL` if none was recorded."""
    operation, call = launch_pairs(timeline)
    if np.any(operation[1:] == operation[:-1]):
        # The last assignment wins, so the first call comes last.
        order = np.argsort(timeline.calls.start[call], kind="stable")[::-1]
        operation, call = operation[order], call[order]
    result = np.full(timeline.operation_count, NO_CALL)
    result[operation] = call
    return result
