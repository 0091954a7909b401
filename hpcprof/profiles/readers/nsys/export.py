"""Access to the tables of an export of nsys, which differ between versions.

An export is a SQLite file, or a folder with a Parquet file per table.
"""

import math
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from hpcprof.common.errors import DamagedInput, first_line, reading
from hpcprof.common.paths import is_folder, read_only_uri
from hpcprof.profiles.input_bounds import ROW_BYTES, STEPS_BETWEEN_CHECKS, max_selected_bytes, max_steps
from hpcprof.profiles.readers.nsys import NSYS
from hpcprof.profiles.readers.nsys.table_pages import (
    BinaryColumn,
    StoredTable,
    TableColumns,
    TablePages,
    Wanted,
    quoted,
)
from hpcprof.profiles.timeline import NO_NAME, Ints

if TYPE_CHECKING:  # pyarrow takes a while to import, and only folders need it here
    from hpcprof.profiles.readers.nsys.parquet_tables import ParquetTables

MISSING = int(np.iinfo(np.int64).min)
"""The value for NULL in a column of time stamps, which may be negative."""

UNREADABLE = MISSING + 1
"""The value for what is not an integer in a key column; like `MISSING`, it is not a possible time stamp."""

NO_ID = -1
"""The value for NULL in a column of ids."""

REQUIRED = None

# A global id holds the process above the thread: globalTid >> 24 = globalPid >> 24.
PROCESS_SHIFT = 24
THREAD_BITS = 0xFFFFFF

_MAGIC = b"SQLite format 3\x00"
# SQLite's documented limit on bound parameters was 999 before version 3.32.
_MAX_PARAMETERS = 900

_METADATA_TABLES = (
    *("ANALYSIS_", "DIAGNOSTIC_", "ENUM_", "META_", "TARGET_INFO_"),
    *("MPI_COMMUNICATORS", "MPI_RANKS", "PROFILER_OVERHEAD"),
)
"""Beginnings of the names of tables about the capture, not the program."""


class BulkColumns(NamedTuple):
    """Columns of a large table: integers, and texts and blobs, by name.

    ``odd`` counts the values of a column that are not integers, for the columns that have any.
    """

    integers: dict[str, Ints]
    binary: dict[str, BinaryColumn]
    odd: dict[str, int]


class _Query(NamedTuple):
    """A query of integers, none NULL, and of texts or blobs, with the names of both."""

    text: str
    integers: tuple[str, ...]
    binary: tuple[str, ...]


