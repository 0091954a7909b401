"""Calls, messages and collectives of MPI in an nsys export.

As exports of nsys 2023.4 show with Open MPI and MPICH (C and Fortran, whose names are those of C):
- A call that completes several requests has a row for each, with equal times. A test that completes nothing,
  a probe and a function that makes a communicator have no row.
- ``MPI_Sendrecv`` has two rows: the send, whose end is its start, then the receive.
- A partner is a rank in the communicator. A blocking receive has the rank that sent, a nonblocking one from
  any source a negative one. A message to or from ``MPI_PROC_NULL`` has neither partner nor tag.
- The size of a nonblocking receive is that of its buffer.
- The sizes of a collective count each pair of ranks (`bytes_of_rank`).
- Functions of windows and files have neither a communicator nor a size. Neighborhood collectives, and calls
  of threads other than the first, are not recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hpcprof.profiles.collective_operations import ON_WINDOWS_AND_FILES, MpiFunction, mpi_function
from hpcprof.profiles.columns.joins import latest_rows
from hpcprof.profiles.columns.unique import distinct, numbered, numbered_rows, position_in_group
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.possible_times import possible_rows
from hpcprof.profiles.readers.communicators import bytes_of_rank, ranks_in_program
from hpcprof.profiles.readers.nsys.export import (
    MISSING,
    NO_ID,
    PROCESS_SHIFT,
    REQUIRED,
    THREAD_BITS,
    NsysExport,
)
from hpcprof.profiles.readers.nsys.mpi_communicators import CommunicatorHandles
from hpcprof.profiles.readers.nsys.operations import with_odd_fields
from hpcprof.profiles.readers.string_table import StringTable, translate
from hpcprof.profiles.timeline import (
    NO_BYTES,
    NO_NAME,
    NO_PEER,
    NO_PROCESS,
    NO_ROOT,
    NO_TAG,
    NO_WAIT,
    Ints,
    Mask,
    MpiCalls,
    MpiOperations,
    Table,
    concatenate,
)

_TABLES = ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
_MESSAGE, _COLLECTIVE, _COMPLETION, _OTHER_TABLE = range(len(_TABLES))
_OBJECTS = "windows and files"
"""The communicator of functions of windows and files, which have none."""

_START = "MPI_Start"
"""The calls that start persistent requests: ``MPI_Start`` and ``MPI_Startall``."""

_COLUMNS = {
    "start": REQUIRED,
    "end": REQUIRED,
    "globalTid": NO_ID,
    "textId": NO_ID,
    "commHandle": MISSING,
    "tag": MISSING,
    "remoteRank": MISSING,
    "rootRank": MISSING,
    "size": MISSING,
    "recvSize": MISSING,
    "requestHandle": MISSING,
}
_NO_FUNCTION = MpiFunction("", nonblocking=False, persistent=False)


@dataclass(frozen=True)
class _Rows(Table):
    """Rows of the tables of MPI, each with the place of its table in `_TABLES`; `MISSING` stands for NULL."""

    start: Ints
    end: Ints
    globalTid: Ints  # noqa: N815 - the names of the columns
    textId: Ints  # noqa: N815
    commHandle: Ints  # noqa: N815
    tag: Ints
    remoteRank: Ints  # noqa: N815
    rootRank: Ints  # noqa: N815
    size: Ints
    recvSize: Ints  # noqa: N815
    requestHandle: Ints  # noqa: N815
    table: Ints

    @property
    def process(self) -> Ints:
        """The process of each row."""
        return np.where(self.globalTid == NO_ID, NO_PROCESS, self.globalTid >> PROCESS_SHIFT)


class _Functions(NamedTuple):
    """The functions of the rows: the operation that each begins, or `NO_NAME`, and its kind."""

    operation: Ints
    nonblocking: Mask
    prepares: Mask
    starts: Mask


class _Begun(NamedTuple):
    """Operations by the rows of their calls.

    ``row`` is the call that begins each operation, ``described`` the one that has its arguments, and
    ``ended`` the one in which it ends, -1 if that is unknown.
    """

    row: Ints
    described: Ints
    ended: Ints


BULK = dict.fromkeys(_TABLES, _COLUMNS)
"""The columns of the large tables."""


def read_mpi(export: NsysExport, strings: StringTable) -> tuple[MpiCalls, MpiOperations, list[Loss]]:
    """Return the calls of MPI, the operations that they carry out, and the losses.

    A nonblocking operation ends in the wait or test of its request. Requests are told by their handles, which
    MPI uses again: a handle stands for the last operation that began with it and has not ended.
    """
    rows, lost = _read(export)
    if not len(rows):
        return MpiCalls.empty(), MpiOperations.empty(), lost
    texts = export.strings(distinct(rows.textId))
    rows = _with_second_rows(rows, texts)
    functions = _functions(rows, texts, strings)
    rows, operation = _both_sides(rows, functions.operation, strings)
    begun = _begun_operations(rows, functions._replace(operation=operation))
    operations = _operations(export, rows, operation, begun, strings)
    unnamed = {"communicator": np.count_nonzero(operations.communicator == NO_NAME)}
    lost += losses(LossKind.FIELD, Subject.MPI_OPERATION, unnamed, len(operations))
    names = {i: strings.add(text) for i, text in sorted(texts.items())}
    return _calls(rows, translate(rows.textId.copy(), names)), operations, lost


def _read(export: NsysExport) -> tuple[_Rows, list[Loss]]:
    parts, lost = [_Rows.empty()], list[Loss]()
    for number, name in enumerate(_TABLES):
        table = export.table(name)
        if table is not None:
            read, odd_fields = with_odd_fields(table.read_bulk(_COLUMNS), Subject.MPI_CALL)
            columns, untimed = possible_rows(read, Subject.MPI_CALL)
            lost += [*untimed, *odd_fields]
            parts.append(_Rows(**columns, table=np.full(len(columns["start"]), number)))
    return concatenate(_Rows, parts), lost


def _functions(rows: _Rows, texts: Mapping[int, str], strings: StringTable) -> _Functions:
    ids, number = numbered(rows.textId)
    called = [texts.get(i, "") for i in ids.tolist()]
    functions = [mpi_function(name) or _NO_FUNCTION for name in called]
    operation = strings.add_all(entry.operation or None for entry in functions)[number]
    return _Functions(
        np.where((rows.table <= _COLLECTIVE) | _is_on_objects(rows, functions, number), operation, NO_NAME),
        np.array([entry.nonblocking for entry in functions])[number],
        np.array([entry.persistent for entry in functions])[number],
        np.array([name.startswith(_START) for name in called])[number],
    )


def _is_on_objects(rows: _Rows, functions: Sequence[MpiFunction], number: Ints) -> Mask:
    is_object_function = np.array([function.operation in ON_WINDOWS_AND_FILES for function in functions])
    result: Mask = (rows.table == _OTHER_TABLE) & is_object_function[number]
    return result


def _with_second_rows(rows: _Rows, texts: Mapping[int, str]) -> _Rows:
    """Return the rows with two for each exchange; one with a single partner was recorded as one."""
    names = [i for i, name in texts.items() if (mpi_function(name) or _NO_FUNCTION).operation == "SendRecv"]
    both = np.flatnonzero(np.isin(rows.textId, names))
    if not len(both):
        return rows
    _, call = numbered_rows(rows.globalTid[both], rows.start[both])
    return concatenate(_Rows, [rows, rows.take(both[np.bincount(call)[call] == 1])])


def _both_sides(rows: _Rows, operation: Ints, strings: StringTable) -> tuple[_Rows, Ints]:
    """Return the rows and operations with each exchange as a send and a receive of one time."""
    both = np.flatnonzero(operation == strings.add("SendRecv"))
    if not len(both):
        return rows, operation
    both = both[np.argsort(rows.end[both], kind="stable")]
    _, call = numbered_rows(rows.globalTid[both], rows.start[both])
    last = np.zeros(call.max() + 1, np.int64)
    np.maximum.at(last, call, rows.end[both])
    end, operation = rows.end.copy(), operation.copy()
    end[both] = last[call]
    operation[both] = np.where(position_in_group(call) == 0, strings.add("Send"), strings.add("Recv"))
    return replace(rows, end=end), operation


def _calls(rows: _Rows, name: Ints) -> MpiCalls:
    order = np.lexsort((name, rows.start, rows.globalTid))
    columns = (rows.globalTid[order], rows.start[order], name[order])
    new = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    first = np.flatnonzero(np.append(True, new))
    end = np.maximum.reduceat(rows.end[order], first)
    thread, start, name = (column[first] for column in columns)
    return MpiCalls(start, end, rows.process[order[first]], thread & THREAD_BITS, name)


def _begun_operations(rows: _Rows, functions: _Functions) -> _Begun:
    # MPI_PROC_NULL neither sends nor receives.
    nobody = (rows.table == _MESSAGE) & (rows.remoteRank == MISSING) & (rows.remoteRank != MISSING).any()
    communicates = (functions.operation != NO_NAME) & ~nobody
    direct = np.flatnonzero(communicates & ~functions.prepares)
    prepared = np.flatnonzero(communicates & functions.prepares)
    started = np.flatnonzero((rows.table == _COMPLETION) & functions.starts)
    request = rows.process, rows.requestHandle
    at = latest_rows(
        tuple(column[prepared] for column in request),
        rows.start[prepared],
        tuple(column[started] for column in request),
        rows.start[started],
    )
    started, at = started[at >= 0], at[at >= 0]
    row, described = np.concatenate((direct, started)), np.concatenate((direct, prepared[at]))
    order = np.lexsort((row, rows.start[row], rows.globalTid[row]))
    row, described = row[order], described[order]
    pending = functions.nonblocking[row] | functions.starts[row]
    completing = (rows.table == _COMPLETION) & ~functions.starts & (rows.requestHandle != MISSING)
    begins = row[pending & (rows.requestHandle[row] != MISSING)]
    ended = np.where(pending, -1, row)
    by_row = np.full(len(rows), -1)
    by_row[begins] = _completions(rows, begins, np.flatnonzero(completing))
    return _Begun(row, described, np.where(pending, by_row[row], ended))


def _completions(rows: _Rows, begins: Ints, completing: Ints) -> Ints:
    """Return the row that completes each request, -1 if none does.

    Begins and completions of a handle are brackets in the order of time: some have no counterpart,
    because the program freed the request, nsys did not record the call that began it, or the profile ends.
    """
    either = np.concatenate((begins, completing))
    opens = np.arange(len(either)) < len(begins)
    _, handle = numbered_rows(rows.process[either], rows.requestHandle[either])
    order = np.lexsort((~opens, rows.start[either], handle))
    handle, opens = handle[order], opens[order]
    depth = np.cumsum(np.where(opens, 1, -1))
    first = np.searchsorted(handle, np.arange(handle.max(initial=-1) + 1))
    depth -= (depth - np.where(opens, 1, -1))[first][handle]
    # The least depth of each handle so far, shifted far below the depths of the previous handle.
    apart = handle * (2 * len(handle) + 2)
    least = np.minimum.accumulate(np.minimum(depth, 0) - apart) + apart
    unopened = ~opens & (least < np.where(np.append(0, handle[:-1]) == handle, np.append(0, least[:-1]), 0))
    level = np.where(opens, depth, depth + 1)
    paired = np.flatnonzero(~unopened)
    paired = paired[np.lexsort((paired, level[paired], handle[paired]))]
    a, b = paired[:-1], paired[1:]
    match = (handle[a] == handle[b]) & (level[a] == level[b]) & opens[a] & ~opens[b]
    result = np.full(len(either), -1)
    result[order[a[match]]] = either[order[b[match]]]
    return result[: len(begins)]


def _operations(
    export: NsysExport, rows: _Rows, operation: Ints, begun: _Begun, strings: StringTable
) -> MpiOperations:
    start, has_end = rows.start[begun.row], begun.ended >= 0
    last = np.where(has_end, begun.ended, begun.row)
    described_rows, kind = rows.take(begun.described), operation[begun.described]
    objects = described_rows.table == _OTHER_TABLE
    described = CommunicatorHandles(export)
    handle = np.where(objects, described.world(described_rows.process), described_rows.commHandle)
    communicators, number = described.at(described_rows.process, handle, described_rows.start)
    names = strings.add_all(comm.name for comm in communicators)[number]
    if objects.any():
        names = np.where(objects & (names != NO_NAME), strings.add(_OBJECTS), names)
    size, rank = (
        np.array(values, np.int64)[number]
        for values in zip(*((comm.size, comm.rank) for comm in communicators), strict=True)
    )
    message = described_rows.table == _MESSAGE
    within = np.where(message & (described_rows.remoteRank >= 0), described_rows.remoteRank, NO_PEER)
    sizes = {name: np.full(len(kind), NO_BYTES) for name in ("bytes", "received_bytes")}
    sizes["bytes"] = np.where(message & (described_rows.size >= 0), described_rows.size, NO_BYTES)
    for name in distinct(kind[~message]).tolist():
        same_name = np.flatnonzero((kind == name) & ~message)
        sizes_of_ranks = bytes_of_rank(
            strings.array()[name],
            described_rows.size[same_name],
            described_rows.recvSize[same_name],
            size[same_name],
            rank[same_name],
        )
        sizes["bytes"][same_name], sizes["received_bytes"][same_name] = sizes_of_ranks
    return MpiOperations(
        start=start,
        end=rows.end[last],
        process=rows.process[begun.row],
        thread=rows.globalTid[begun.row] & THREAD_BITS,
        operation=kind,
        communicator=names,
        ranks=size,
        peer=ranks_in_program(communicators, number, within),
        comm_peer=within,
        root=np.where(~message & (described_rows.rootRank >= 0), described_rows.rootRank, NO_ROOT),
        tag=np.where(message & (described_rows.tag >= 0), described_rows.tag, NO_TAG),
        **sizes,
        begin_ns=rows.end[begun.row] - start,
        wait_ns=np.where(has_end, rows.end[last] - rows.start[last], NO_WAIT),
    )
