"""Columns of an export: those decoded from its pages are those that SQLite reads."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.nsys.export import MISSING, REQUIRED, UNREADABLE, ExportTable, open_export
from hpcprof.profiles.readers.nsys.table_pages import BinaryColumn, TableColumns, TablePages

NULL = -(2**63) + 7
LIMITS = [sign * 2**bits + more for bits in (7, 15, 31, 32, 47, 62) for sign in (1, -1) for more in (-1, 0)]
integers = st.one_of(st.none(), st.sampled_from([0, 1, -1, *LIMITS]), st.integers(-(2**63), 2**63 - 1))
texts = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=90))
blobs = st.one_of(st.none(), st.binary(max_size=90))
row = st.tuples(integers, integers, texts, blobs)


def make(path: Path, *statements: str) -> Path:
    """Write a database from nothing."""
    path.unlink(missing_ok=True)
    change(path, *statements)
    return path


def change(path: Path, *statements: str) -> None:
    """Execute statements on a database."""
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def read_bulk(
    path: Path,
    integers: Mapping[str, int | None],
    texts: Sequence[str] = (),
    blobs: Sequence[str] = (),
    pages: bool = True,
) -> list[list[Any]]:
    """Return columns of the table ``t``, from its pages or read by SQLite."""
    with open_export(path) as export, pytest.MonkeyPatch.context() as patch:
        if not pages:
            patch.setattr(TablePages, "read", lambda *_: None)
        table = export.table("t")
        if table is None:
            return [[] for _ in (*integers, *texts, *blobs)]
        numbers, contents, _ = table.read_bulk(integers, texts, blobs)
    return [
        *(numbers[name].tolist() for name in integers),
        *(contents[name].texts() for name in texts),
        *(listed(contents[name]) for name in blobs),
    ]


def listed(column: BinaryColumn) -> list[bytes | None]:
    """Return a column of blobs."""
    rows = zip(column.begin.tolist(), column.end.tolist(), column.present.tolist(), strict=True)
    return [column.content[begin:end].tobytes() if present else None for begin, end, present in rows]


def is_decoded(path: Path, integers: Mapping[str, int | None]) -> bool:
    """Return whether these columns of the table ``t`` are read without SQLite."""
    refused: list[object] = []

    def no_other_way(table: ExportTable, query: object) -> TableColumns:
        refused.append(query)
        raise DamagedInput("")

    with pytest.MonkeyPatch.context() as patch, suppress(DamagedInput):
        patch.setattr(ExportTable, "_read_by_sqlite", no_other_way)
        read_bulk(path, integers)
    return not refused


@pytest.mark.parametrize("pages", [True, False])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(row, max_size=40), page=st.sampled_from([512, 4096, 65536]))
def test_integers_texts_and_blobs_are_those_that_were_stored(
    tmp_path: Path, pages: bool, rows: list[tuple[Any, ...]], page: int
) -> None:
    path = make(
        tmp_path / "t.sqlite",
        f"PRAGMA page_size = {page}",
        "CREATE TABLE t (a INTEGER, b INTEGER, c TEXT, d TEXT)",
    )
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
    expected = [[*column] for column in zip(*rows, strict=True)] or [[], [], [], []]
    expected[:2] = [[NULL if value is None else value for value in column] for column in expected[:2]]
    assert read_bulk(path, {"a": NULL, "b": NULL}, ["c"], ["d"], pages) == expected
    assert read_bulk(path, {"b": NULL}, pages=pages) == expected[1:2]


@pytest.mark.parametrize("pages", [True, False])
def test_a_table_of_many_pages_is_read_whole(tmp_path: Path, pages: bool) -> None:
    path = many_rows(tmp_path / "t.sqlite", 40_000)
    found = read_bulk(path, {"c0": NULL, "c2": NULL}, pages=pages)
    assert found == [[i * 1000 for i in range(1, 40_001)], [i * 3000 for i in range(1, 40_001)]]


def many_rows(path: Path, rows: int = 5000) -> Path:
    """Write rows of three integers."""
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"
    return make(
        path,
        "PRAGMA page_size = 1024",
        "CREATE TABLE t (c0 INTEGER, c1 INTEGER, c2 INTEGER)",
        f"{numbers} INSERT INTO t SELECT i * 1000, i * 2000, i * 3000 FROM n",
    )


@pytest.mark.parametrize("pages", [True, False])
def test_a_key_column_without_a_value_is_missing_and_an_absent_column_has_its_default(
    tmp_path: Path, pages: bool
) -> None:
    path = make(tmp_path / "t.sqlite", "CREATE TABLE t (start INTEGER)", "INSERT INTO t VALUES (5), (NULL)")
    found = read_bulk(path, {"start": REQUIRED, "device": 3}, ["text"], ["data"], pages)
    assert found == [[5, MISSING], [3, 3], [None, None], [None, None]]


ODD = ["1.5", "-0.5", "9.5e18", "9e999", "'soon'", "''", "x'00'", "x'37'", "'9223372036854775808'"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of many pages, whose column c1 may hold any value."""
    path = many_rows(tmp_path_factory.mktemp("large") / "t.sqlite")
    change(path, "ALTER TABLE t RENAME TO u", "CREATE TABLE t AS SELECT c0, +c1 AS c1 FROM u", "DROP TABLE u")
    return path