class ExportTable(msgspec.Struct, frozen=True):
    """One table of an export, with the names of the columns that this version has.

    ``decode`` returns columns of a large table without SQLite; None where that is not possible.
    """

    export: "NsysExport"
    name: str
    columns: frozenset[str]
    decode: Callable[[Wanted], TableColumns | None] | None

    def rows(
        self, expressions: Sequence[str], clauses: str = "", parameters: Sequence[str | int] = ()
    ) -> Iterator[Sequence[Any]]:
        """Select columns or other expressions; ``clauses`` is what follows the name of the table."""
        selected = ", ".join(quoted(name) if name in self.columns else name for name in expressions)
        return self._execute(f"SELECT {selected} FROM {quoted(self.name)} {clauses}", parameters)

    def _execute(self, query: str, parameters: Sequence[str | int] = ()) -> Iterator[Sequence[Any]]:
        if self.export.parquet:
            self.export.parquet.copy(self.name)
        return self.export.rows(query, parameters)

    def require(self, *names: str) -> None:
        """Raise `DamagedInput` if a key column is absent."""
        absent = [name for name in names if name not in self.columns]
        if absent:
            raise DamagedInput(f"{self.export.path}: table {self.name} has no column {' or '.join(absent)}.")

    def integers(self, defaults: Mapping[str, int | None]) -> dict[str, Ints]:
        """Return integer columns of a small table; see `read`."""
        return self.read(defaults)[0]

    def read(self, integers: Mapping[str, int | None], texts: Sequence[str] = ()) -> TableColumns:
        """Return columns of a small table in the table's order, read by Python's SQLite.

        Raises DamagedInput if a key column is absent or a value is not an integer.

        Parameters
        ----------
        integers : mapping of str to int or None
            Each column with the value for NULL, or for all rows where the table has no such column;
            `REQUIRED` marks a key column, whose NULLs become `MISSING`.
        texts : sequence of str
            Columns that hold texts; a column that the table does not have is all NULL.
        """
        columns = self._columns(self._query(integers, texts), self._numbers)
        return self._with_defaults(integers, texts, columns)

    def read_bulk(
        self, integers: Mapping[str, int | None], texts: Sequence[str] = (), blobs: Sequence[str] = ()
    ) -> BulkColumns:
        """Do as `read` for a large table, from its pages, and keep rows with values that are not integers.

        Such a value becomes `UNREADABLE` in a key column and counts as NULL in the others. ``blobs`` are NULL
        where they hold no blob.
        """
        self._require_keys(integers)
        pending = self.export.pending.pop((self.name, *integers), None)
        columns = pending.result() if pending else self._decode_columns(integers, texts, blobs)
        odd_counts: dict[str, int] = {}
        if not columns:
            query = self._query(integers, texts, blobs, lenient=True)
            columns, odd_counts = self._read_by_sqlite(query), self._odd_counts(query.integers)
        return BulkColumns(*self._with_defaults(integers, [*texts, *blobs], columns), odd_counts)

    def begin_bulk(self, integers: Mapping[str, int | None]) -> None:
        """Begin in another thread what `read_bulk` will be called for with the same integers alone."""
        if self.decode:
            key = (self.name, *integers)
            self.export.pending[key] = self.export.threads.submit(self._decode_columns, integers, (), ())

    def _decode_columns(
        self, integers: Mapping[str, int | None], texts: Sequence[str], blobs: Sequence[str]
    ) -> TableColumns | None:
        """Decode the columns that the table has, None where SQLite has to read them."""
        if not self.decode:
            return None
        nulls = {name: _null(default) for name, default in integers.items() if name in self.columns}
        binary = dict.fromkeys(texts, True) | dict.fromkeys(blobs, False)
        present = {name: kind for name, kind in binary.items() if name in self.columns}
        return self.decode(Wanted(nulls, present))

    def _require_keys(self, integers: Mapping[str, int | None]) -> None:
        self.require(*(name for name, default in integers.items() if default is REQUIRED))

    def _query(
        self,
        integers: Mapping[str, int | None],
        texts: Sequence[str],
        blobs: Sequence[str] = (),
        lenient: bool = False,
    ) -> _Query:
        """Select the columns that the table has, in one query: several could order the rows differently."""
        self._require_keys(integers)
        defaults = {name: default for name, default in integers.items() if name in self.columns}
        integer = _lenient_expression if lenient else _strict_expression
        numbers = (
            f"{integer(quoted(name), default)} AS {quoted(name)}" for name, default in defaults.items()
        )
        contents = {name: quoted(name) for name in texts if name in self.columns} | {
            name: f"CASE WHEN typeof({quoted(name)}) = 'blob' THEN {quoted(name)} END AS {quoted(name)}"
            for name in blobs
            if name in self.columns
        }
        return _Query(
            f"SELECT {', '.join((*numbers, *contents.values()))} FROM {quoted(self.name)}",
            tuple(defaults),
            tuple(contents),
        )

    def _odd_counts(self, names: Sequence[str]) -> dict[str, int]:
        sums = [f"sum(NOT ({_is_integer(quoted(name))}))" for name in names]
        counts = next(self.rows(sums))
        return {name: int(count) for name, count in zip(names, counts, strict=True) if count}

    def _read_by_sqlite(self, query: _Query) -> TableColumns:
        """Execute a query whose numbers are all integers."""
        if query.binary:
            return self._columns(query, lambda _, values: np.array(values, np.int64))
        rows = chain.from_iterable(self._execute(query.text))
        flat = np.fromiter(rows, np.int64).reshape(-1, len(query.integers))
        return dict(zip(query.integers, flat.T.copy(), strict=True)), {}

    def _columns(self, query: _Query, convert: Callable[[str, Sequence[Any]], Ints]) -> TableColumns:
        """Execute a query; ``convert`` turns the values of a named column into integers."""
        count = len(query.integers)
        parts = list(zip(*self._execute(query.text), strict=True)) or [()] * (count + len(query.binary))
        numbers = {name: convert(name, part) for name, part in zip(query.integers, parts, strict=False)}
        contents = map(BinaryColumn.from_values, parts[count:])
        return numbers, dict(zip(query.binary, contents, strict=True))

    def _numbers(self, column: str, values: Sequence[Any]) -> Ints:
        try:
            return np.array([_integer(value) for value in values], np.int64)
        except (TypeError, ValueError, OverflowError):
            raise DamagedInput(
                f"{self.export.path}: table {self.name} holds a value in column {column} that is not an "
                "integer."
            ) from None

    def _with_defaults(
        self, integers: Mapping[str, int | None], binary: Sequence[str], columns: TableColumns
    ) -> TableColumns:
        numbers, contents = columns
        rows = len(next(iter(numbers.values())))
        absent = {n: np.full(rows, d) for n, d in integers.items() if n not in numbers and d is not None}
        nulls = {name: BinaryColumn.from_values([None] * rows) for name in binary if name not in contents}
        return numbers | absent, contents | nulls


