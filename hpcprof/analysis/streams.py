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
class Extent(Table):
    """When an operation runs."""

    start: Ints
    end: Ints


@dataclass(frozen=True)
class _Place(Table):
    """Where an operation runs."""

    device: Ints
    stream: Ints


@once
def streams(timeline: Timeline) -> list[tuple[int, int, Ints]]:
    """Return device, stream and the rows of its operations by start, then end, for every stream."""
    place = timeline.columns_of_operations(_Place)
    keys, number = numbered_rows(place.device, place.stream)
    del place  # Not all columns of all operations at a time.
    extent = timeline.columns_of_operations(Extent)
    order = np.lexsort((extent.end, extent.start, number))
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
