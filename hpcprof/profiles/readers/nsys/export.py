"""Access to the tables of an nsys SQLite export, whose tables and columns differ between versions."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import (
    TableClause,
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
from hpcprof.profiles.readers.nsys.cells import Cells
from hpcprof.profiles.readers.nsys.sqlite_pages import Columns, read_columns
from hpcprof.profiles.timeline import NO_NAME, Ints

MISSING = int(np.iinfo(np.int64).min)
"""Stands for NULL in a column whose values may be negative: a time stamp."""

NO_ID = -1
"""Stands for NULL in a column of ids."""

REQUIRED = None

# A global id holds the process above the thread: globalTid >> 24 = globalPid >> 24.
PROCESS_SHIFT = 24
THREAD_BITS = 0xFFFFFF

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

    def ints(self, defaults: Mapping[str, int | None]) -> dict[str, Ints]:
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
        return self.ints_and_cells(defaults, ())[0]

    def ints_and_cells(
        self, defaults: Mapping[str, int | None], others: Sequence[str]
    ) -> tuple[dict[str, Ints], list[Cells]]:
        """Return what `ints` does, and columns of texts and blobs, all NULL where one is absent."""
        self.require(*(name for name, default in defaults.items() if default is REQUIRED))
        nulls = {n: MISSING if d is REQUIRED else d for n, d in defaults.items() if n in self.columns}
        stored = [name for name in others if name in self.columns]
        values, cells = self._pages(nulls, stored) or self._queried(nulls, stored)
        found = {name: np.ascontiguousarray(column) for name, column in zip(nulls, values, strict=True)}
        rows = len(values[0])
        absent = {n: np.full(rows, d) for n, d in defaults.items() if n not in found and d is not None}
        of_name = dict(zip(stored, cells, strict=True))
        return found | absent, [of_name.get(name) or Cells.of([None] * rows) for name in others]

    def _queried(self, nulls: Mapping[str, int], others: Sequence[str]) -> Columns:
        """Let SQLite read columns. One query reads them all: several could order their rows differently."""
        columns = self.clause.c
        query = select(*(func.coalesce(columns[name], null) for name, null in nulls.items()))
        result = self.export.rows(query.add_columns(*(columns[name] for name in others)))
        if not others:
            flat = self.export.numbers(chain.from_iterable(result), self.name)
            return list(flat.reshape(-1, len(nulls)).T), []
        parts = list(zip(*result, strict=True)) or [()] * (len(nulls) + len(others))
        values = [self.export.numbers(iter(part), self.name) for part in parts[: len(nulls)]]
        return values, [Cells.of(part) for part in parts[len(nulls) :]]

    def _pages(
        self, nulls: Mapping[str, int], others: Sequence[str]
    ) -> tuple[list[Ints], list[Cells]] | None:
        """Read columns from the file's pages; None where SQLite has to read them."""
        master = table("sqlite_master", column("name"), column("type"), column("rootpage"))
        stored = select(master.c.rootpage).where(master.c.name == self.name, master.c.type == "table")
        root = next(self.export.rows(stored), None)
        known = func.pragma_table_xinfo(self.name).table_valued("name", "pk", "hidden")
        columns = list(self.export.rows(select(known.c.name, known.c.pk, known.c.hidden)))
        wanted = {*nulls, *others}
        # Hidden columns are generated, and may not be stored; a primary key may be the row's own number.
        if root is None or any(hidden or (key and name in wanted) for name, key, hidden in columns):
            return None
        place = {name: i for i, (name, _, _) in enumerate(columns)}
        ints, cells = ([place[name] for name in names] for names in (nulls, others))
        return read_columns(self.export.descriptor, root[0], ints, [*nulls.values()], cells)


@dataclass(frozen=True)
class Export:
    """An open export; ``descriptor`` is that of its file."""

    path: Path
    descriptor: int
    connection: Connection
    tables: frozenset[str]
    _sources: dict[str, Source | None] = field(default_factory=dict)

    def source(self, name: str) -> Source | None:
        """Return the table called ``name``, else its highest version (``name_V2``), if it has rows.

        A table without rows means the same as no table: nothing of the kind was traced.
        """
        if name not in self._sources:
            self._sources[name] = self._found(name)
        return self._sources[name]

    def _found(self, name: str) -> Source | None:
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
def opened(path: Path) -> Iterator[Export]:
    """Open an export for reading only.

    Raises
    ------
    DamagedInput
        Whatever is wrong with the file, now or while it is read.
    """
    _check(path)

    def connect() -> sqlite3.Connection:
        # as_uri quotes what a URI gives a meaning to: spaces, '?', '#' and '%'.
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    try:
        with reading(path):
            file = path.open("rb")
        # Closed last: where a process closes a file, it loses its locks.
        with file, engine.connect() as connection:
            # One transaction: no other process changes the file while it is read.
            connection.exec_driver_sql("BEGIN")
            inspector = inspect(connection)
            tables = frozenset(inspector.get_table_names()) | frozenset(inspector.get_view_names())
            yield Export(path, file.fileno(), connection, tables)
    except (SQLAlchemyError, sqlite3.Error, UnicodeDecodeError) as error:
        # Names of tables and columns are decoded by Python's sqlite3 itself.
        reason = str(getattr(error, "orig", error)).splitlines()[0]
        raise DamagedInput(f"{path} cannot be read as an nsys SQLite export: {reason}.") from None


def _check(path: Path) -> None:
    """Refuse what is no complete SQLite file, with a better sentence than SQLite's.

    The header holds the page size (bytes 16-17, 1 for 64 KiB) and the number of pages (28-31), which
    is valid when the change counter (24-27) equals the one it was written with (92-95); see the file
    format on sqlite.org. SQLite itself takes a cut within the last page for a page full of zeros.
    """
    with reading(path):
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(100)
    if not size:
        raise DamagedInput(f"{path} is empty.")
    if not header.startswith(_MAGIC[: len(header)]):
        raise DamagedInput(f"{path} is no SQLite file.")
    page, pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
    expected = (65536 if page == 1 else page) * (pages if header[24:28] == header[92:96] else 1)
    if size < max(expected, 100):
        raise DamagedInput(f"{path} is truncated: it has {size} bytes of {max(expected, 100)}.")
