"""Calls, messages and collectives of MPI in nsys exports."""

from __future__ import annotations

import lzma
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hpcprof.profiles.possible_times import with_possible_times
from hpcprof.profiles.readers.nsys.reader import read
from hpcprof.profiles.timeline import NO_BYTES, NO_PEER, NO_TAG, NO_WAIT, Timeline
from tests.data.generated_exports import MACHINE, SCHEMA
from tests.unit.profiles.readers.conftest import DATA

TID = MACHINE + 7 * 2**24 + 9
WORLD, PART, HALF = 100, 101, 102
NAMES = (
    *("MPI_Isend", "MPI_Irecv", "MPI_Waitall", "MPI_Send", "MPI_Recv", "MPI_Sendrecv", "MPI_Send_init"),
    *(
        "MPI_Start",
        "MPI_Wait",
        "MPI_Allreduce",
        "MPI_Iallreduce",
        "MPI_Reduce",
        "MPI_Bcast",
        "MPI_Init",
        "fsync",
    ),
)
TABLES = {
    "MPI_P2P_EVENTS": "start, end, globalTid, textId, commHandle, tag, remoteRank, size, requestHandle",
    "MPI_COLLECTIVES_EVENTS": (
        "start, end, globalTid, textId, commHandle, rootRank, size, recvSize, requestHandle"
    ),
    "MPI_START_WAIT_EVENTS": "start, end, globalTid, textId, requestHandle",
    "MPI_OTHER_EVENTS": "start, end, globalTid, textId",
    "OSRT_API": "start, end, eventClass, globalTid, nameId, returnValue, nestingLevel, callchainId",
    "MPI_COMMUNICATORS": (
        "rank, timestamp, commHandle, parentHandle, localRank, size, groupRoot, groupRootUid, members"
    ),
}
Row = Sequence[Any]
Write = Callable[..., Path]


def message(
    name: str, start: int, end: int, peer: int | None = 1, request: int | None = None, **more: Any
) -> tuple[str, Row]:
    """Build a row of a message of tag 5 and 8 bytes."""
    fields = {"comm": WORLD, "tag": 5, "size": 8, **more}
    identity = (start, end, TID, NAMES.index(name))
    return "MPI_P2P_EVENTS", (*identity, fields["comm"], fields["tag"], peer, fields["size"], request)


def collective(name: str, start: int, end: int, request: int | None = None, **more: Any) -> tuple[str, Row]:
    """Build a row of a collective of all ranks."""
    fields = {"comm": WORLD, "root": None, "sent": None, "received": None, **more}
    identity = (start, end, TID, NAMES.index(name))
    sizes = (fields["sent"], fields["received"])
    return "MPI_COLLECTIVES_EVENTS", (*identity, fields["comm"], fields["root"], *sizes, request)


def completion(name: str, start: int, end: int, request: int) -> tuple[str, Row]:
    """Build a row of a call that waits for a request or starts one."""
    return "MPI_START_WAIT_EVENTS", (start, end, TID, NAMES.index(name), request)


def communicator(handle: int, *fields: Any) -> tuple[str, Row]:
    """Build a row of a communicator as rank 0 made it at time 0."""
    return "MPI_COMMUNICATORS", (0, 0, handle, *fields)


IN_WORLD = communicator(WORLD, 0, 0, 4, None, None, None)


@pytest.fixture
def written(tmp_path: Path) -> Write:
    """Write an export with rows of the tables of MPI, and with some columns missing."""

    def write(*rows: tuple[str, Row], without: Sequence[str] = ()) -> Path:
        path = tmp_path / "rank0.sqlite"
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as export, export:
            export.executescript(SCHEMA)
            export.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(NAMES))
            for table in dict.fromkeys(table for table, _ in rows):
                export.execute(f"CREATE TABLE {table} ({TABLES[table]})")
            for table, row in rows:
                export.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
            for dropped in without:
                table, _, column = dropped.partition(".")
                export.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        return path

    return write


def listed(timeline: Timeline, *columns: str) -> list[tuple[Any, ...]]:
    """Return the operations with the columns asked for."""
    table = timeline.mpi_operations
    texts = ("operation", "communicator")
    values = [
        timeline.names(getattr(table, name)) if name in texts else getattr(table, name).tolist()
        for name in columns
    ]
    return list(zip(*values, strict=True))


