"""Synchronizations and launches of graphs, as told by the names of API calls.

Profilers do not distinguish all of them: nsys gives a wait of the host for a stream the type of an event, and
CUPTI gives a query of an event, which returns at once, the type of a wait.
"""

import re
from collections.abc import Iterable

import numpy as np

from hpcprof.profiles.columns.joins import matches, pair_keys
from hpcprof.profiles.timeline import NO_CORRELATION, ApiCalls, Ints, SyncKind

UNKNOWN = -1
"""No call is known whose name tells the kind."""
QUERY = -2
"""The call asks whether something is done and does not wait."""

# Calls of CUDA and HIP with the suffixes of versions and of the default stream: _v3020, _ptsz, _spt.
_CALL = re.compile(r"(?:cu(?:da)?|hip)(Event|Stream|Ctx|Device|Thread)(Synchronize|WaitEvent|Query)(?:_\w+)?")
# The calls that wait for an array of JAX: of Python, and of the runtime for it and for reads of values.
XLA_WAIT = re.compile(r"block_until_ready|\w*Buffer::Await")
# Unified Runtime of oneAPI 2025.2 and earlier, and of later versions.
_GRAPH_LAUNCH = re.compile(r"GraphLaunch|urCommandBufferEnqueueExp|urEnqueueCommandBufferExp")
_KINDS_BY_NAME = {
    "EventSynchronize": SyncKind.EVENT,
    "StreamWaitEvent": SyncKind.STREAM_WAIT,
    "StreamSynchronize": SyncKind.STREAM,
    "CtxSynchronize": SyncKind.DEVICE,
    "DeviceSynchronize": SyncKind.DEVICE,
    "ThreadSynchronize": SyncKind.DEVICE,
    "EventQuery": QUERY,
    "StreamQuery": QUERY,
}


def kinds_by_call(process: Ints, correlation: Ints, calls: ApiCalls, strings: Iterable[str]) -> Ints:
    """Return the kind that the name of its API call gives each synchronization, shape (n,).

    ``process`` and ``correlation``, of shape (n,), identify the call of each synchronization; ``strings`` are
    the texts of the names of the calls. The kinds are values of `SyncKind`, `QUERY` or `UNKNOWN`.
    """
    # NO_NAME is -1 and so selects the last element.
    call_kind = np.array([*map(_kind, strings), UNKNOWN], np.int8)[calls.name]
    rows = np.flatnonzero(call_kind != UNKNOWN)
    rows = rows[calls.correlation[rows] != NO_CORRELATION]
    waits, telling = pair_keys((process, correlation), (calls.process[rows], calls.correlation[rows]))
    row, match = matches(waits, telling)
    kind = np.full(len(process), UNKNOWN)
    kind[row] = call_kind[rows[match]]
    return kind


def launches_graph(name: str) -> bool:
    """Return whether the API call of this name launches a graph of CUDA, HIP or SYCL."""
    return _GRAPH_LAUNCH.search(name) is not None


def host_waits(name: str) -> bool:
    """Return whether the API call of this name makes the host wait for the GPU."""
    return _kind(name) in (SyncKind.EVENT, SyncKind.STREAM, SyncKind.DEVICE)


def waits_for_device(name: str) -> bool:
    """Return whether the API call of this name makes the host wait for all streams of a GPU."""
    return _kind(name) == SyncKind.DEVICE


def waits_for_stream(name: str) -> bool:
    """Return whether the API call of this name makes the host wait for a stream, or all of a GPU."""
    return _kind(name) in (SyncKind.STREAM, SyncKind.DEVICE)


def _kind(name: str) -> int:
    if XLA_WAIT.fullmatch(name):
        return SyncKind.EVENT
    match = _CALL.fullmatch(name)
    return _KINDS_BY_NAME.get(match[1] + match[2], UNKNOWN) if match else UNKNOWN
