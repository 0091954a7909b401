"""Columns decoded from a file's pages, against what SQLite itself reads."""

from __future__ import annotations

import lzma
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import fields, is_dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcprof.profiles.readers.nsys import reader as nsys
from hpcprof.profiles.readers.nsys import sqlite_pages
from hpcprof.profiles.readers.nsys.cells import Cells
from hpcprof.profiles.readers.nsys.export import opened
from hpcprof.profiles.readers.nsys.sqlite_pages import read_columns

DATA = Path(__file__).parents[4] / "data"
NULL = -(2**63) + 7
LIMITS = [sign * 2**bits + more for bits in (7, 15, 23, 31, 47, 62) for sign in (1, -1) for more in (-1, 0)]
values = st.one_of(st.none(), st.sampled_from([0, 1, -1, *LIMITS]), st.integers(-(2**63), 2**63 - 1))


@pytest.fixture(scope="module")
def compiled() -> None:
    """The compiled reader of pages; without it the tests of it are skipped, but not in CI."""
    if sqlite_pages._library() is None:
        assert not os.environ.get("CI"), "CI installs a C compiler"
        pytest.skip("sqlite_pages.c is not compiled")


def make(path: Path, *statements: str) -> Path:
    """Write a database from nothing."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    return path


def by_pages(path: Path, columns: Sequence[int]) -> list[list[int]] | None:
    """Return columns of the table ``t``, None where only SQLite can read them."""
    with closing(sqlite3.connect(path)) as database:
        root = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()[0]
    with path.open("rb") as file:
        found = read_columns(file.fileno(), root, columns, [NULL] * len(columns))
    return None if found is None else [column.tolist() for column in found[0]]


def by_sqlite(path: Path, columns: Sequence[int]) -> list[list[int]]:
    """Return the same columns by a query."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT * FROM t").fetchall()
    return [[NULL if row[column] is None else row[column] for row in rows] for column in columns]


@pytest.mark.usefixtures("compiled")
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), width=st.integers(1, 30), page=st.sampled_from([512, 1024, 4096, 65536]))
def test_pages_hold_what_sqlite_reads(tmp_path: Path, data: st.DataObject, width: int, page: int) -> None:
    distinct = data.draw(st.lists(st.tuples(*[values] * width), max_size=12))
    columns = data.draw(st.lists(st.integers(0, width - 1), min_size=1, max_size=6, unique=True))
    first_row = data.draw(st.sampled_from([1, -5, 2**40, 2**62]))
    names = [f"c{i}" for i in range(width)]
    path = make(tmp_path / "t.sqlite", f"PRAGMA page_size = {page}", f"CREATE TABLE t ({', '.join(names)})")
    with closing(sqlite3.connect(path)) as database, database:
        # Repeated until the tree is several levels deep, and with gaps where rows are deleted.
        rows = [(first_row + 3 * i, *distinct[i % len(distinct)]) for i in range(40 * len(distinct))]
        marks = ", ".join("?" * (width + 1))
        database.executemany(f"INSERT INTO t (rowid, {', '.join(names)}) VALUES ({marks})", rows)
        if data.draw(st.booleans()):
            database.execute("DELETE FROM t WHERE rowid % 5 = 0")
    assert by_pages(path, columns) == by_sqlite(path, columns)


def cells_by_pages(path: Path, ints: Sequence[int], cells: Sequence[int]) -> list[list[Any]] | None:
    """Return columns of integers, then texts and blobs, of the table ``t``."""
    with closing(sqlite3.connect(path)) as database:
        root = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()[0]
    with path.open("rb") as file:
        found = read_columns(file.fileno(), root, ints, [NULL] * len(ints), cells)
    return None if found is None else [*(column.tolist() for column in found[0]), *map(listed, found[1])]


def listed(cells: Cells) -> list[str | bytes | None]:
    """Return a column of texts and blobs as SQLite would; both ways of reading a blob agree."""
    sizes = cells.blob_sizes().tolist()
    return [
        cells.content[begin : begin + size].tobytes() if kind == 2 else text
        for begin, size, kind, text in zip(
            cells.begin.tolist(), sizes, cells.kind.tolist(), cells.texts(), strict=True
        )
    ]


