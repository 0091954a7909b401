"""The operations of each stream, and the calls that launched them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcprof.analysis.joins import launch_pairs
from hpcprof.analysis.once import once
from hpcprof.timeline import Ints, Operations, Timeline

NO_CALL = -1


def streams(operations: Operations) -> Iterator[tuple[int, int, Ints]]:
    """Yield device, stream and the rows of its operations by start, then end, for every stream."""
    order = np.lexsort((operations.end, operations.start, operations.stream, operations.device))
    device, stream = operations.device[order], operations.stream[order]
    changes = (device[1:] != device[:-1]) | (stream[1:] != stream[:-1])
    for rows in np.split(order, np.flatnonzero(changes) + 1):
        if len(rows):
            yield int(operations.device[rows[0]]), int(operations.stream[rows[0]]), rows


@once
def launch_calls(timeline: Timeline) -> Ints:
    """Return the row of the call that launched each operation, the first of several; else `NO_CALL`."""
    operation, call = launch_pairs(timeline)
    result = np.full(len(timeline.kernels) + len(timeline.memops) + len(timeline.graphs), NO_CALL)
    # The last assignment counts: that of the first call.
    order = np.argsort(timeline.calls.start[call], kind="stable")[::-1]
    result[operation[order]] = call[order]
    return result