def test_a_nonblocking_message_ends_in_the_wait_for_its_request(written: Write) -> None:
    timeline = read(
        written(
            IN_WORLD,
            completion("MPI_Waitall", 50, 70, 11),
            completion("MPI_Waitall", 50, 70, 12),
            message("MPI_Isend", 20, 22, request=12),
            message("MPI_Irecv", 10, 13, request=11),
        )
    )
    assert listed(timeline, "operation", "start", "end", "begin_ns", "wait_ns", "peer", "tag", "bytes") == [
        ("Recv", 10, 70, 3, 20, 1, 5, 8),
        ("Send", 20, 70, 2, 20, 1, 5, 8),
    ]
    names = timeline.names(timeline.mpi_calls.name)
    assert names == ["MPI_Irecv", "MPI_Isend", "MPI_Waitall"]
    assert timeline.mpi_calls.start.tolist() == [10, 20, 50]


def test_a_handle_that_is_used_again_stands_for_the_last_operation_that_has_not_ended(written: Write) -> None:
    timeline = read(
        written(
            IN_WORLD,
            completion("MPI_Wait", 5, 6, 11),  # of a request that was begun before the profile
            message("MPI_Isend", 10, 11, request=11),
            completion("MPI_Wait", 20, 30, 11),
            message("MPI_Isend", 40, 41, request=11),
            message("MPI_Isend", 50, 51, request=11),
            completion("MPI_Waitall", 60, 70, 11),
        )
    )
    assert listed(timeline, "start", "end", "wait_ns") == [(10, 30, 10), (40, 41, NO_WAIT), (50, 70, 10)]


def test_requests_that_share_a_handle_end_together(written: Write) -> None:
    sends = [message("MPI_Isend", start, start + 1, request=11) for start in (10, 20, 30)]
    waits = [completion("MPI_Waitall", 50, 70, 11)] * 3
    assert listed(read(written(IN_WORLD, *sends, *waits)), "end") == [(70,)] * 3


def test_a_persistent_request_is_a_message_each_time_it_is_started(written: Write) -> None:
    timeline = read(
        written(
            IN_WORLD,
            message("MPI_Send_init", 1, 2, peer=3, request=11),
            completion("MPI_Start", 10, 11, 11),
            completion("MPI_Wait", 20, 30, 11),
            completion("MPI_Start", 40, 42, 11),
            completion("MPI_Wait", 50, 60, 11),
        )
    )
    assert listed(timeline, "operation", "start", "end", "peer", "begin_ns") == [
        ("Send", 10, 30, 3, 1),
        ("Send", 40, 60, 3, 2),
    ]


def test_an_exchange_is_a_send_and_a_receive_of_the_time_of_the_call(written: Write) -> None:
    rows = (message("MPI_Sendrecv", 10, 90, peer=3), message("MPI_Sendrecv", 10, 10, peer=1))
    timeline = read(written(IN_WORLD, *rows))
    assert listed(timeline, "operation", "peer", "start", "end") == [("Recv", 3, 10, 90), ("Send", 1, 10, 90)]
    assert len(timeline.mpi_calls) == 1


def test_an_exchange_with_one_rank_has_a_single_row_and_is_both(written: Write) -> None:
    timeline = read(written(IN_WORLD, message("MPI_Sendrecv", 10, 90, peer=3)))
    assert sorted(listed(timeline, "operation", "peer", "start", "end")) == [
        ("Recv", 3, 10, 90),
        ("Send", 3, 10, 90),
    ]
    assert len(timeline.mpi_calls) == 1


def test_nothing_is_sent_to_nobody(written: Write) -> None:
    rows = (message("MPI_Send", 10, 11), message("MPI_Send", 20, 21, peer=None, tag=None))
    timeline = read(written(IN_WORLD, *rows))
    assert listed(timeline, "start") == [(10,)]
    assert len(timeline.mpi_calls) == 2


def test_communicators_have_one_text_on_all_their_ranks(written: Write) -> None:
    rows = [
        collective("MPI_Allreduce", 10 * i, 10 * i + 1, comm=handle)
        for i, handle in enumerate((WORLD, PART, HALF, 999), 1)
    ]
    timeline = read(
        written(
            *(IN_WORLD, *rows),
            communicator(PART, WORLD, 0, 2, 0, 1, None),
            communicator(HALF, WORLD, 1, 2, None, None, "2,0"),
        )
    )
    assert listed(timeline, "communicator", "ranks") == [
        ("MPI_COMM_WORLD", 4),
        ("group 1 of rank 0", 2),
        ("ranks 2,0", 2),
        (None, -1),
    ]
    assert [loss.sentence for loss in timeline.origin.losses] == [
        "1 of 4 MPI operations has no readable communicator"
    ]