@pytest.mark.usefixtures("compiled")
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(
            values,
            st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=90)),
            st.one_of(st.none(), st.binary(max_size=90)),
        ),
        max_size=80,
    )
)
def test_texts_and_blobs_are_those_that_sqlite_reads(
    tmp_path: Path, rows: list[tuple[int | None, str | None, bytes | None]]
) -> None:
    path = make(tmp_path / "t.sqlite", "PRAGMA page_size = 512", "CREATE TABLE t (a, b TEXT, c)")
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    numbers, texts, blobs = ([*column] for column in zip(*rows, strict=True)) if rows else ([], [], [])
    numbers = [NULL if number is None else number for number in numbers]
    assert cells_by_pages(path, [0], [1, 2]) == [numbers, texts, blobs]
    assert cells_by_pages(path, [0], [2, 1]) == [numbers, blobs, texts]
    assert listed(Cells.of(texts)) == texts
    assert listed(Cells.of(blobs)) == blobs


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("value", ["7", "1.5", "hex(zeroblob(5000))"])
def test_texts_among_which_are_others_are_left_to_sqlite(tmp_path: Path, value: str) -> None:
    path = make(tmp_path / "t.sqlite", "CREATE TABLE t (n, a)", "INSERT INTO t VALUES (1, 'seven')")
    assert cells_by_pages(path, [0], [1]) == [[1], ["seven"]]
    make_changed(path, [f"INSERT INTO t VALUES (2, {value})"])
    assert cells_by_pages(path, [0], [1]) is None
    with closing(sqlite3.connect(path)) as database:
        expected = [str(a) for (a,) in database.execute("SELECT a FROM t")]
    assert texts_of(path) == expected


@pytest.mark.usefixtures("compiled")
def test_texts_in_another_encoding_are_read_by_sqlite(tmp_path: Path) -> None:
    utf16, table = "PRAGMA encoding = 'UTF-16le'", "CREATE TABLE t (n, a)"
    path = make(tmp_path / "t.sqlite", utf16, table, "INSERT INTO t VALUES (1, 'größer')")
    assert cells_by_pages(path, [0], [1]) is None
    assert texts_of(path) == ["größer"]


def texts_of(path: Path) -> list[str | None]:
    """Return the column ``a`` of the table ``t`` of an export."""
    with opened(path) as export:
        source = export.source("t")
        assert source is not None
        _, (cells,) = source.ints_and_cells({"n": 0}, ["a"])
    return cells.texts()


def many_rows(database: Path, width: int = 3) -> Path:
    """Write 5000 rows of integers."""
    columns = ", ".join(f"c{i} INTEGER" for i in range(width))
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)"
    cells = ", ".join(f"i * {i + 1} * 1000" for i in range(width))
    return make(
        database,
        "PRAGMA page_size = 1024",
        f"CREATE TABLE t ({columns})",
        f"{numbers} INSERT INTO t SELECT {cells} FROM n",
    )


@pytest.mark.usefixtures("compiled")
def test_a_table_of_more_rows_than_some_pages_promise_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "t.sqlite", "PRAGMA page_size = 512", "CREATE TABLE t (a, b)")
    rows = [(i, "long" * 80 if i < 9 else None) for i in range(5000)]
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany("INSERT INTO t VALUES (?, ?)", rows)
    # The first page, which has one row.
    monkeypatch.setattr(sqlite_pages, "_SAMPLE", 1)
    assert cells_by_pages(path, [0], [1]) == [[i for i, _ in rows], [text for _, text in rows]]


@pytest.mark.usefixtures("compiled")
def test_text_and_fractions_in_other_columns_do_not_matter(tmp_path: Path) -> None:
    path = make(
        tmp_path / "t.sqlite",
        "CREATE TABLE t (a, b, c, d, e)",
        "INSERT INTO t VALUES ('short text', 1.5, 7, 'a long text that goes on' || hex(zeroblob(50)), 8)",
    )
    assert by_pages(path, [2, 4]) == [[7], [8]]


def change(*statements: str) -> Callable[[Path], Any]:
    return lambda path: make_changed(path, statements)


def make_changed(path: Path, statements: Sequence[str]) -> None:
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "unusual",
    [
        change("UPDATE t SET c1 = 'soon' WHERE rowid = 70"),
        change("UPDATE t SET c1 = x'00' WHERE rowid = 70"),
        change("UPDATE t SET c1 = 1.5 WHERE rowid = 70"),
        change("UPDATE t SET c2 = 'x' || hex(zeroblob(5000)) WHERE rowid = 70"),
        change("PRAGMA journal_mode = WAL"),
        change("ALTER TABLE t RENAME TO u", "ALTER TABLE u ADD COLUMN c1b", "ALTER TABLE u RENAME TO t"),
        change("DROP TABLE t", "CREATE TABLE t (c0, c1 PRIMARY KEY, c2) WITHOUT ROWID"),
    ],
    ids=[
        "text",
        "blob",
        "fraction",
        "overflow pages",
        "WAL",
        "added column",
        "no row ids",
    ],
)
def test_what_is_not_the_plain_case_is_left_to_sqlite(tmp_path: Path, unusual: Callable[[Path], Any]) -> None:
    path = many_rows(tmp_path / "t.sqlite")
    assert by_pages(path, [1, 2]) == by_sqlite(path, [1, 2])
    unusual(path)
    wanted = [1, 3] if "c1b" in path.read_bytes().decode("latin-1") else [1]
    assert by_pages(path, wanted) is None


