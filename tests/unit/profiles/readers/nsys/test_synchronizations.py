"""Synchronizations of nsys exports."""

from __future__ import annotations

import lzma
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.possible_times import with_possible_times
from hpcprof.profiles.readers.nsys.reader import read
from hpcprof.profiles.timeline import NO_CORRELATION, NO_STREAM, Synchronizations, SyncKind
from tests.data.generated_exports import MACHINE, SCHEMA
from tests.unit.profiles.readers.conftest import DATA
from tests.unit.profiles.readers.nsys.test_reader import change, loosen

NONE = 2**32 - 1
PID = MACHINE + 7 * 2**24
OTHER = MACHINE + 8 * 2**24
PROCESS = PID >> 24
WAITS, RECORDS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
TABLES = f"""
CREATE TABLE {WAITS} (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
  contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
  syncType INTEGER NOT NULL, eventId INTEGER NOT NULL, eventSyncId INTEGER);
CREATE TABLE {RECORDS} (deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER, eventId INTEGER NOT NULL, eventSyncId INTEGER);
"""
EVENT, STREAM_WAIT, STREAM, CONTEXT = 1, 2, 3, 4

Row = Sequence[Any]
Write = Callable[..., Path]


def wait(kind: int, correlation: int, stream: int = NONE, event: int = NONE, sync: int = NONE) -> Row:
    """Build a row of the table of synchronizations; it starts at its correlation id."""
    return (correlation, correlation + 5, 0, 1, stream, correlation, PID, kind, event, sync)


