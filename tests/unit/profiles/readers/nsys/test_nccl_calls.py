"""Collectives in nsys exports: NCCL's calls, groups and payloads."""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.profiles.possible_times import with_possible_times
from hpcprof.profiles.readers.nsys.nvtx_ranges import PayloadField, Payloads
from hpcprof.profiles.readers.nsys.reader import read
from hpcprof.profiles.readers.nsys.table_pages import BinaryColumn
from hpcprof.profiles.timeline import NO_BYTES, NO_NAME, NO_PEER, UNKNOWN_RANKS, Timeline

COMM, SIZE, RANKS = "NCCL communicator ID", "Message size [bytes]", "No. of ranks"
UINT64, SIZE_T, INT32 = 18, 22, 15
THREAD = (7 << 24) + 1
EVENTS = (
    "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, "
    "textId INTEGER, domainId INTEGER, binaryData TEXT)"
)
ENTRIES = (
    "CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER, "
    "flags INTEGER, type INTEGER, name TEXT, offset INTEGER)"
)
ENUMS = "CREATE TABLE NVTX_PAYLOAD_ENUMS (domainId INTEGER, schemaId INTEGER, name TEXT, size INTEGER)"
# Schema 1 as NCCL writes it: the first entry's offset is not stored.
PLAIN = [(2, 1, 0, None, UINT64, COMM, None), (2, 1, 1, None, SIZE_T, SIZE, 8)]
# The entries of the schema of ncclSend and ncclRecv, without the domain and the schema's number.
PEER = [(0, None, UINT64, COMM, None), (1, None, SIZE_T, SIZE, 8), (2, None, INT32, "Peer rank", 16)]


def blob(schema: int, content: bytes, skip: int = 0) -> bytes:
    """Return the bytes of an event with one payload, which begins after its header and a gap."""
    return struct.pack("<4Q", 1, schema, len(content), 32 + skip) + bytes(skip) + content


def call(name: str, start: int, end: int, data: bytes | None = None, thread: int = THREAD) -> tuple[Any, ...]:
    """Return a row of a call of NCCL."""
    return (start, end, 59, name, thread, None, 2, data)


def write(path: Path, calls: list[tuple[Any, ...]], entries: list[tuple[Any, ...]] | None = PLAIN) -> Path:
    """Write an export."""
    with sqlite3.connect(path) as connection:
        connection.execute(EVENTS)
        domain = (0, None, 75, "NCCL", THREAD, None, 2, None)
        connection.executemany("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?,?,?)", [domain, *calls])
        if entries is not None:
            connection.execute(ENTRIES)
            connection.executemany("INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (?,?,?,?,?,?,?)", entries)
    connection.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank0.sqlite"


def listed(timeline: Timeline) -> list[tuple[Any, ...]]:
    """Return operation, communicator and size of each collective."""
    table = timeline.collectives
    names = (timeline.names(table.operation), timeline.names(table.communicator))
    return list(zip(*names, table.bytes.tolist(), strict=True))


def test_a_real_export_gives_each_call_with_communicator_and_size(export: Path) -> None:
    found = listed(read(export))
    identity = "0x0a28d5543c0402d9"
    assert found == [("AllGather", identity, 33_554_432), ("ReduceScatter", identity, 33_554_432)] * 43


def test_offsets_types_and_gaps_are_those_of_the_export(path: Path) -> None:
    shifted = [
        (2, 9, 0, None, INT32, "Root", None),
        (2, 9, 1, None, UINT64, COMM, 24),
        (2, 9, 2, None, INT32, SIZE, 12),
    ]
    content = struct.pack("<iiiiqQ", 3, -1, -1, 4096, -1, 0xFEDCBA9876543210)
    calls = [call("ncclAllReduce", 10, 20, blob(9, content, skip=8))]
    assert listed(read(write(path, calls, shifted))) == [("AllReduce", "0xfedcba9876543210", 4096)]


