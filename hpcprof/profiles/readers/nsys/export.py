"""Access to the tables of an nsys SQLite export, whose tables and columns differ between versions."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import (
    TableClause,
    case,
    column,
    create_engine,
    func,
    inspect,
    literal,
    select,
    table,
)
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from hpcprof.common.errors import DamagedInput, reading
from hpcprof.profiles.readers.nsys.arrow_queries import ArrowQueries, ColumnQuery, TableColumns
from hpcprof.profiles.readers.nsys.binary_column import BinaryColumn
from hpcprof.profiles.timeline import NO_NAME, Ints

MISSING = int(np.iinfo(np.int64).min)
"""The value for NULL in a column of time stamps, which may be negative."""

NO_ID = -1
"""The value for NULL in a column of ids."""

REQUIRED = None

# A global id holds the process above the thread: globalTid >> 24 = globalPid >> 24.
PROCESS_SHIFT = 24
THREAD_BITS = 0xFFFFFF

_MAGIC = b"SQLite format 3\x00"
# SQLite's documented limit on bound parameters was 999 before version 3.32.
_CHUNK = 900


@dataclass(frozen=True)
class ExportTable:
    """One table of an export; ``clause`` is the table in a query."""

    export: NsysExport
    clause: TableClause

    @property
    def name(self) -> str:
        """The table's name in the export."""
        return self.clause.name

    @property
    def columns(self) -> frozenset[str]:
        """The names of the columns that this version has."""
        return frozenset(self.clause.c.keys())

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

        Parameters
        ----------
        integers : mapping of str to int or None
            Each column with the value for NULL, or for all rows where the table has no such column;
            `REQUIRED` marks a key column, whose NULLs become `MISSING`.
        texts : sequence of str
            Columns that hold texts; one that the table does not have is all NULL.

        Raises
        ------
        DamagedInput
            If a key column is absent or a value is not an integer.
        """
        return self._with_defaults(integers, texts, self._by_sqlalchemy(self._query(integers, texts)))

    def read_bulk(
        self, integers: Mapping[str, int | None], texts: Sequence[str] = (), blobs: Sequence[str] = ()
    ) -> TableColumns:
        """Do as `read` for a large table, through Arrow; ``blobs`` are NULL where they hold no blob."""
        query = self._query(integers, texts, blobs)
        found = self.export.arrow and self.export.arrow.fetch(query)
        found = found or self._by_sqlalchemy(query)
        return self._with_defaults(integers, [*texts, *blobs], found)

    def begin_bulk(self, integers: Mapping[str, int | None]) -> None:
        """Begin in another thread what `read_bulk` will be called for with the same integers alone."""
        if self.export.arrow:
            self.export.arrow.begin(self._query(integers, ()))

    def _query(
        self, integers: Mapping[str, int | None], texts: Sequence[str], blobs: Sequence[str] = ()
    ) -> ColumnQuery:
        """Select the columns that the table has, in one query: several could order the rows differently."""
        self.require(*(name for name, default in integers.items() if default is REQUIRED))
        columns = self.clause.c
        nulls = {n: MISSING if d is REQUIRED else d for n, d in integers.items() if n in columns}
        numbers = (func.coalesce(columns[name], null).label(name) for name, null in nulls.items())
        contents = {name: columns[name] for name in texts if name in columns} | {
            name: case((func.typeof(columns[name]) == "blob", columns[name])).label(name)
            for name in blobs
            if name in columns
        }
        return ColumnQuery(
            select(*numbers, *contents.values()),
            select(func.count()).select_from(self.clause),
            tuple(nulls),
            tuple(contents),
        )

    def _by_sqlalchemy(self, query: ColumnQuery) -> TableColumns:
        rows = self.export.rows(query.query)
        count = len(query.integers)
        if not query.binary:
            flat = self.export.numbers(chain.from_iterable(rows), self.name).reshape(-1, count)
            return dict(zip(query.integers, flat.T.copy(), strict=True)), {}
        parts = list(zip(*rows, strict=True)) or [()] * (count + len(query.binary))
        numbers = (self.export.numbers(iter(part), self.name) for part in parts[:count])
        contents = (BinaryColumn.from_values(part) for part in parts[count:])
        return (
            dict(zip(query.integers, numbers, strict=True)),
            dict(zip(query.binary, contents, strict=True)),
        )

    def _with_defaults(
        self, integers: Mapping[str, int | None], binary: Sequence[str], found: TableColumns
    ) -> TableColumns:
        """Add the columns that the table does not have."""
        numbers, contents = found
        rows = len(next(iter(numbers.values())))
        absent = {n: np.full(rows, d) for n, d in integers.items() if n not in numbers and d is not None}
        nulls = {name: BinaryColumn.from_values([None] * rows) for name in binary if name not in contents}
        return numbers | absent, contents | nulls


@dataclass(frozen=True)
class NsysExport:
    """An open export; ``arrow`` executes queries of large tables, None where SQLAlchemy has to."""

    path: Path
    connection: Connection
    tables: frozenset[str]
    arrow: ArrowQueries | None
    _found_tables: dict[str, ExportTable | None] = field(default_factory=dict)

    def table(self, name: str) -> ExportTable | None:
        """Return the table called ``name``, else its highest version (``name_V2``), if it has rows.

        An empty table means the same as none: nothing of the kind was traced.
        """
        if name not in self._found_tables:
            self._found_tables[name] = self._found(name)
        return self._found_tables[name]

    def _found(self, name: str) -> ExportTable | None:
        versions = [t for t in self.tables if re.fullmatch(re.escape(name) + r"_V\d+", t)]
        versions.sort(key=lambda t: int(t.rpartition("_V")[2]), reverse=True)
        for candidate in [*(n for n in (name,) if n in self.tables), *versions]:
            columns = inspect(self.connection).get_columns(candidate)
            clause = table(candidate, *(column(c["name"]) for c in columns))
            if next(self.rows(select(literal(1)).select_from(clause).limit(1)), None):
                return ExportTable(self, clause)
        return None

    def rows(self, query: Any) -> Iterator[Sequence[Any]]:
        """Execute a query."""
        return iter(self.connection.execute(query))

    def numbers(self, values: Iterator[Any], where: str) -> Ints:
        """Turn values into int64, raising `DamagedInput` for one that is not an integer."""
        try:
            return np.fromiter(values, np.int64)
        except (TypeError, ValueError, OverflowError):
            raise DamagedInput(f"{self.path}: table {where} holds a value that is not an integer.") from None

    def strings(self, ids: Ints) -> dict[int, str]:
        """Return the texts of the ids that occur in StringIds; `NO_NAME` has none.

        Raises
        ------
        DamagedInput
            If there are names to look up and no StringIds.
        """
        wanted = [int(i) for i in np.unique(ids) if i != NO_NAME]
        if not wanted:
            return {}
        source = self.table("StringIds")
        if source is None:
            raise DamagedInput(f"{self.path}: names are missing, because it has no StringIds table.")
        source.require("id", "value")
        texts = source.clause
        found: dict[int, str] = {}
        for at in range(0, len(wanted), _CHUNK):
            query = select(texts.c.id, texts.c.value).where(texts.c.id.in_(wanted[at : at + _CHUNK]))
            found |= {int(i): str(value) for i, value in self.rows(query) if value is not None}
        return found


@contextmanager
def open_export(path: Path) -> Iterator[NsysExport]:
    """Open an export for reading only.

    Raises
    ------
    DamagedInput
        If the file cannot be opened, or later cannot be read.
    """
    _check(path)

    def connect() -> sqlite3.Connection:
        # as_uri quotes what has a meaning in a URI: spaces, '?', '#' and '%'.
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    try:
        with engine.connect() as connection, closing(ArrowQueries(path)) as arrow:
            # One transaction: no other process changes the file while it is read.
            connection.exec_driver_sql("BEGIN")
            inspector = inspect(connection)
            tables = frozenset(inspector.get_table_names()) | frozenset(inspector.get_view_names())
            # With a write-ahead log others may change the file, and each transaction sees its own state.
            logged = connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            yield NsysExport(path, connection, tables, None if logged else arrow)
    except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
        # Python's sqlite3 decodes the names of tables and columns itself.
        reason = str(getattr(error, "orig", error)).splitlines()[0]
        raise DamagedInput(f"{path} cannot be read as an nsys SQLite export: {reason}.") from None


def _check(path: Path) -> None:
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
