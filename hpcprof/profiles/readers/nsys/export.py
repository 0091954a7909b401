"""Access to the tables of an nsys SQLite export, whose tables and columns differ between versions."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    TableClause,
    and_,
    case,
    cast,
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
_CHUNK = 900


class BulkColumns(NamedTuple):
    """Columns of a large table: integers, and texts and blobs, by name.

    ``odd`` counts the values of a column that are not integers, for the columns that have any.
    """

    integers: dict[str, Ints]
    binary: dict[str, BinaryColumn]
    odd: dict[str, int]


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
        query = self._query(integers, texts)
        count = len(query.integers)
        parts = list(zip(*self.export.rows(query.query), strict=True)) or [()] * (count + len(query.binary))
        numbers = {name: self._numbers(name, part) for name, part in zip(query.integers, parts, strict=False)}
        contents = map(BinaryColumn.from_values, parts[count:])
        return self._with_defaults(integers, texts, (numbers, dict(zip(query.binary, contents, strict=True))))

    def read_bulk(
        self, integers: Mapping[str, int | None], texts: Sequence[str] = (), blobs: Sequence[str] = ()
    ) -> BulkColumns:
        """Do as `read` for a large table, through Arrow, and keep the rows with values that are not integers.

        Such a value becomes `UNREADABLE` in a key column and counts as NULL in the others. ``blobs`` are NULL
        where they hold no blob.
        """
        arrow = self.export.arrow
        found = arrow and arrow.fetch(self._query(integers, texts, blobs))
        odd: dict[str, int] = {}
        if not found:
            query = self._query(integers, texts, blobs, lenient=True)
            found = (arrow and arrow.fetch(query)) or self._by_sqlalchemy(query)
            odd = self._odd(query.integers)
        return BulkColumns(*self._with_defaults(integers, [*texts, *blobs], found), odd)

    def begin_bulk(self, integers: Mapping[str, int | None]) -> None:
        """Begin in another thread what `read_bulk` will be called for with the same integers alone."""
        if self.export.arrow:
            self.export.arrow.begin(self._query(integers, ()))

    def _query(
        self,
        integers: Mapping[str, int | None],
        texts: Sequence[str],
        blobs: Sequence[str] = (),
        lenient: bool = False,
    ) -> ColumnQuery:
        """Select the columns that the table has, in one query: several could order the rows differently."""
        self.require(*(name for name, default in integers.items() if default is REQUIRED))
        columns = self.clause.c
        defaults = {name: default for name, default in integers.items() if name in columns}
        integer = _lenient if lenient else _strict
        numbers = (integer(columns[name], default).label(name) for name, default in defaults.items())
        contents = {name: columns[name] for name in texts if name in columns} | {
            name: case((func.typeof(columns[name]) == "blob", columns[name])).label(name)
            for name in blobs
            if name in columns
        }
        return ColumnQuery(
            select(*numbers, *contents.values()),
            select(func.count()).select_from(self.clause),
            tuple(defaults),
            tuple(contents),
        )

    def _odd(self, names: Sequence[str]) -> dict[str, int]:
        """Count the values of each column that are neither integers nor NULL."""
        columns = [self.clause.c[name] for name in names]
        sums = (func.sum(case((and_(c.is_not(None), ~_is_integer(c)), 1), else_=0)) for c in columns)
        counts = next(self.export.rows(select(*sums)))
        return {name: int(count) for name, count in zip(names, counts, strict=True) if count}

    def _by_sqlalchemy(self, query: ColumnQuery) -> TableColumns:
        """Execute a query whose numbers are all integers."""
        rows = self.export.rows(query.query)
        count = len(query.integers)
        if not query.binary:
            flat = np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, count)
            return dict(zip(query.integers, flat.T.copy(), strict=True)), {}
        parts = list(zip(*rows, strict=True)) or [()] * (count + len(query.binary))
        numbers = (np.array(part, np.int64) for part in parts[:count])
        contents = (BinaryColumn.from_values(part) for part in parts[count:])
        return (
            dict(zip(query.integers, numbers, strict=True)),
            dict(zip(query.binary, contents, strict=True)),
        )

    def _numbers(self, column: str, values: Sequence[Any]) -> Ints:
        """Turn values into int64, raising `DamagedInput` for one that is not an integer."""
        try:
            return np.array([_integer(value) for value in values], np.int64)
        except (TypeError, ValueError, OverflowError):
            raise DamagedInput(
                f"{self.export.path}: table {self.name} holds a value in column {column} that is not an "
                "integer."
            ) from None

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


def _strict(column: ColumnElement[Any], default: int | None) -> ColumnElement[Any]:
    """Return a column in a query, with the value for NULL."""
    return func.coalesce(column, MISSING if default is REQUIRED else default)


def _lenient(column: ColumnElement[Any], default: int | None) -> ColumnElement[Any]:
    """Do as `_strict`, with a value for what is not an integer too, so that the result is of one type."""
    null, other = (MISSING, UNREADABLE) if default is REQUIRED else (default, default)
    return case((column.is_(None), null), (_is_integer(column), cast(column, BigInteger)), else_=other)


def _is_integer(column: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a value is an integer, also one that is stored as ``7.0`` or ``'7'``."""
    return cast(column, BigInteger) == column


def _integer(value: Any) -> int:
    """Return an integer, also one that is stored as ``7.0`` or ``'7'``.

    Raises
    ------
    ValueError
        If the value is none.
    """
    number = int(value)
    if isinstance(value, bytes) or (isinstance(value, float) and number != value):
        raise ValueError(f"{value!r} is not an integer")
    return number


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