def record(correlation: int, stream: int, event: int, sync: int, process: int = PID) -> Row:
    """Build the record of an event."""
    return (0, 1, stream, correlation, process, event, sync)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write an export of waits, records of events, and names of calls by correlation id."""

    def written(
        waits: Sequence[Row], records: Sequence[Row] = (), calls: Mapping[int, str] = MappingProxyType({})
    ) -> Path:
        path = tmp_path / "rank0.sqlite"
        with sqlite3.connect(path) as export:
            export.executescript(SCHEMA + TABLES)
            export.executemany(f"INSERT INTO {WAITS} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", waits)
            export.executemany(f"INSERT INTO {RECORDS} VALUES (?, ?, ?, ?, ?, ?, ?)", records)
            for i, name in calls.items():
                export.execute("INSERT INTO StringIds VALUES (?, ?)", (i, name))
                export.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0)",
                    (i, i + 9, PID + 1, i, i),
                )
        export.close()
        return path

    return written


def kinds(path: Path) -> list[SyncKind]:
    return [SyncKind(kind) for kind in read(path).synchronizations.kind.tolist()]


def sources(table: Synchronizations) -> list[tuple[int, int]]:
    return list(zip(table.source_stream.tolist(), table.source_correlation.tolist(), strict=True))


def test_each_type_has_its_kind_where_no_call_is_known(write: Write) -> None:
    path = write(
        [
            wait(EVENT, 1, event=3, sync=1),
            wait(STREAM_WAIT, 2, stream=7, event=3, sync=1),
            wait(STREAM_WAIT, 3, stream=7),
            wait(STREAM, 4, stream=7),
            wait(CONTEXT, 5),
        ]
    )
    assert kinds(path) == [
        SyncKind.EVENT,
        SyncKind.STREAM_WAIT,
        SyncKind.STREAM,
        SyncKind.STREAM,
        SyncKind.DEVICE,
    ]
    table = read(path).synchronizations
    assert table.stream.tolist() == [NO_STREAM, 7, 7, 7, NO_STREAM]
    assert table.correlation.tolist() == table.start.tolist() == (table.end - 5).tolist() == [1, 2, 3, 4, 5]
    assert set(table.process.tolist()) == {PROCESS}


def test_the_name_of_the_call_decides_against_the_type(write: Write) -> None:
    calls = {1: "cudaStreamSynchronize_v3020", 2: "cuCtxSynchronize", 3: "cudaMemcpy_v3020"}
    path = write([wait(STREAM_WAIT, 1, 7, 4, 4), wait(EVENT, 2), wait(CONTEXT, 3)], calls=calls)
    assert kinds(path) == [SyncKind.STREAM, SyncKind.DEVICE, SyncKind.DEVICE]


def test_queries_are_no_synchronizations_and_no_losses(write: Write) -> None:
    calls = {1: "cudaEventQuery_v3020", 2: "cudaEventSynchronize_v3020"}
    path = write([wait(EVENT, 1, event=3, sync=1), wait(EVENT, 2, event=3, sync=1)], calls=calls)
    assert kinds(path) == [SyncKind.EVENT]
    assert read(path).origin.losses == ()


def test_a_type_that_means_nothing_is_left_out_and_counted(write: Write) -> None:
    path = write([wait(0, 1), wait(9, 2), wait(-1, 3), wait(CONTEXT, 4)])
    assert kinds(path) == [SyncKind.DEVICE]
    assert read(path).origin.losses == (Loss(LossKind.ROW, Subject.SYNCHRONIZATION, 3, 4, "syncType"),)


def test_an_event_leads_to_the_stream_and_call_that_recorded_it(write: Write) -> None:
    path = write(
        [
            wait(STREAM_WAIT, 20, stream=14, event=4, sync=2),
            wait(STREAM_WAIT, 21, stream=17, event=4, sync=1),
            wait(EVENT, 22, event=6, sync=3),
            wait(STREAM, 23, stream=7, event=4, sync=1),
            wait(STREAM_WAIT, 24, stream=7, event=4, sync=9),
            wait(STREAM_WAIT, 25, stream=7, event=9, sync=1),
        ],
        [
            record(10, 7, event=4, sync=1),
            record(11, 8, event=4, sync=2),
            record(12, 9, event=6, sync=3),
            record(13, 99, event=4, sync=1, process=OTHER),
            record(14, 99, event=4, sync=9, process=OTHER),
        ],
    )
    unknown = (NO_STREAM, NO_CORRELATION)
    assert sources(read(path).synchronizations) == [(8, 11), (7, 10), (9, 12), unknown, unknown, unknown]


def test_without_numbers_of_records_the_newest_one_before_the_wait_counts(write: Write) -> None:
    path = write(
        [wait(STREAM_WAIT, at, stream=14, event=event) for at, event in ((9, 4), (15, 4), (15, 6), (30, 4))],
        [record(20, 9, 4, 3), record(10, 7, 4, 1), record(12, 8, 4, 2), record(5, 99, 4, 0, process=OTHER)],
    )
    change(path, *(f"ALTER TABLE {table} DROP COLUMN eventSyncId" for table in (WAITS, RECORDS)))
    unknown = (NO_STREAM, NO_CORRELATION)
    assert sources(read(path).synchronizations) == [unknown, (8, 12), unknown, (9, 20)]


def test_without_a_table_of_records_the_sources_are_unknown(write: Write) -> None:
    path = write([wait(STREAM_WAIT, 20, stream=14, event=4, sync=2)], [record(10, 7, 4, 2)])
    change(path, f"DROP TABLE {RECORDS}")
    assert sources(read(path).synchronizations) == [(NO_STREAM, NO_CORRELATION)]


CONTEXTS = "TARGET_INFO_CUDA_CONTEXT_INFO"


def test_the_device_is_that_of_the_context(write: Write) -> None:
    path = write([wait(CONTEXT, 1), wait(CONTEXT, 2), wait(CONTEXT, 3), wait(CONTEXT, 4)])
    change(
        path,
        f"UPDATE {WAITS} SET contextId = rowid, deviceId = 9",
        f"UPDATE {WAITS} SET contextId = 1, globalPid = {OTHER} WHERE rowid = 4",
        f"CREATE TABLE {CONTEXTS} (nullStreamId, processId, deviceId, contextId)",
        f"INSERT INTO {CONTEXTS} VALUES (7, 7, 3, 1), (8, 7, 4, 2), (7, 8, 5, 1)",
    )
    assert read(path).synchronizations.device.tolist() == [3, 4, 0, 5]


def test_without_a_table_of_contexts_the_work_in_a_context_tells_its_device(write: Write) -> None:
    path = write([wait(CONTEXT, 1), wait(CONTEXT, 2), wait(CONTEXT, 3)])
    change(
        path,
        f"UPDATE {WAITS} SET contextId = rowid",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (1, 2, 3, 1, 7, 1, {PID}, 0, 64)",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 2, 4, 2, 7, 1, {PID}, 64, 1)",
        f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 2, 5, 3, 7, 1, {OTHER}, 64, 1)",
    )
    assert read(path).synchronizations.device.tolist() == [3, 4, 0]


def test_bad_cells_are_counted_as_in_other_tables(write: Write) -> None:
    path = write(
        [wait(STREAM_WAIT, at, stream=14, event=4, sync=1) for at in (20, 21, 22)], [record(10, 7, 4, 1)]
    )
    loosen(path, WAITS)
    change(
        path,
        f"UPDATE {WAITS} SET end = 'soon' WHERE rowid = 1",
        f"UPDATE {WAITS} SET eventId = 1.5, streamId = 'seven' WHERE rowid = 2",
    )
    timeline = with_possible_times(read(path))
    assert timeline.synchronizations.start.tolist() == [21, 22]
    assert timeline.synchronizations.stream.tolist() == [NO_STREAM, 14]
    assert {loss.sentence for loss in timeline.origin.losses} == {
        "1 of 3 synchronizations has no valid end and is left out",
        "1 of 3 synchronizations has no readable eventId",
        "1 of 3 synchronizations has no readable streamId",
    }


@pytest.fixture
def ddp(tmp_path: Path) -> Path:
    """A real export with records of events, of a rank on the second GPU."""
    path = tmp_path / "ddp.sqlite"
    path.write_bytes(lzma.decompress((DATA / "ddp_mlp_rank1.sqlite.xz").read_bytes()))
    return path


def test_a_real_export_has_the_waits_that_sql_finds(ddp: Path) -> None:
    table = read(ddp).synchronizations
    with sqlite3.connect(ddp) as export:
        expected = export.execute(
            f"""SELECT s.start, s.end, s.correlationId, ifnull(e.streamId, -1), ifnull(e.correlationId, -1)
            FROM {WAITS} s LEFT JOIN {RECORDS} e USING (globalPid, eventId, eventSyncId)
            WHERE s.correlationId NOT IN (SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME
                JOIN StringIds ON id = nameId WHERE value LIKE '%EventQuery%')"""
        ).fetchall()
    export.close()
    columns = (table.start, table.end, table.correlation, table.source_stream, table.source_correlation)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert np.bincount(table.kind).tolist() == [16, 20, 0, 1]


def test_numbers_of_calls_find_the_same_sources_in_a_real_export_as_numbers_of_records(ddp: Path) -> None:
    expected = sources(read(ddp).synchronizations)
    change(ddp, *(f"ALTER TABLE {table} DROP COLUMN eventSyncId" for table in (WAITS, RECORDS)))
    assert sources(read(ddp).synchronizations) == expected


@pytest.mark.parametrize("statements", [(), (f"DROP TABLE {CONTEXTS}",)])
def test_the_waits_of_a_real_export_are_on_the_device_of_its_kernels(
    ddp: Path, statements: tuple[str, ...]
) -> None:
    change(ddp, *statements)
    timeline = read(ddp)
    assert set(timeline.synchronizations.device.tolist()) == {1} == set(timeline.kernels.device.tolist())