def test_a_file_that_is_cut_is_left_to_sqlite(tmp_path: Path) -> None:
    path = many_rows(tmp_path / "t.sqlite")
    whole = path.read_bytes()
    with closing(sqlite3.connect(path)) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_master").fetchone()
    for size in range(0, len(whole), 1777):
        path.write_bytes(whole[:size])
        with path.open("rb") as file:
            assert read_columns(file.fileno(), root, [0], [NULL]) is None


@pytest.mark.usefixtures("compiled")
def test_of_overwritten_bytes_it_never_makes_other_values_than_sqlite(tmp_path: Path) -> None:
    path = many_rows(tmp_path / "t.sqlite")
    whole = path.read_bytes()
    generator = random.Random(1)
    equal = 0
    for _ in range(300):
        content = bytearray(whole)
        at = generator.randrange(1024, len(whole) - 64)
        size = generator.choice([1, 4, 64])
        content[at : at + size] = generator.randbytes(size)
        path.write_bytes(content)
        found = by_pages(path, [0, 2])
        try:
            expected = by_sqlite(path, [0, 2])
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            continue
        assert found in (None, expected)
        equal += found == expected
    assert equal > 50


def columns(value: Any) -> Iterator[list[Any]]:
    """Yield all arrays of a timeline as lists."""
    for field in fields(value):
        part = getattr(value, field.name)
        if is_dataclass(part):
            yield from columns(part)
        elif isinstance(part, np.ndarray):
            yield part.tolist()


def no_file(name: str) -> None:
    """Stand for `find_spec` where there was no compiler."""


def no_library(name: str) -> ModuleSpec:
    """Stand for `find_spec` where the compiled file is for another kind of machine."""
    return ModuleSpec(name, None, origin=__file__)


@pytest.mark.parametrize("absent", [no_file, no_library])
def test_without_the_compiled_file_a_profile_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, absent: Callable[[str], ModuleSpec | None]
) -> None:
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(lzma.decompress((DATA / "sp_bf16_rank0.sqlite.xz").read_bytes()))
    expected = list(columns(nsys.read(path)))
    sqlite_pages._library.cache_clear()
    try:
        monkeypatch.setattr(sqlite_pages, "find_spec", absent)
        assert sqlite_pages._library() is None
        assert list(columns(nsys.read(path))) == expected
    finally:
        sqlite_pages._library.cache_clear()


def test_a_column_that_is_the_row_id_is_read_by_sqlite(tmp_path: Path) -> None:
    """Its place in the record holds NULL."""
    path = make(
        tmp_path / "t.sqlite",
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)",
        "INSERT INTO StringIds VALUES (5, 'five'), (9, 'nine')",
    )
    with opened(path) as export:
        source = export.source("StringIds")
        assert source is not None
        assert source.ints({"id": -1})["id"].tolist() == [5, 9]


def test_a_generated_column_is_computed(tmp_path: Path) -> None:
    path = make(
        tmp_path / "t.sqlite",
        "CREATE TABLE t (twice INTEGER GENERATED ALWAYS AS (2 * start) VIRTUAL, start INTEGER)",
        "INSERT INTO t (start) VALUES (4)",
    )
    with opened(path) as export:
        source = export.source("t")
        assert source is not None
        assert source.ints({"start": -1})["start"].tolist() == [4]


def test_a_view_is_read(tmp_path: Path) -> None:
    path = make(
        tmp_path / "t.sqlite",
        "CREATE TABLE old (start INTEGER)",
        "INSERT INTO old VALUES (3), (NULL)",
        "CREATE VIEW t AS SELECT start FROM old",
    )
    with opened(path) as export:
        source = export.source("t")
        assert source is not None
        assert source.ints({"start": -1})["start"].tolist() == [3, -1]


DELETE = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=0.1)
database.execute("DELETE FROM t WHERE c0 > 5000")
database.commit()
"""


def test_another_process_cannot_change_the_file_while_it_is_read(tmp_path: Path) -> None:
    path = many_rows(tmp_path / "t.sqlite")
    with opened(path) as export:
        source = export.source("t")
        assert source is not None
        # Again after the first table: a process that closes the file has no lock on it any more.
        for _ in range(2):
            deleted = subprocess.run([sys.executable, "-c", DELETE, path], capture_output=True, text=True)
            assert "database is locked" in deleted.stderr
            assert len(source.ints({"c0": -1})["c0"]) == 5000
