"""The operations of each stream, and the calls that launched them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.joins import launch_pairs
from hpcprof.profiles.columns.ordering import by_time, split
from hpcprof.profiles.timeline import Ints, Table, Timeline

NEVER = int(np.iinfo(np.int64).max)
"""When the launch call began that was not recorded."""


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


@computed_once
def streams(timeline: Timeline) -> list[tuple[int, int, Ints]]:
    """Return device, stream and the rows of its operations by start, then end, for every stream."""
    place = timeline.columns_of_operations(_Place)
    parts = split(place.device, place.stream)
    del place  # Not all columns of all operations at a time.
    extent = timeline.columns_of_operations(Extent)
    found = []
    for (device, stream), rows in parts:
        order = by_time(extent.start[rows], extent.end[rows])
        found.append((device, stream, rows[order]))
    return found


@computed_once
def launch_starts(timeline: Timeline) -> Ints:
    """Return when the call began that launched each operation, the first of several; else `NEVER`."""
    operation, call = launch_pairs(timeline)
    begun = timeline.calls.start[call]
    if np.any(operation[1:] == operation[:-1]):
        # The last assignment counts: that of the first call.
        order = np.argsort(begun, kind="stable")[::-1]
        operation, begun = operation[order], begun[order]
    result = np.full(timeline.operation_count, NEVER)
    result[operation] = begun
    return result
