"""Memory for reading a file is bounded by the size of the file."""

from __future__ import annotations

import gzip
import pickle
import signal
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles import input_bounds
from hpcprof.profiles.gzip_file import content_of
from hpcprof.profiles.input_bounds import bounded, first_repeated_name
from hpcprof.profiles.readers import plain_pickle
from hpcprof.profiles.readers.darshan.dump_script import memory_bound
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.readers.nsys.export import open_export
from hpcprof.profiles.readers.nsys.parquet_tables import ParquetTables
from hpcprof.profiles.readers.nsys.table_pages import StoredTable, TablePages, Wanted
from hpcprof.profiles.readers.rocprof import database
from hpcprof.profiles.readers.rocprof.database import decode_value

BOMB = "was not unpacked: it becomes larger than"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_bounds, "ALWAYS_ALLOWED_BYTES", 1_000_000)


def test_threads_that_read_at_the_same_time_have_the_sum_of_their_bounds(tmp_path: Path) -> None:
    def read(own: int, needed: int) -> int:
        with bounded(tmp_path / "rank0.sqlite", own):
            both.wait(10)
            size = len(bytearray(needed))
            both.wait(10)
            return size

    both = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(read, (100_000_000, 400_000_000), (300_000_000, 50_000_000))] == [
            300_000_000,
            50_000_000,
        ]


def test_a_file_that_takes_too_long_is_refused_in_a_sentence_and_the_next_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(seconds: float) -> float:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            with suppress(Exception):  # as readers that count what they cannot read
                int("x")
        return seconds

    monkeypatch.setattr(input_bounds, "_MEMORY_PER_SECOND", 1e9)
    before = signal.getsignal(signal.SIGPROF)
    for _ in range(2):
        sentence = r"rank0.sqlite needs more time .* \(0 s of a core\)\.$"
        with pytest.raises(DamagedInput, match=sentence), bounded(tmp_path / "rank0.sqlite", 100_000_000):
            compute(60)
        assert signal.getsignal(signal.SIGPROF) is before
        with bounded(tmp_path / "rank0.sqlite", 1_000_000_000):
            assert compute(0.2) == 0.2
        assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_a_profiler_of_the_program_keeps_its_signal(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGPROF, profiler := lambda *_: None)
    try:
        with bounded(tmp_path / "rank0.sqlite", 1 << 30):
            assert signal.getsignal(signal.SIGPROF) is profiler
    finally:
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("end", [b"", b"\0\0\0\0"])
def test_a_packed_file_is_unpacked_up_to_its_bound(files: int, end: bytes, tmp_path: Path) -> None:
    path = tmp_path / "packed"
    packed = gzip.compress(bytes(4_000_000))
    path.write_bytes(files * (packed[: -len(end)] + end if end else packed))
    with pytest.raises(DamagedInput, match="Incorrect length" if end else BOMB):
        content_of(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rank0.pt.trace.json.gz", b'{"traceEvents": [' + b" " * 9_000_000),
        ("rank0.pt.trace.json.gz", b'{"traceEvents": [{"name": "' + b"a" * 9_000_000),
        ("rank0.pt.trace.json.gz", b" " * 9_000_000),
        ("rank0.ncu.csv.gz", b'"ID","Kernel Name"\n' + b"1," * 4_000_000),
    ],
)
def test_a_packed_profile_that_becomes_too_large_is_refused_in_a_sentence(
    name: str, text: bytes, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text))
    with pytest.raises(DamagedInput, match=r"\.$"):
        read_profile(path)


@pytest.mark.parametrize(
    "content",
    [
        b"\x0a\x00" * 10_000,
        # One plane of 2**19 lines.
        b"\x0a\x80\x80\x40" + b"\x1a\x00" * (1 << 19),
        # One line of one plane with one event, of 2**14 statistics.
        b"\x0a\x88\x80\x02\x1a\x84\x80\x02\x22\x80\x80\x02" + b"\x22\x00" * (1 << 14),
    ],
)
def test_countless_planes_lines_and_statistics_are_damage(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "rank0.xplane.pb").write_bytes(content)
    with pytest.raises(DamagedInput, match="is damaged"):
        read_profile(tmp_path / "rank0.xplane.pb")


def test_names_of_columns_are_compared_in_one_pass() -> None:
    names = [str(number) for number in range(300_000)]
    assert (first_repeated_name(names), first_repeated_name([*names, "7"])) == ("", "7")


