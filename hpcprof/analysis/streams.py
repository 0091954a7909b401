"""The operations of each stream, and the calls that launched them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcprof.analysis.joins import launch_pairs
from hpcprof.analysis.once import once
from hpcprof.timeline import Ints, Table, Timeline

NO_CALL = -1


@dataclass(frozen=True)
class _Placed(Table):
    """When and where an operation runs."""

    start: Ints
    end: Ints
    device: Ints
    stream: Ints


@once
def streams(timeline: Timeline) -> list[tuple[int, int, Ints]]:
    """Return device, stream and the rows of its operations by start, then end, for every stream."""
    operations = timeline.columns_of_operations(_Placed)
    order = np.lexsort((operations.end, operations.start, operations.stream, operations.device))
    device, stream = operations.device[order], operations.stream[order]
    changes = (device[1:] != device[:-1]) | (stream[1:] != stream[:-1])
    parts = np.split(order, np.flatnonzero(changes) + 1)
    return [(int(operations.device[p[0]]), int(operations.stream[p[0]]), p) for p in parts if len(p)]


@once
def launch_calls(timeline: Timeline) -> Ints:
    """Return the row of the call that launched each operation, the first of several; else `NO_CALL`."""
    operation, call = launch_pairs(timeline)
    result = np.full(len(timeline.kernels) + len(timeline.memops) + len(timeline.graphs), NO_CALL)
    # The last assignment counts: that of the first call.
    order = np.argsort(timeline.calls.start[call], kind="stable")[::-1]
    result[operation[order]] = call[order]
    return result