@pytest.mark.parametrize(("value", "found"), [*((odd, None) for odd in ODD), ("'7'", 7), ("7.0", 7)])
def test_of_a_large_table_a_value_that_is_not_an_integer_is_counted_and_its_row_kept(
    large: Path, tmp_path: Path, value: str, found: int | None
) -> None:
    path = Path(shutil.copy(large, tmp_path))
    change(path, f"UPDATE t SET c1 = {value} WHERE rowid IN (1, 5000)")
    for pages in (True, False):
        key, other = read_bulk(path, {"c0": REQUIRED, "c1": REQUIRED}, pages=pages)
        assert len(key) == 5000
        assert [other[0], other[-1]] == [UNREADABLE if found is None else found] * 2
        assert [other[1], other[-2]] == [4000, 4999 * 2000]
        (with_null,) = read_bulk(path, {"c1": NULL}, pages=pages)
        assert [with_null[0], with_null[-1]] == [NULL if found is None else found] * 2
    with open_export(path) as export:
        table = export.table("t")
        assert table is not None
        assert table.read_bulk({"c0": NULL, "c1": NULL}).odd == ({"c1": 2} if found is None else {})


@pytest.mark.parametrize("value", ODD)
def test_a_small_table_with_a_value_that_is_not_an_integer_is_damage(tmp_path: Path, value: str) -> None:
    path = make(tmp_path / "t.sqlite", "CREATE TABLE t (a, b)", f"INSERT INTO t VALUES (1, 2), (3, {value})")
    sentence = "table t holds a value in column b that is not an integer"
    with open_export(path) as export, pytest.raises(DamagedInput, match=sentence):
        table = export.table("t")
        assert table is not None
        table.read({"a": NULL, "b": NULL})


def test_numbers_among_texts_become_texts(tmp_path: Path) -> None:
    path = make(tmp_path / "t.sqlite", "CREATE TABLE t (n, a)")
    change(path, "INSERT INTO t VALUES (1, NULL), (2, 'seven'), (3, 7), (4, x'41ff')")
    for pages in (True, False):
        assert read_bulk(path, {"n": 0}, ["a"], pages=pages)[1] == [
            None,
            "seven",
            "7",
            "A\ufffd",
        ]


def test_a_blob_column_holds_no_texts(tmp_path: Path) -> None:
    path = make(tmp_path / "t.sqlite", "CREATE TABLE t (n, a)")
    change(path, "INSERT INTO t VALUES (1, 'text'), (2, x'00ff'), (3, 7), (4, NULL)")
    for pages in (True, False):
        assert read_bulk(path, {"n": 0}, blobs=["a"], pages=pages)[1] == [None, b"\0\xff", None, None]


def test_texts_in_another_encoding_are_read(tmp_path: Path) -> None:
    utf16, table = "PRAGMA encoding = 'UTF-16le'", "CREATE TABLE t (n, a)"
    path = make(tmp_path / "t.sqlite", utf16, table, "INSERT INTO t VALUES (1, 'größer')")
    for pages in (True, False):
        assert read_bulk(path, {"n": 0}, ["a"], pages=pages)[1] == ["größer"]


def test_a_file_with_a_write_ahead_log_is_read_in_one_transaction(tmp_path: Path) -> None:
    path = many_rows(tmp_path / "t.sqlite")
    change(path, "PRAGMA journal_mode = WAL")
    with open_export(path) as export:
        table = export.table("t")
        assert table is not None
        assert export.pages is None
        change(path, "DELETE FROM t WHERE c0 > 5000")
        assert len(table.read_bulk({"c0": NULL})[0]["c0"]) == 5000


def computed(path: Path) -> Path:
    return make(
        path,
        "CREATE TABLE t (twice INTEGER GENERATED ALWAYS AS (2 * start) VIRTUAL, start INTEGER)",
        "INSERT INTO t (start) VALUES (3), (NULL)",
    )


def row_number(path: Path) -> Path:
    return make(
        path, "CREATE TABLE t (twice INTEGER PRIMARY KEY, start)", "INSERT INTO t VALUES (6, 3), (7, NULL)"
    )


def no_row_numbers(path: Path) -> Path:
    return make(
        path,
        "CREATE TABLE t (twice INTEGER PRIMARY KEY, start) WITHOUT ROWID",
        "INSERT INTO t VALUES (6, 3), (7, NULL)",
    )