def test_offsets_that_are_not_stored_follow_from_the_sizes(path: Path) -> None:
    entries = [
        (2, 5, 0, None, INT32, "Root", None),
        (2, 5, 1, None, UINT64, COMM, None),
        (2, 5, 2, None, 77777777, "Reduction operation", None),
        (2, 5, 3, None, SIZE_T, SIZE, None),
    ]
    write(path, [call("ncclReduce", 10, 20, blob(5, struct.pack("<iiQiiQ", 1, 0, 258, 2, 0, 512)))], entries)
    # An enumeration's size stands in a table of its own: without it what follows cannot be placed.
    assert listed(read(path)) == [("Reduce", "0x0000000000000102", NO_BYTES)]
    with sqlite3.connect(path) as connection:
        connection.execute(ENUMS)
        connection.execute("INSERT INTO NVTX_PAYLOAD_ENUMS VALUES (2, 77777777, NULL, 4)")
    connection.close()
    assert listed(read(path)) == [("Reduce", "0x0000000000000102", 512)]


def test_pointers_and_arrays_are_not_taken_for_numbers(path: Path) -> None:
    entries = [(2, 1, 0, 4, UINT64, COMM, None), (2, 1, 1, None, SIZE_T, SIZE, 8)]
    calls = [call("ncclAllReduce", 10, 20, blob(1, struct.pack("<QQ", 5, 64)))]
    assert listed(read(write(path, calls, entries))) == [("AllReduce", None, 64)]


def test_a_message_may_be_called_bytes_and_have_no_communicator(path: Path) -> None:
    calls = [call("ncclBroadcast", 10, 20, blob(3, struct.pack("<Q", 64)))]
    assert listed(read(write(path, calls, [(2, 3, 0, None, SIZE_T, "Bytes", None)]))) == [
        ("Broadcast", None, 64)
    ]


def test_the_size_of_a_communicator_comes_from_the_call_that_made_it(path: Path) -> None:
    init = [(2, 4, 0, None, UINT64, COMM, None), (2, 4, 1, None, INT32, RANKS, 8)]
    calls = [
        call("ncclCommInitRank", 1, 5, blob(4, struct.pack("<Qi", 11, 64))),
        call("ncclAllReduce", 10, 20, blob(1, struct.pack("<QQ", 11, 4))),
        call("ncclAllReduce", 20, 30, blob(1, struct.pack("<QQ", 12, 4))),
        call("ncclAllReduce", 30, 40),
    ]
    table = read(write(path, calls, PLAIN + init)).collectives
    assert table.ranks.tolist() == [64, UNKNOWN_RANKS, UNKNOWN_RANKS]


def test_sends_and_receives_name_their_partner_by_its_rank_in_the_communicator(path: Path) -> None:
    entries = [*PLAIN, *((2, 6, *field) for field in PEER)]
    calls = [
        call("ncclSend", 10, 20, blob(6, struct.pack("<QQi", 11, 64, 3))),
        call("ncclRecv", 20, 30, blob(6, struct.pack("<QQi", 11, 64, -7))),
        call("ncclAllReduce", 30, 40, blob(1, struct.pack("<QQ", 11, 4))),
    ]
    table = read(write(path, calls, entries)).collectives
    assert table.comm_peer.tolist() == [3, NO_PEER, NO_PEER]
    assert table.peer.tolist() == [NO_PEER] * 3
    assert table.bytes.tolist() == [64, 64, 4]


@pytest.mark.parametrize("entries", [PLAIN, [], None])
def test_without_blobs_or_schemas_size_and_communicator_are_unknown(path: Path, entries: Any) -> None:
    data = None if entries else blob(1, struct.pack("<QQ", 5, 64))
    assert listed(read(write(path, [call("ncclAllReduce", 10, 20, data)], entries))) == [
        ("AllReduce", None, NO_BYTES)
    ]


def test_an_old_export_without_the_columns_is_read(path: Path) -> None:
    write(path, [call("ncclAllReduce", 10, 20)])
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE NVTX_EVENTS DROP COLUMN binaryData")
    connection.close()
    assert listed(read(path)) == [("AllReduce", None, NO_BYTES)]
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE NVTX_EVENTS DROP COLUMN domainId")
    connection.close()
    assert listed(read(path)) == []


def test_other_calls_and_other_domains_are_no_collectives(path: Path) -> None:
    calls = [call("ncclCommInitRank", 1, 2), call("ncclCommDestroy", 3, 4), call("ncclGroupStart", 5, 6)]
    other = (7, 8, 59, "ncclAllReduce", THREAD, None, 3, None)
    elsewhere = call("ncclAllReduce", 9, 10, thread=(8 << 24) + 1)
    timeline = read(write(path, [*calls, other, elsewhere]))
    assert len(timeline.collectives) == 0
    assert len(timeline.ranges) == 5


