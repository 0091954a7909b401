"""The operations of each stream, and the calls that launched them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcprof.analysis.joins import pair_keys
from hpcprof.timeline import NO_CORRELATION, NO_PROCESS, ApiCalls, Ints, Operations

NO_CALL = -1


def streams(operations: Operations) -> Iterator[tuple[int, int, Ints]]:
    """Yield device, stream and the rows of its operations by start, then end, for every stream."""
    order = np.lexsort((operations.end, operations.start, operations.stream, operations.device))
    device, stream = operations.device[order], operations.stream[order]
    changes = (device[1:] != device[:-1]) | (stream[1:] != stream[:-1])
    for rows in np.split(order, np.flatnonzero(changes) + 1):
        if len(rows):
            yield int(operations.device[rows[0]]), int(operations.stream[rows[0]]), rows


def launch_calls(operations: Operations, calls: ApiCalls) -> Ints:
    """Return the row of the call that launched each operation, the first of several; else `NO_CALL`."""
    of_operation, of_call = pair_keys(
        (operations.process, operations.correlation), (calls.process, calls.correlation)
    )
    order = np.lexsort((calls.start, of_call))
    place = np.searchsorted(of_call[order], of_operation)
    # One more key, which no operation has, stands behind the last.
    found = np.append(of_call[order], -1)[place] == of_operation
    identified = (operations.process != NO_PROCESS) & (operations.correlation != NO_CORRELATION)
    return np.where(found & identified, np.append(order, NO_CALL)[place], NO_CALL)
