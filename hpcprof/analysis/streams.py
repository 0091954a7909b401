"""The operations of each stream, and the calls that launched them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcprof.analysis.joins import launch_pairs
from hpcprof.analysis.once import once
from hpcprof.numbering import numbered_rows
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
    keys, number = numbered_rows(operations.device, operations.stream)
    order = np.lexsort((operations.end, operations.start, number))
    parts = np.split(order, np.cumsum(np.bincount(number))[:-1])
    return [(device, stream, part) for (device, stream), part in zip(keys.tolist(), parts, strict=False)]


@once
def launch_calls(timeline: Timeline) -> Ints:
    """Return the row of the call that launched each operation, the first of several; else `NO_CALL`."""
    operation, call = launch_pairs(timeline)
    if np.any(operation[1:] == operation[:-1]):
        # The last assignment counts: that of the first call.
        order = np.argsort(timeline.calls.start[call], kind="stable")[::-1]
        operation, call = operation[order], call[order]
    result = np.full(timeline.operation_count, NO_CALL)
    result[operation] = call
    return result
