"""Access to the tables of an nsys SQLite export, whose tables and columns differ between versions."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import (
    ColumnElement,
    Select,
    TableClause,
    and_,
    column,
    create_engine,
    func,
    inspect,
    literal,
    literal_column,
    null,
    select,
    table,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from hpcprof.errors import DamagedInput
from hpcprof.readers.bulk import int_columns, read_only_uri
from hpcprof.timeline import NO_NAME, Ints

MISSING = int(np.iinfo(np.int64).min)
"""Stands for NULL in a column whose values may be negative: a time stamp."""

NO_ID = -1
"""Stands for NULL in a column of ids."""

REQUIRED = None

# A global id holds the process above the thread: globalTid >> 24 = globalPid >> 24.
PROCESS_SHIFT = 24
THREAD_BITS = 0xFFFFFF

_DIALECT = sqlite.dialect()
# Tables of fewer rows are not worth a second thread.
_LONG = 100_000
_MAGIC = b"SQLite format 3\x00"
# SQLite's documented limit on bound parameters was 999 before version 3.32.
_CHUNK = 900


@dataclass(frozen=True)
class Source:
    """One table of an export, and its columns; ``clause`` stands for it in a query."""

    export: Export
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
        """Raise `DamagedInput` where a key column is absent."""
        absent = [name for name in names if name not in self.columns]
        if absent:
            raise DamagedInput(f"{self.export.path}: table {self.name} has no column {' or '.join(absent)}.")

    def ints(self, defaults: Mapping[str, int | None], *where: ColumnElement[bool]) -> dict[str, Ints]:
        """Return columns as int64 arrays in the table's order.

        Parameters
        ----------
        defaults : mapping of str to int or None
            Each column with the value for NULL, or for all rows where the table has no such column;
            `REQUIRED` marks a key column, whose NULLs become `MISSING`.

        Raises
        ------
        DamagedInput
            If a key column is absent or a value is no integer.
        """
        query, present = self._query(defaults, where)
        columns = self._bulk(present, where)
        if columns is None:
            flat = self.export.numbers(chain.from_iterable(self.export.rows(query)), self.name)
            columns = list(flat.reshape(-1, len(present)).T)
        return _columns(columns, present, defaults)

    def ints_and_text(
        self, defaults: Mapping[str, int | None], text: str, *where: ColumnElement[bool]
    ) -> tuple[dict[str, Ints], list[str | None]]:
        """Return what `ints` does, and a column of text, which is all None where it is absent.

        One query reads both: two could return their rows in different orders.
        """
        query, present = self._query(defaults, where)
        rows = list(
            self.export.rows(query.add_columns(self.clause.c[text] if text in self.columns else null()))
        )
        flat = self.export.numbers(chain.from_iterable(row[:-1] for row in rows), self.name)
        texts = [None if row[-1] is None else str(row[-1]) for row in rows]
        return _columns(flat.reshape(-1, len(present)).T, present, defaults), texts

    def _query(
        self, defaults: Mapping[str, int | None], where: Sequence[ColumnElement[bool]]
    ) -> tuple[Select[Any], dict[str, int]]:
        """Return the query for the columns that are there, and what stands for NULL in each."""
        self.require(*(name for name, default in defaults.items() if default is REQUIRED))
        present = {n: MISSING if d is REQUIRED else d for n, d in defaults.items() if n in self.columns}
        source = self.clause
        cells = (func.coalesce(source.c[name], default) for name, default in present.items())
        return select(*cells).select_from(source).where(*where), present

    def _bulk(
        self, present: Mapping[str, int], where: Sequence[ColumnElement[bool]]
    ) -> Sequence[Ints] | None:
        """Read columns through Arrow; None where only reading row by row tells what is wrong."""
        query = select(*(self.clause.c[name] for name in present)).where(*where)
        parts = [query.where(rows) for rows in self._parts()] or [query]
        compiled = (part.compile(dialect=_DIALECT, compile_kwargs={"literal_binds": True}) for part in parts)
        return int_columns(self.export.path, [str(statement) for statement in compiled], [*present.values()])

    def _parts(self) -> list[ColumnElement[bool]]:
        """Divide a long table into ranges of row ids, one a thread and in the order of the rows."""
        threads = self.export.threads
        if threads == 1 or "rowid" in self.columns:
            return []
        rowid: ColumnElement[int] = literal_column("rowid")
        # Each on its own: SQLite looks up one end of a table, but scans it all for both.
        low, high = (select(end(rowid)).select_from(self.clause) for end in (func.min, func.max))
        try:
            ends = next(self.export.rows(select(low.scalar_subquery(), high.scalar_subquery())))
        except OperationalError:
            return []
        # A view has no row ids.
        if None in ends or ends[1] - ends[0] < _LONG:
            return []
        cuts = np.linspace(ends[0] - 1, ends[1], threads + 1).astype(np.int64).tolist()
        return [and_(rowid > begin, rowid <= end) for begin, end in pairwise(cuts)]


def _columns(
    values: Sequence[Ints], present: Iterable[str], defaults: Mapping[str, int | None]
) -> dict[str, Ints]:
    found = {name: np.ascontiguousarray(column) for name, column in zip(present, values, strict=True)}
    rows = len(values[0])
    absent = {n: np.full(rows, d) for n, d in defaults.items() if n not in found and d is not None}
    return found | absent


@dataclass(frozen=True)
class Export:
    """An open export; long tables are read by several threads."""

    path: Path
    connection: Connection
    tables: frozenset[str]
    threads: int

    def source(self, name: str) -> Source | None:
        """Return the table called ``name``, else its highest version (``name_V2``), if it has rows.

        A table without rows means the same as no table: nothing of the kind was traced.
        """
        versions = [t for t in self.tables if re.fullmatch(re.escape(name) + r"_V\d+", t)]
        versions.sort(key=lambda t: int(t.rpartition("_V")[2]), reverse=True)
        for candidate in [*(n for n in (name,) if n in self.tables), *versions]:
            columns = inspect(self.connection).get_columns(candidate)
            clause = table(candidate, *(column(c["name"]) for c in columns))
            if next(self.rows(select(literal(1)).select_from(clause).limit(1)), None):
                return Source(self, clause)
        return None

    def rows(self, query: Any) -> Iterator[Sequence[Any]]:
        """Execute a query."""
        return iter(self.connection.execute(query))

    def numbers(self, values: Iterator[Any], where: str) -> Ints:
        """Turn values into int64, raising `DamagedInput` for one that is no integer."""
        try:
            return np.fromiter(values, np.int64)
        except (TypeError, ValueError, OverflowError):
            raise DamagedInput(f"{self.path}: table {where} holds a value that is no integer.") from None

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
        source = self.source("StringIds")
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
def opened(path: Path, threads: int = 1) -> Iterator[Export]:
    """Open an export for reading only, long tables with so many threads.

    Raises
    ------
    DamagedInput
        Whatever is wrong with the file, now or while it is read.
    """
    _check(path)

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(read_only_uri(path), uri=True)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            inspector = inspect(connection)
            tables = frozenset(inspector.get_table_names()) | frozenset(inspector.get_view_names())
            yield Export(path, connection, tables, threads)
    except (SQLAlchemyError, sqlite3.Error) as error:
        reason = str(getattr(error, "orig", error)).splitlines()[0]
        raise DamagedInput(f"{path} cannot be read as an nsys SQLite export: {reason}.") from None


def _check(path: Path) -> None:
    """Refuse what is no complete SQLite file, with a better sentence than SQLite's.

    The header holds the page size (bytes 16-17, 1 for 64 KiB) and the number of pages (28-31), which
    is valid when the change counter (24-27) equals the one it was written with (92-95); see the file
    format on sqlite.org. SQLite itself takes a cut within the last page for a page full of zeros.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise DamagedInput(f"{path} cannot be read: {error.strerror}.") from None
    if not size:
        raise DamagedInput(f"{path} is empty.")
    if not header.startswith(_MAGIC[: len(header)]):
        raise DamagedInput(f"{path} is no SQLite file.")
    page, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
    expected = (65536 if page == 1 else page) * (pages if header[24:28] == header[92:96] else 1)
    if size < max(expected, 100):
        raise DamagedInput(f"{path} is truncated: it has {size} bytes of {max(expected, 100)}.")