class NsysExport(msgspec.Struct, frozen=True):
    """An open export."""

    path: Path
    connection: sqlite3.Connection
    tables: frozenset[str]
    """The names of its tables and views."""
    pages: TablePages | None
    """The pages of a SQLite file, None where it may change while it is read."""
    parquet: "ParquetTables | None"
    """The tables of a folder; then ``connection`` is a database in memory."""
    threads: ThreadPoolExecutor
    """The threads in which large tables are decoded."""
    pending: dict[tuple[str, ...], Future[TableColumns | None]] = msgspec.field(default_factory=dict)
    """The columns that are being decoded, by the names of their table and themselves."""
    _tables_by_name: dict[str, ExportTable | None] = msgspec.field(default_factory=dict)

    def table(self, name: str) -> ExportTable | None:
        """Return the table called ``name``, else its highest version (``name_V2``), if it has rows.

        An empty table means the same as none: nothing of the kind was traced.
        """
        if name not in self._tables_by_name:
            self._tables_by_name[name] = self._find_table(name)
        return self._tables_by_name[name]

    def unread(self) -> list[str]:
        """Return the tables of events that have rows and nobody asked for, sorted."""
        read = {table.name for table in self._tables_by_name.values() if table}
        unread_tables = (
            self.table(name) for name in sorted(self.tables - read) if not name.startswith(_METADATA_TABLES)
        )
        return [
            table.name
            for table in unread_tables
            if table and table.columns & {"start", "timestamp", "rawTimestamp"}
        ]

    def begin_bulk(self, tables: Mapping[str, Mapping[str, int | None]]) -> None:
        """Begin to read tables, each with its columns, as `ExportTable.begin_bulk`."""
        for name, integers in tables.items():
            if table := self.table(name):
                table.begin_bulk(integers)

    def _find_table(self, name: str) -> ExportTable | None:
        version = re.compile(re.escape(name) + r"_V\d+")
        versions = [t for t in self.tables if t.startswith(name) and version.fullmatch(t)]
        versions.sort(key=lambda t: int(t.rpartition("_V")[2]), reverse=True)
        for candidate in [*(n for n in (name,) if n in self.tables), *versions]:
            if self.parquet:
                if columns := self.parquet.columns(candidate):
                    return ExportTable(self, candidate, columns, partial(self.parquet.read, candidate))
                continue
            stored = self._find_stored_table(candidate)
            columns = frozenset(stored.places)
            decode = partial(self.pages.read, stored) if self.pages else None
            table = ExportTable(self, candidate, columns, decode)
            if next(table.rows(["1"], "LIMIT 1"), None):
                return table
        return None

    def _find_stored_table(self, table: str) -> StoredTable:
        """Return the place of a table in the file.

        Raises DamagedInput for a view and for computed columns, whose values may be any number and size.
        """
        query = "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?"
        (root,) = next(self.rows(query, [table]), (0,))
        described = list(self.rows(f"PRAGMA table_xinfo({quoted(table)})")) if root else []
        if not root or any(hidden for *_, hidden in described):
            raise DamagedInput(f"{self.path}: table {table} is computed by SQL; only stored tables are read.")
        keys = [(name, kind.upper()) for _, name, kind, _, _, key, _ in described if key]
        rowid = keys[0][0] if len(keys) == 1 and keys[0][1] == "INTEGER" else None
        return StoredTable(root, {name: place for place, name, *_ in described}, rowid)

    def rows(self, query: str, parameters: Sequence[str | int] = ()) -> Iterator[Sequence[Any]]:
        """Execute a query; raise DamagedInput once its rows are more than the file can hold."""
        free_bytes = max_selected_bytes(self.path) if not self.parquet else math.inf
        for row in self.connection.execute(query, parameters):
            free_bytes -= ROW_BYTES + sum(
                len(value) if isinstance(value, (str, bytes)) else 1 for value in row
            )
            if free_bytes < 0:
                raise DamagedInput(f"{self.path} is damaged: a table has more rows than the file can hold.")
            yield row

    def strings(self, ids: Ints) -> dict[int, str]:
        """Return the texts of the ids that occur in StringIds; `NO_NAME` has none.

        Raises DamagedInput if there are names to look up and no StringIds.
        """
        wanted = [int(i) for i in np.unique(ids) if i != NO_NAME]
        if not wanted:
            return {}
        source = self.table("StringIds")
        if source is None:
            raise DamagedInput(f"{self.path}: names are missing, because it has no StringIds table.")
        source.require("id", "value")
        texts: dict[int, str] = {}
        for at in range(0, len(wanted), _MAX_PARAMETERS):
            chunk = wanted[at : at + _MAX_PARAMETERS]
            rows = source.rows(("id", "value"), f"WHERE id IN ({', '.join('?' * len(chunk))})", chunk)
            texts |= {int(i): str(value) for i, value in rows if value is not None}
        return texts