@pytest.mark.parametrize(
    ("pickled", "why"),
    [
        (b"(" + b"]" * 1000 + b"t.", "too many values"),
        (b"}" + b")" + b"\x85" * 60 + b"K\x01s.", "nests too deeply"),
        # By what is kept, with a number beside each.
        (b"})q\x00" + b"h\x00K\x01\x86q\x00" * 60 + b"K\x01s.", "nests too deeply"),
    ],
)
def test_a_pickle_that_becomes_far_larger_or_deeper_is_refused(
    pickled: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_pickle, "_MAX_DEPTH", 50)
    with pytest.raises(ValueError, match=why):
        plain_pickle.load_plain(pickled, 1000)


def test_a_pickle_of_many_flat_tuples_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "_MAX_DEPTH", 3)
    values = {"a": [(number, {("b", "c"): (1, (2, 3))}) for number in range(50)]}
    for protocol in (2, 4):
        assert plain_pickle.load_plain(pickle.dumps(values, protocol), 10_000) == values


@pytest.mark.parametrize(
    "column",
    [
        pa.array([7]).take(pa.array([0] * 1_000_000)),
        pa.array(["a" * 10_000]).take(pa.array([0] * 1000)),
    ],
)
def test_a_parquet_table_that_repeats_one_value_is_refused(column: pa.Array, tmp_path: Path) -> None:
    path = tmp_path / "A.parquet"
    pq.write_table(pa.table({"a": column}), path, compression="zstd")
    with pytest.raises(DamagedInput, match=BOMB):
        ParquetTables({"A": path}, sqlite3.connect(":memory:"))._content("A")


def test_a_stored_value_is_unpacked_up_to_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_MAX_JSON_BYTES", 1000)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as file:
        file.write(b"[" + b" " * 2000 + b"]")
    assert decode_value(sink.getvalue().to_pybytes(), list[int]) is None
    monkeypatch.setattr(database, "_MAX_JSON_BYTES", 10_000)
    assert decode_value(sink.getvalue().to_pybytes(), list[int]) == []


def shared_pages(path: Path, levels: int) -> Path:
    """Make a table whose pages each have one child, 500 times, down to a leaf of 100 rows."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(row, "x" * 20) for row in range(100)])
        connection.commit()
    content = path.read_bytes()
    size = int.from_bytes(content[16:18], "big")
    head, leaf = bytearray(content[:size]), content[size : 2 * size]
    head[28:32] = (2 + levels).to_bytes(4, "big")
    pages = [bytes(head)]
    for level in range(levels):
        child = (level + 3).to_bytes(4, "big")
        cell = (size - 5).to_bytes(2, "big")
        page = bytes([5, 0, 0]) + (500).to_bytes(2, "big") + cell + b"\0" + child + 500 * cell
        pages.append(page.ljust(size - 5, b"\0") + child + b"\x64")
    path.write_bytes(b"".join(pages) + leaf)
    return path


def test_pages_with_several_parents_give_no_more_rows_than_the_file_can_hold(tmp_path: Path) -> None:
    with (
        pytest.raises(DamagedInput, match="more rows than the file can hold"),
        open_export(shared_pages(tmp_path / "t.sqlite", 2)) as export,
    ):
        table = export.table("t")
        assert table is not None
        table.read_bulk({"a": 0}, ["b"])


def test_records_that_share_their_bytes_are_not_decoded(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(1, "x" * 1000), *[(2, "y")] * 100])
        connection.commit()
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    content[size + 10 : size + 208] = 99 * content[size + 8 : size + 10]
    path.write_bytes(content)
    with closing(TablePages(path)) as pages:
        assert pages.read(StoredTable(2, {"a": 0, "b": 1}), Wanted({"a": 0}, {"b": True})) is None


def test_a_query_takes_no_more_steps_than_the_file_justifies(tmp_path: Path) -> None:
    with (
        pytest.raises(DamagedInput, match="interrupted"),
        open_export(shared_pages(tmp_path / "t.sqlite", 3)) as export,
    ):
        next(export.rows("SELECT sum(a) FROM t"))


@pytest.mark.parametrize(("size", "most"), [(0, 5 << 28), (10_000_000, 2_000_000_000), (10**12, 8 << 30)])
def test_the_reader_of_darshan_has_the_memory_that_its_log_justifies(size: int, most: int) -> None:
    assert memory_bound(size) == most