def view(path: Path) -> Path:
    return make(
        path,
        "CREATE TABLE old (start INTEGER)",
        "INSERT INTO old VALUES (3), (NULL)",
        "CREATE VIEW t AS SELECT start, 2 * start AS twice FROM old",
    )


def added_column(path: Path) -> Path:
    return make(
        path,
        "CREATE TABLE t (twice INTEGER)",
        "INSERT INTO t VALUES (6), (7)",
        "ALTER TABLE t ADD COLUMN start INTEGER",
        "UPDATE t SET start = 3 WHERE twice = 6",
    )


@pytest.mark.parametrize(
    ("build", "decoded"),
    [(row_number, True), (no_row_numbers, False), (added_column, False)],
)
def test_whatever_holds_a_column_it_is_read(
    tmp_path: Path, build: Callable[[Path], Path], decoded: bool
) -> None:
    path = build(tmp_path / "t.sqlite")
    found = [read_bulk(path, {"start": -1, "twice": -1}, pages=pages) for pages in (True, False)]
    assert found[0] == found[1]
    assert (found[0][0], found[0][1][0]) == ([3, -1], 6)
    assert is_decoded(path, {"start": -1, "twice": -1}) == decoded


@pytest.mark.parametrize("build", [computed, view])
def test_a_table_that_is_computed_is_refused(tmp_path: Path, build: Callable[[Path], Path]) -> None:
    with (
        pytest.raises(DamagedInput, match="table t is computed by SQL"),
        open_export(build(tmp_path / "t.sqlite")) as export,
    ):
        export.table("t")


def column_rowid(path: Path) -> Path:
    return make(path, "CREATE TABLE t (start, twice, RowId)", "INSERT INTO t VALUES (3, 6, 9), (NULL, 7, 9)")


def far_apart(path: Path) -> Path:
    return make(
        path,
        "CREATE TABLE t (start, twice)",
        f"INSERT INTO t (rowid, start, twice) VALUES ({-(2**63)}, 3, 6), ({2**63 - 1}, NULL, 7)",
    )


@pytest.mark.parametrize("build", [row_number, column_rowid, far_apart])
def test_what_another_thread_began_to_read_is_the_same(tmp_path: Path, build: Callable[[Path], Path]) -> None:
    path = build(tmp_path / "t.sqlite")
    integers = {"start": -1, "twice": -1}
    with open_export(path, threads=3) as export:
        table = export.table("t")
        assert table is not None
        table.begin_bulk(integers)
        numbers = table.read_bulk(integers).integers
    assert [numbers[name].tolist() for name in integers] == read_bulk(path, integers, pages=False)


@pytest.mark.parametrize(
    "deleted", ["0", "c0 < 2000", "c0 > 4000000", "c0 BETWEEN 60000 AND 300000", "c0 % 7", "1"]
)
def test_rows_that_were_deleted_leave_no_gap(tmp_path: Path, deleted: str) -> None:
    path = many_rows(tmp_path / "t.sqlite")
    change(path, f"DELETE FROM t WHERE {deleted}")
    integers = {"c0": NULL, "c2": NULL}
    assert read_bulk(path, integers) == read_bulk(path, integers, pages=False)


@pytest.mark.parametrize("page", [512, 4096])
def test_records_that_go_on_in_other_pages_are_decoded(tmp_path: Path, page: int) -> None:
    path = make(tmp_path / "t.sqlite", f"PRAGMA page_size = {page}", "CREATE TABLE t (text TEXT, c0 INTEGER)")
    # Among these lengths are those just below and above what a page holds of a record.
    rows = [("x" * length, length) for length in (0, 57, 58, *range(page - 60, page + 60), 3 * page, 99_999)]
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany("INSERT INTO t VALUES (?, ?)", rows)
    assert read_bulk(path, {"c0": NULL}, ["text"]) == [
        [length for _, length in rows],
        [text for text, _ in rows],
    ]
    assert is_decoded(path, {"c0": NULL})


def test_a_damaged_file_is_never_decoded_to_other_values_than_sqlite_reads(tmp_path: Path) -> None:
    path = many_rows(tmp_path / "t.sqlite")
    whole = path.read_bytes()
    generator = random.Random(1)
    equal = refused = 0
    for _ in range(50):
        content = bytearray(whole)
        at = generator.randrange(1024, len(whole) - 64)
        size = generator.choice([1, 4, 64])
        content[at : at + size] = generator.randbytes(size)
        path.write_bytes(content)
        found = [result_of(path, pages) for pages in (True, False)]
        assert found[0] == found[1]
        equal += not isinstance(found[0], str)
        refused += isinstance(found[0], str)
    assert equal > 10
    assert refused > 5


def result_of(path: Path, pages: bool) -> str | list[list[Any]]:
    """Return columns, or the sentence on what is wrong with the file."""
    try:
        return read_bulk(path, {"c0": NULL, "c2": NULL}, pages=pages)
    except DamagedInput as error:
        return str(error)
