"""Synchronizations of an nsys export, with the records of the events that they wait for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcprof.profiles.columns.joins import latest_rows
from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.nsys.export import NO_ID, REQUIRED, NsysExport
from hpcprof.profiles.readers.nsys.operations import OPERATIONS, process_of, read_operations
from hpcprof.profiles.timeline import (
    NO_CORRELATION,
    NO_STREAM,
    ApiCalls,
    IntColumns,
    Ints,
    Synchronizations,
    SyncKind,
    empty_columns,
)
from hpcprof.profiles.waiting_calls import QUERY, UNKNOWN, kinds_by_call

_WAITS, _RECORDS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"

_NO_VALUE = 0xFFFFFFFF
"""No stream or event (CUPTI_SYNCHRONIZATION_INVALID_VALUE)."""
_SYNC_ID = "eventSyncId"
"""Number of one record of an event: the same event is recorded repeatedly."""

_WAIT_COLUMNS = {
    "start": REQUIRED,
    "end": REQUIRED,
    "contextId": NO_ID,
    "streamId": _NO_VALUE,
    "correlationId": NO_CORRELATION,
    "globalPid": NO_ID,
    "syncType": 0,
    "eventId": _NO_VALUE,
    _SYNC_ID: _NO_VALUE,
}
_RECORD_COLUMNS = {
    "streamId": NO_STREAM,
    "correlationId": NO_CORRELATION,
    "globalPid": NO_ID,
    "eventId": _NO_VALUE,
    _SYNC_ID: _NO_VALUE,
}
_CONTEXT_COLUMNS = ("processId", "contextId", "deviceId")
_PID = 0xFFFFFF
"""The bits of a process that hold its number in the system, below those of the machine."""

# By CUpti_ActivitySynchronizationType.
_KIND_OF_TYPE = np.array([UNKNOWN, SyncKind.EVENT, SyncKind.STREAM_WAIT, SyncKind.STREAM, SyncKind.DEVICE])


BULK: dict[str, Mapping[str, int | None]] = {_WAITS: _WAIT_COLUMNS, _RECORDS: _RECORD_COLUMNS}
"""The columns of the large tables."""


def read_synchronizations(
    export: NsysExport, calls: ApiCalls, strings: Iterable[str], only_process: int
) -> tuple[Synchronizations, list[Loss]]:
    """Read the synchronizations, and say what is left out.

    ``calls`` are all API calls of the export; the kinds follow from their names, with texts in ``strings``.
    ``only_process`` is the process of the synchronizations in old exports, where it is not recorded.
    """
    table = export.table(_WAITS)
    if table is None:
        return Synchronizations.empty(), []
    columns, lost = read_operations(table, _WAIT_COLUMNS, only_process, Subject.SYNCHRONIZATION)
    kind = _by_type(columns["syncType"], columns["eventId"])
    kind_of_call = kinds_by_call(columns["process"], columns["correlationId"], calls, strings)
    kind = np.where(kind_of_call != UNKNOWN, kind_of_call, kind)
    lost += losses(
        LossKind.ROW, Subject.SYNCHRONIZATION, {"syncType": np.count_nonzero(kind == UNKNOWN)}, len(kind)
    )
    waits = (kind != QUERY) & (kind != UNKNOWN)
    columns, kind = {name: values[waits] for name, values in columns.items()}, kind[waits]
    records, odd_fields = _read_records(export, only_process)
    source = _sources(columns, records, exact=_SYNC_ID in table.columns)
    source[(kind != SyncKind.EVENT) & (kind != SyncKind.STREAM_WAIT)] = -1
    # A wait has no device but that of its context: nsys writes 0 for any.
    devices = _devices(export, only_process)
    contexts, row = numbered_rows(columns["process"] & _PID, columns["contextId"])
    devices_of_contexts = [devices.get((process, context), 0) for process, context in contexts.tolist()]
    synchronizations = Synchronizations(
        start=columns["start"],
        end=columns["end"],
        process=columns["process"],
        kind=kind,
        correlation=columns["correlationId"],
        device=np.array(devices_of_contexts, np.int64)[row],
        stream=np.where(columns["streamId"] == _NO_VALUE, NO_STREAM, columns["streamId"]),
        # The index -1 selects the appended value for none.
        source_stream=np.append(records["streamId"], NO_STREAM)[source],
        source_correlation=np.append(records["correlationId"], NO_CORRELATION)[source],
    )
    return synchronizations, lost + odd_fields


def _devices(export: NsysExport, only_process: int) -> dict[tuple[int, int], int]:
    """Return the device of each context, by the number of its process and its own."""
    table = export.table("TARGET_INFO_CUDA_CONTEXT_INFO")
    if table is not None and table.columns >= {*_CONTEXT_COLUMNS}:
        rows = table.rows(_CONTEXT_COLUMNS)
    else:
        rows = _contexts_of_operations(export, only_process)
    valid = (row for row in rows if all(isinstance(value, int) for value in row))
    return {(process & _PID, context): device for process, context, device in valid}


def _contexts_of_operations(export: NsysExport, only_process: int) -> Iterator[Sequence[Any]]:
    """Yield the contexts with work in them, for an export without a table of contexts."""
    for table in filter(None, map(export.table, OPERATIONS)):
        if table.columns >= {"contextId", "deviceId"}:
            columns = table.read_bulk(dict.fromkeys(("globalPid", "contextId", "deviceId"), NO_ID)).integers
            process = process_of(table, columns["globalPid"], only_process)
            rows, _ = numbered_rows(process, columns["contextId"], columns["deviceId"])
            yield from rows.tolist()


def _by_type(kind: Ints, event: Ints) -> Ints:
    """Return the kinds by type; a stream wait without an event is a wait of the host for the stream."""
    in_table = (kind > 0) & (kind < len(_KIND_OF_TYPE))
    by_type: Ints = np.where(in_table, _KIND_OF_TYPE[np.where(in_table, kind, 0)], UNKNOWN)
    by_type[(by_type == SyncKind.STREAM_WAIT) & (event == _NO_VALUE)] = SyncKind.STREAM
    return by_type


def _read_records(export: NsysExport, only_process: int) -> tuple[IntColumns, list[Loss]]:
    table = export.table(_RECORDS)
    if table is None:
        return empty_columns((*_RECORD_COLUMNS, "process")), []
    columns, _, odd_counts = table.read_bulk(_RECORD_COLUMNS)
    columns["process"] = process_of(table, columns["globalPid"], only_process)
    return columns, losses(LossKind.FIELD, Subject.SYNCHRONIZATION, odd_counts)


def _sources(waits: IntColumns, records: IntColumns, exact: bool) -> Ints:
    """Return the row of the record that each wait is for, -1 if it is unknown.

    ``exact`` is True if each record of an event has a number of its own. Old exports have none; there a wait
    is for the newest record of its event whose call has a lower number than the call that waits.
    """
    names = ("process", "eventId", _SYNC_ID) if exact else ("process", "eventId")
    recorded, wanted = (tuple(table[name] for name in names) for table in (records, waits))
    calls = records["correlationId"], waits["correlationId"]
    time, moment = map(np.zeros_like, calls) if exact else calls
    return latest_rows(recorded, time, wanted, moment)