def test_calls_of_a_group_are_launched_by_the_end_of_the_outermost_group(path: Path) -> None:
    other = THREAD + 1
    calls = [
        call("ncclAllReduce", 10, 11),
        call("ncclGroupStart", 20, 21),
        call("ncclAllReduce", 22, 23),
        call("ncclGroupStart", 24, 25),
        call("ncclAllGather", 26, 27),
        call("ncclGroupEnd", 28, 29),
        call("ncclGroupEnd", 30, 39),
        call("ncclAllReduce", 40, 41),
        # The profile ends inside this group, and begins inside one of the other thread.
        call("ncclGroupStart", 42, 43),
        call("ncclAllReduce", 44, 45),
        call("ncclAllReduce", 23, 24, thread=other),
        call("ncclGroupEnd", 50, 51, thread=other),
        call("ncclGroupStart", 60, 61, thread=other),
        call("ncclAllReduce", 62, 63, thread=other),
        call("ncclGroupEnd", 70, 79, thread=other),
    ]
    table = read(write(path, calls)).collectives
    assert list(zip(table.start.tolist(), table.end.tolist(), strict=True)) == [
        *((10, 11), (30, 39), (30, 39), (40, 41), (44, 45), (23, 24), (70, 79))
    ]
    assert table.thread.tolist() == [1] * 5 + [2] * 2


def test_a_call_that_the_profile_ends_before_is_left_out(path: Path) -> None:
    open_call = (10, None, 59, "ncclAllReduce", THREAD, None, 2, None)
    assert listed(read(write(path, [open_call]))) == []


def test_damaged_payloads_are_unknown_and_nothing_else(path: Path) -> None:
    whole = blob(1, struct.pack("<QQ", 5, 64))
    damaged = [
        b"",
        whole[:31],
        whole[:40],
        struct.pack("<4Q", 0, 1, 16, 32) + bytes(16),
        struct.pack("<4Q", 1, 1, 2**64 - 1, 32) + bytes(16),
        struct.pack("<4Q", 1, 1, 16, 2**64 - 8) + bytes(16),
        struct.pack("<4Q", 1, 1, 0, 32),
        struct.pack("<4Q", 1, 999, 16, 32) + bytes(16),
    ]
    calls = [call("ncclAllReduce", 10 * i, 10 * i + 5, data) for i, data in enumerate([whole, *damaged])]
    assert listed(read(write(path, calls))) == [
        ("AllReduce", "0x0000000000000005", 64),
        *[("AllReduce", None, NO_BYTES)] * len(damaged),
    ]


def test_a_message_that_no_memory_holds_is_unknown(path: Path) -> None:
    calls = [call("ncclAllReduce", 10, 20, blob(1, struct.pack("<QQ", 5, 2**63)))]
    assert listed(read(write(path, calls))) == [("AllReduce", "0x0000000000000005", NO_BYTES)]


def test_a_payload_shorter_than_its_schema_gives_what_it_holds(path: Path) -> None:
    calls = [call("ncclAllReduce", 10, 20, blob(1, struct.pack("<Q", 5)))]
    assert listed(read(write(path, calls))) == [("AllReduce", "0x0000000000000005", NO_BYTES)]


def test_a_call_without_a_valid_stamp_is_left_out_and_counted(path: Path) -> None:
    found = with_possible_times(read(write(path, [("soon", 20, 59, "ncclAllReduce", THREAD, None, 2, None)])))
    assert listed(found) == []
    assert [loss.detail for loss in found.origin.losses] == ["start"]


@given(st.lists(st.binary(max_size=80), max_size=5))
def test_no_bytes_break_the_decoder(blobs: list[bytes]) -> None:
    layout = {COMM: PayloadField(0, np.dtype("<u8"))}
    values, present = Payloads(BinaryColumn.from_values(blobs), {0: layout, 1: layout}).values(COMM)
    assert len(values) == len(present) == len(blobs)


def test_an_export_without_nccl_has_no_collectives(export: Path) -> None:
    with sqlite3.connect(export) as connection:
        connection.execute("DELETE FROM NVTX_EVENTS WHERE text = 'NCCL'")
    connection.close()
    timeline = read(export)
    assert len(timeline.collectives) == 0
    assert NO_NAME in timeline.ranges.domain
