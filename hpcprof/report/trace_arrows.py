"""The arrows of an exported trace, which viewers draw between events: flow events of the Trace Event Format.

Those within a rank have the names and categories of PyTorch's traces: ``ac2g`` leads from a call to the work
that it launches, ``fwdbwd`` from an operator to the one that computes its gradient.
"""

from collections.abc import Iterator

import numpy as np

from hpcprof.analysis.steps.streams import NO_CALL, launch_calls
from hpcprof.profiles.timeline import (
    NO_LINK,
    NO_WAIT,
    Ints,
    Mask,
    MpiCalls,
    MpiOperations,
    Ranges,
    Style,
    Timeline,
)
from hpcprof.results.store.run_communication import Carrier, RankCommunication

_IDS_PER_RANK = 1 << 32
"""Viewers tell arrows apart by their ids, so each rank has its own; doubles hold those of 2 million ranks."""


def arrows(timeline: Timeline, rank: int, zero: int, track: Ints) -> Iterator[str]:
    """Yield the ends of all arrows of a rank, one JSON object each.

    ``zero`` is the time that is 0 in the trace, and ``track`` the track of each of ``timeline.operations()``.
    """
    calls, (start,) = timeline.calls, timeline.of_operations("start")
    call, operation = launches(timeline)
    ends = (calls.start[call], calls.thread[call], start[operation], track[operation])
    yield from _draw_arrows("ac2g", rank, zero, *ends)
    operators = timeline.operators
    forward, backward = gradients(timeline)
    ends = (
        operators.start[forward],
        operators.thread[forward],
        operators.start[backward],
        operators.thread[backward],
    )
    yield from _draw_arrows("fwdbwd", rank, zero, *ends)


def message_arrows(
    flows: RankCommunication, rank: int, zero: int, calls: MpiCalls, requests: MpiOperations, track: Ints
) -> Iterator[str]:
    """Yield this rank's ends of the arrows from sends to receives of MPI, one JSON object each.

    An arrow begins where its send does, and ends where its receive ends. ``flows`` has starts on the clock of
    the trace, and ``track`` is that of each request.
    """
    places: dict[tuple[int, int], tuple[int, int]] = {}
    for carrier, table, tracks in (
        (Carrier.MPI_CALL, calls, calls.thread),
        (Carrier.MPI_REQUEST, requests, track),
    ):
        columns = (table.start.tolist(), table.end.tolist(), tracks.tolist())
        places |= {(carrier.value, start): (end, tid) for start, end, tid in zip(*columns, strict=True)}
    columns_of_flows = (
        flows.carrier.tolist(),
        flows.start.tolist(),
        flows.way.tolist(),
        flows.number.tolist(),
    )
    for carrier, start, direction, number in zip(*columns_of_flows, strict=True):
        place = places.get((carrier, start))
        if not direction or place is None:
            continue
        time = start if direction > 0 else place[0]
        ends = '"ph":"s"' if direction > 0 else '"ph":"f","bp":"e"'
        ts = time - zero
        yield (
            f'{{{ends},"id":"message {number}","cat":"mpi","name":"message","pid":{rank},"tid":{place[1]},'
            f'"ts":{ts // 1000}.{ts % 1000:03d}}}'
        )


def launches(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the rows of the calls that launched work, and those of ``timeline.operations()``, in pairs."""
    call = launch_calls(timeline)
    operation = np.flatnonzero(call != NO_CALL)
    return call[operation], operation


def mpi_requests(timeline: Timeline) -> MpiOperations:
    """Return the operations of MPI that end in another call than the one that begins them."""
    table = timeline.mpi_operations
    return table.take((table.wait_ns != NO_WAIT) & (table.start + table.begin_ns < table.end))


def on_one_thread(ranges: Ranges) -> Mask:
    """Return a mask of the ranges that are drawn on the track of their thread, shape (n,)."""
    drawn: Mask = (ranges.style == Style.PUSH_POP) & (ranges.one_thread == 1)
    return drawn


def gradients(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the rows of operators, and those of the operators that compute their gradients, in pairs."""
    operators = timeline.operators
    # The two operators of a link follow each other, the forward one first.
    linked = np.flatnonzero(operators.link != NO_LINK)
    linked = linked[np.lexsort((operators.start[linked], operators.link[linked]))]
    pairs = np.flatnonzero(operators.link[linked][1:] == operators.link[linked][:-1])
    return linked[pairs], linked[pairs + 1]


def _draw_arrows(
    category: str, rank: int, zero: int, begin: Ints, begin_track: Ints, end: Ints, end_track: Ints
) -> Iterator[str]:
    common = f'"cat":"{category}","name":"{category}","pid":{rank}'
    columns = (begin - zero, begin_track, end - zero, end_track)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for number, (start, begin_tid, stop, end_tid) in enumerate(rows, rank * _IDS_PER_RANK):
        yield f'{{"ph":"s","id":{number},{common},"tid":{begin_tid},"ts":{start // 1000}.{start % 1000:03d}}}'
        # "bp" binds it to the event around it, not to the next one.
        yield (
            f'{{"ph":"f","bp":"e","id":{number},{common},"tid":{end_tid},'
            f'"ts":{stop // 1000}.{stop % 1000:03d}}}'
        )
