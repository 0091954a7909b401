"""Functions of the user's code in nsys exports."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcprof.profiles.readers.nsys.reader import read

PROCESS = 7
MAIN, SAMPLER = (PROCESS << 24) + PROCESS, (PROCESS << 24) + 99
TEXTS = {
    1: "wait",
    2: "/usr/lib/python3.12/threading.py",
    3: "load",
    4: "/home/me/train.py",
    5: "&lt;listcomp&gt;",
    6: "/home/me/solver",
    7: "solve",
    8: "/usr/lib/libc.so.6",
    9: "cudaLaunchKernel",
}
PADDING = 0x7FED


def stack(*frames: tuple[int, int, int]) -> bytes:
    """Return the payload of a sample as nsys 2023.4 and later write it, with its header."""
    body = struct.pack("<IIII", 3, 1, len(frames), PADDING)
    body += b"".join(struct.pack("<QQII", *frame, PADDING) for frame in frames)
    return struct.pack("<4Q", 1, (1 << 32) + 3, len(body), 32) + body


def write(path: Path, samples: Sequence[tuple[int, int, bytes]] = ()) -> sqlite3.Connection:
    """Write an export with samples of Python: start, category and payload."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", TEXTS.items())
    connection.execute(
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, "
        "globalTid INTEGER, textId INTEGER, domainId INTEGER, category INTEGER, binaryData BLOB)"
    )
    rows: list[tuple[object, ...]] = [(0, None, 75, "Python Backtrace", MAIN, None, 1, None, None)]
    rows += [(start, None, 34, None, SAMPLER, None, 1, category, data) for start, category, data in samples]
    connection.executemany("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,?,?,?,?,?)", rows)
    return connection


def found(path: Path) -> list[tuple[int, int, int, str | None, str | None, int]]:
    """Return start, length, thread, function, file and line of each row."""
    timeline = read(path)
    table = timeline.functions
    return [
        *zip(
            table.start.tolist(),
            (table.end - table.start).tolist(),
            table.thread.tolist(),
            timeline.names(table.function),
            timeline.names(table.file),
            table.line.tolist(),
            strict=True,
        )
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rank0.sqlite"


def test_a_sample_of_python_is_the_innermost_own_function_until_the_next_sample(path: Path) -> None:
    waiting = stack((1, 2, 50), (3, 4, 12))
    write(
        path, [(100, 1, waiting), (110, 1, stack((5, 4, 13))), (120, 1, waiting), (900, 1, waiting)]
    ).commit()
    file = "/home/me/train.py"
    assert found(path) == [
        (100, 10, PROCESS, "load", file, 12),
        (110, 10, PROCESS, "<listcomp>", file, 13),
        # After a pause nobody knows what the thread did.
        (120, 20, PROCESS, "load", file, 12),
        (900, 10, PROCESS, "load", file, 12),
    ]


def test_the_samples_of_other_threads_do_not_name_their_thread(path: Path) -> None:
    write(path, [(100, 1, stack((3, 4, 1))), (100, 2, stack((3, 4, 2)))]).commit()
    assert [(row[2], row[5]) for row in found(path)] == [(PROCESS, 1), (-2, 2)]


def test_samples_with_a_schema_belong_to_the_thread_that_they_are_on(path: Path) -> None:
    # The layout, the schema and the enumeration as nsys 2025.3.1 exports them.
    connection = write(path)
    connection.execute("UPDATE NVTX_EVENTS SET text = 'Python Periodic Sampling'")
    connection.execute(
        "CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER, "
        "flags INTEGER, type INTEGER, name TEXT, offset INTEGER)"
    )
    connection.execute("CREATE TABLE NVTX_PAYLOAD_ENUMS (domainId INTEGER, schemaId INTEGER, size INTEGER)")
    enum, frame, schema = (1 << 32) + 1, 1 << 32, (1 << 32) + 2
    connection.execute("INSERT INTO NVTX_PAYLOAD_ENUMS VALUES (1, ?, 4)", (enum,))
    entries = [
        (0, None, 18, "Thread state ID", None),
        (1, None, enum, "Thread state", 8),
        (2, None, 16, "Frames count", 12),
        (3, 48, frame, "Frames", 16),
    ]
    connection.executemany(
        "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (1, ?, ?, ?, ?, ?, ?)",
        [(schema, *entry) for entry in entries],
    )
    frames = [(1, 2, 50, 0), (3, 4, 12, 0)]
    body = struct.pack("<QII", 1, 3, len(frames)) + b"".join(struct.pack("<QQII", *one) for one in frames)
    blob = struct.pack("<4Q", 1, schema, len(body), 32) + body
    connection.executemany(
        "INSERT INTO NVTX_EVENTS VALUES (?, NULL, 34, NULL, ?, NULL, 1, NULL, ?)",
        [(start, SAMPLER, blob) for start in (100, 110, 120)],
    )
    connection.commit()
    thread = SAMPLER & 0xFFFFFF
    assert found(path) == [(start, 10, thread, "load", "/home/me/train.py", 12) for start in (100, 110, 120)]


@pytest.mark.parametrize("data", [b"", bytes(40), stack((3, 4, 12))[:-1], stack((1, 2, 3))])
def test_a_damaged_payload_and_one_without_own_functions_are_left_out(path: Path, data: bytes) -> None:
    write(path, [(100, 1, data)]).commit()
    assert found(path) == []


def test_samples_of_the_cpu_and_stacks_of_calls_give_the_functions_of_compiled_code(path: Path) -> None:
    connection = write(path)
    columns = "id INTEGER, symbol INTEGER, module INTEGER, stackDepth INTEGER"
    for table, chain in (("SAMPLING_CALLCHAINS", 1), ("CUDA_CALLCHAINS", 5)):
        connection.execute(f"CREATE TABLE {table} ({columns})")
        rows = [(chain, 1, 8, 0), (chain, 7, 6, 1), (chain, 3, 6, 2)]
        connection.executemany(f"INSERT INTO {table} VALUES (?,?,?,?)", rows)
    connection.execute("CREATE TABLE COMPOSITE_EVENTS (id INTEGER, start INTEGER, globalTid INTEGER)")
    samples = [(1, 100, MAIN), (2, 110, MAIN), (3, 120, MAIN)]
    connection.executemany("INSERT INTO COMPOSITE_EVENTS VALUES (?,?,?)", samples)
    connection.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, "
        "correlationId INTEGER, nameId INTEGER, callchainId INTEGER)"
    )
    calls = [(200, 260, MAIN, 1, 9, 5), (300, 310, MAIN, 2, 9, 0), (400, 410, MAIN, 3, 9, None)]
    connection.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?,?)", calls)
    connection.commit()
    assert found(path) == [
        (100, 10, PROCESS, "solve", "/home/me/solver", -1),
        (200, 60, PROCESS, "solve", "/home/me/solver", -1),
    ]