def _null(default: int | None) -> int:
    return MISSING if default is REQUIRED else default


def _strict_expression(column: str, default: int | None) -> str:
    """Return a column in a query, with the value for NULL."""
    return f"coalesce({column}, {_null(default)})"


def _lenient_expression(column: str, default: int | None) -> str:
    """Return an expression as `_strict_expression` does, with `UNREADABLE` or the default for other types."""
    null, other = (MISSING, UNREADABLE) if default is REQUIRED else (default, default)
    whole = f"WHEN {_is_integer(column)} THEN CAST({column} AS BIGINT)"
    return f"CASE WHEN {column} IS NULL THEN {null} {whole} ELSE {other} END"


def _is_integer(column: str) -> str:
    """Return whether a value is an integer, also one that is stored as ``7.0`` or ``'7'``; NULL for NULL."""
    return f"CAST({column} AS BIGINT) = {column}"


def _integer(value: Any) -> int:
    """Return an integer, also one that is stored as ``7.0`` or ``'7'``; raise ValueError if it is none."""
    number = int(value)
    if isinstance(value, bytes) or (isinstance(value, float) and number != value):
        raise ValueError(f"{value!r} is not an integer")
    return number


@contextmanager
def open_export(path: Path, threads: int = 2, kind: str = "an nsys SQLite export") -> Iterator[NsysExport]:
    """Open an export for reading only; ``threads`` read its large tables, and ``kind`` is for messages.

    Raises DamagedInput if the file or folder cannot be opened, or later cannot be read.
    """
    if path.name.lower().endswith(NSYS.folder_suffix) and is_folder(path):
        with _open_folder(path, threads) as export:
            yield export
        return
    _check_header(path)

    try:
        with (
            closing(TablePages(path)) as pages,
            closing(sqlite3.connect(read_only_uri(path), uri=True, isolation_level=None)) as connection,
            ThreadPoolExecutor(threads) as pool,
        ):
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            steps = iter(range(max_steps(path) // STEPS_BETWEEN_CHECKS))
            connection.set_progress_handler(lambda: next(steps, None) is None, STEPS_BETWEEN_CHECKS)
            # One transaction: no other process changes the file while it is read.
            connection.execute("BEGIN")
            listed = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            tables = frozenset(name for (name,) in listed)
            # With a write-ahead log others may change the file, and the log holds the newest pages.
            (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
            yield NsysExport(path, connection, tables, None if journal == "wal" else pages, None, pool)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # Python's sqlite3 decodes the names of tables and columns itself.
        raise DamagedInput(f"{path} cannot be read as {kind}: {first_line(error)}.") from None


@contextmanager
def _open_folder(path: Path, threads: int) -> Iterator[NsysExport]:
    import pyarrow as pa

    from hpcprof.profiles.readers.nsys.parquet_tables import SUFFIX, ParquetTables

    with reading(path):
        files = {file.name.removesuffix(SUFFIX): file for file in path.iterdir() if file.suffix == SUFFIX}
    try:
        with closing(sqlite3.connect(":memory:")) as connection, ThreadPoolExecutor(threads) as pool:
            tables = ParquetTables(files, connection)
            yield NsysExport(path, connection, frozenset(files), None, tables, pool)
    except (pa.ArrowException, OSError, sqlite3.Error, UnicodeError, OverflowError) as error:
        raise DamagedInput(
            f"{path} cannot be read as a Parquet export of nsys: {first_line(error)}."
        ) from None


def _check_header(path: Path) -> None:
    """Refuse what is not a complete SQLite file, with a clearer message than SQLite's.

    The header holds the page size (bytes 16-17, 1 for 64 KiB) and the number of pages (28-31), which is
    valid if the change counter (24-27) equals the one it was written with (92-95); see the file format on
    sqlite.org. If a file is cut within its last page, SQLite reads zeros there.
    """
    with reading(path):
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(100)
    if not size:
        raise DamagedInput(f"{path} is empty.")
    if not header.startswith(_MAGIC[: len(header)]):
        raise DamagedInput(f"{path} is not an SQLite file.")
    page, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
    expected = (65536 if page == 1 else page) * (pages if header[24:28] == header[92:96] else 1)
    if size < max(expected, 100):
        raise DamagedInput(f"{path} is truncated: it has {size} bytes of {max(expected, 100)}.")