def test_the_partner_is_a_rank_of_the_communicator_and_of_the_program_where_that_is_known(
    written: Write,
) -> None:
    timeline = read(
        written(
            IN_WORLD,
            communicator(PART, WORLD, 0, 2, 0, 1, None),
            communicator(HALF, WORLD, 1, 2, None, None, "2,3"),
            message("MPI_Send", 10, 11, peer=1, comm=PART),
            message("MPI_Send", 20, 21, peer=1, comm=HALF),
            message("MPI_Irecv", 30, 31, peer=-1, request=3),
        )
    )
    assert listed(timeline, "peer", "comm_peer") == [(NO_PEER, 1), (3, 1), (NO_PEER, NO_PEER)]


def test_sizes_of_collectives_are_those_of_one_rank(written: Write) -> None:
    timeline = read(
        written(
            IN_WORLD,
            collective("MPI_Allreduce", 10, 11, sent=32, received=32),
            collective("MPI_Bcast", 20, 21, root=0, sent=32, received=None),
            collective("MPI_Reduce", 30, 31, root=0, sent=8, received=32),
        )
    )
    assert listed(timeline, "operation", "root", "bytes", "received_bytes") == [
        ("AllReduce", -1, 8, 8),
        ("Broadcast", 0, 8, 0),
        ("Reduce", 0, 8, 8),
    ]


def test_columns_and_tables_that_other_versions_lack_are_unknown(written: Write) -> None:
    rows = (message("MPI_Isend", 10, 11, request=1), collective("MPI_Iallreduce", 20, 22, request=2))
    timeline = read(
        written(
            *rows,
            without=[
                *(f"MPI_P2P_EVENTS.{name}" for name in ("commHandle", "tag", "remoteRank", "size")),
                *("MPI_P2P_EVENTS.requestHandle", "MPI_COLLECTIVES_EVENTS.recvSize"),
            ],
        )
    )
    assert listed(timeline, "operation", "end", "communicator", "peer", "tag", "bytes", "wait_ns") == [
        ("Send", 11, None, NO_PEER, NO_TAG, NO_BYTES, NO_WAIT),
        ("AllReduce", 22, None, NO_PEER, NO_TAG, NO_BYTES, NO_WAIT),
    ]


def test_a_call_without_an_end_is_left_out_and_counted(written: Write) -> None:
    rows = (message("MPI_Send", 10, 11), ("MPI_OTHER_EVENTS", (20, None, TID, NAMES.index("MPI_Init"))))
    timeline = read(written(IN_WORLD, *rows))
    assert timeline.names(timeline.mpi_calls.name) == ["MPI_Send"]
    assert len(timeline.origin.losses) == 1


def test_the_real_export_of_a_stencil_has_its_messages_and_collectives(tmp_path: Path) -> None:
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(lzma.decompress((DATA / "mpi_stencil_slow_rank0.sqlite.xz").read_bytes()))
    timeline = read(path)
    found = Counter(listed(timeline, "operation", "communicator", "peer", "bytes"))
    assert found == {
        ("Barrier", "MPI_COMM_WORLD", NO_PEER, NO_BYTES): 1,
        ("AllReduce", "MPI_COMM_WORLD", NO_PEER, 8): 40,
        **{(kind, "MPI_COMM_WORLD", peer, 32768): 40 for kind in ("Send", "Recv") for peer in (1, 3)},
    }
    # 40 steps of 4 calls that begin messages, a wait for all and an Allreduce; Init, Barrier and Finalize.
    assert len(timeline.mpi_calls) == 40 * 6 + 3
    assert not timeline.origin.losses


def test_calls_of_the_os_runtime_are_read(written: Write) -> None:
    def call(start: int | None, end: int) -> tuple[str, Row]:
        return "OSRT_API", (start, end, 27, TID, NAMES.index("fsync"), 0, 0, 0)

    timeline = with_possible_times(read(written(call(5, 9), call(None, 12), call(20, 21))))
    calls = timeline.os_calls
    assert (calls.start.tolist(), calls.end.tolist()) == ([5, 20], [9, 21])
    assert timeline.names(calls.name) == ["fsync", "fsync"]
    assert (calls.process.tolist(), calls.thread.tolist()) == ([TID >> 24] * 2, [9, 9])
    assert [(loss.subject.value, loss.count) for loss in timeline.origin.losses] == [
        ("call of the OS runtime", 1)
    ]
