"""The results database: runs, profiles, and one table an analysis.

Every key is made of what it names (run, rank, position), never of a counter or the clock: collecting
again writes the same rows. A profile's rows are written in one transaction that replaces what was
there, so half of a profile is never visible.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import (
    Connection,
    Engine,
    Table,
    create_engine,
    event,
    exists,
    func,
    inspect,
    or_,
    select,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine import Row as SQLRow
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.types import TypeEngine

from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import StoreError, UsageError
from hpcprof.results.store.tables import (
    FACTS,
    GPUS,
    METADATA,
    PROFILES,
    RANK_TABLES,
    REASONS,
    RUN_TABLES,
    RUNS,
    SCHEMA,
    TABLES,
    TYPES,
    FactRow,
    Finite,
    GpuRow,
    Plain,
    ProfileRow,
    ReasonRow,
    RunRow,
    finite,
    plain,
)

if TYPE_CHECKING:  # numpy is not needed to report from the store
    from hpcprof.profiles.timeline import Fact, Gpu

SCHEMA_VERSION = 5
ANALYSIS_VERSION = 5
"""Raised whenever an analysis gives other figures: profiles collected before are collected again."""

WHOLE_RUN = -1
"""Stands for the rank of what belongs to the run as a whole."""

_BUSY_SECONDS = 60.0
# SQLite's documented limit on the parameters of a statement was 999 before version 3.32.
_MOST_PARAMETERS = 999
Row = dict[str, Any]
Columns = dict[str, list[Any]]
"""The values of columns of equal length by name, in Python's own types."""


@dataclass(frozen=True)
class Stored:
    """An analysis as the store has it: its columns, and by rank the reasons for what is missing."""

    columns: Columns
    reasons: dict[int, str]

    @cached_property
    def rows(self) -> list[Row]:
        """The same as rows."""
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*self.columns.values(), strict=True)]


@dataclass(frozen=True)
class Result:
    """An analysis to be stored."""

    columns: Columns
    reason: str = ""


@dataclass(frozen=True)
class Described:
    """What the store has to say of one profile beside its analyses."""

    gpus: Sequence[Gpu] = ()
    facts: Sequence[Fact] = ()


class Store:
    """One results database.

    Parameters
    ----------
    url : URL
        Where it is; see `store_url`.

    """

    def __init__(self, url: URL) -> None:
        self.url = url
        self._engine = _engine(url)

    def exists(self) -> bool:
        """Whether anything was ever collected into it; nothing is made.

        Raises
        ------
        StoreError
            If it is no database, cannot be reached, or has tables of another version.
        """
        if self._is_sqlite and not Path(self.url.database or "").is_file():
            return False
        with self._reading() as connection:
            found = _version(connection)
        if found not in (None, SCHEMA_VERSION):
            raise StoreError(
                f"the results database {self} has schema version {found}, this hpcprof uses version "
                f"{SCHEMA_VERSION}: give another --db, or move it away and collect again."
            )
        return found is not None

    def prepare(self) -> None:
        """Make the database and its tables where they are missing.

        Raises
        ------
        StoreError
            As `exists`, or if it cannot be made.
        """
        if not self.exists():
            with self._sentences():
                self._make()

    def __str__(self) -> str:
        if self._is_sqlite:
            return self.url.database or ""
        # A password may also stand in the query.
        return self.url.set(query={}).render_as_string(hide_password=True)

    @property
    def _is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    def runs(self) -> list[RunRow]:
        """Return the collected runs, by id."""
        with self._reading() as connection:
            return [RunRow(*row) for row in connection.execute(select(RUNS).order_by(RUNS.c.id))]

    def gpus(self, run_id: str) -> list[GpuRow]:
        """Return the GPUs that the profiles of a run tell of, by rank and device."""
        query = select(GPUS).where(GPUS.c.run_id == run_id).order_by(GPUS.c.rank, GPUS.c.device)
        with self._reading() as connection:
            return [GpuRow(*row) for row in connection.execute(query)]

    def profiles(self, run_id: str) -> dict[int, ProfileRow]:
        """Return the collected profiles of a run by rank."""
        query = select(PROFILES).where(PROFILES.c.run_id == run_id).order_by(PROFILES.c.rank)
        with self._reading() as connection:
            rows = [ProfileRow(*row) for row in connection.execute(query)]
        return {row.rank: row for row in rows}

    def put_profile(
        self, run: RunRow, profile: ProfileRow, described: Described, results: Mapping[str, Result]
    ) -> None:
        """Write one rank's profile and analyses, replacing what the store has of that rank.

        What belongs to the run as a whole is removed with it: it no longer fits.

        Raises
        ------
        StoreError
            If it cannot be written, and then nothing is.
        """
        gpus: dict[int, Gpu] = {}
        for gpu in described.gpus:
            gpus.setdefault(gpu.device, gpu)  # of two of one number the first counts
        key = (run.id, profile.rank)
        with self._writing(run.id) as connection:
            _clear(connection, run.id, profile.rank)
            _clear(connection, run.id, WHOLE_RUN)
            connection.execute(RUNS.delete().where(RUNS.c.id == run.id))
            _insert_rows(connection, RUNS, [run])
            _insert_rows(connection, PROFILES, [profile])
            _insert_rows(connection, GPUS, [GpuRow(*key, **asdict(gpu)) for gpu in gpus.values()])
            _insert_rows(connection, FACTS, [FactRow(*key, **asdict(fact)) for fact in described.facts])
            _insert(connection, run.id, profile.rank, results)

    def put_run(self, run_id: str, results: Mapping[str, Result], checksums: Mapping[int, str]) -> bool:
        """Write the analyses over all ranks of a run, replacing those that the store has.

        Returns
        -------
        bool
            False, and nothing is written, where the run's profiles are no longer those of ``checksums``,
            from which the results were computed: another collect was there.

        Raises
        ------
        StoreError
            As `put_profile`.
        """
        query = select(PROFILES.c.rank, PROFILES.c.sha256).where(PROFILES.c.run_id == run_id)
        with self._writing(run_id) as connection:
            if dict(connection.execute(query).all()) != checksums:
                return False
            _clear(connection, run_id, WHOLE_RUN)
            _insert(connection, run_id, WHOLE_RUN, results)
            return True

    def has_run(self, run_id: str) -> bool:
        """Whether the store has the analyses over all ranks, of which each has rows or a reason.

        `put_run` writes them, and `put_profile` removes them.
        """
        found = [exists().where(table.c.run_id == run_id) for table in RUN_TABLES.values()]
        reason = exists().where(REASONS.c.run_id == run_id, REASONS.c.rank == WHOLE_RUN)
        with self._reading() as connection:
            return bool(connection.execute(select(or_(reason, *found))).scalar())

    def read(self, run_id: str, analysis: str) -> Stored:
        """Return one analysis, by rank and in its own order."""
        table = TABLES[analysis]
        packed = ANALYSES[analysis].packed
        names = [column.name for column in ANALYSES[analysis].columns]
        order = [column for column in table.primary_key if column.name != "run_id"]
        query = select(*([table.c.packed] if packed else (table.c[n] for n in names)))
        reasons = select(REASONS.c.rank, REASONS.c.reason).where(
            REASONS.c.run_id == run_id, REASONS.c.analysis == analysis
        )
        with self._reading() as connection:
            rows = connection.execute(query.where(table.c.run_id == run_id).order_by(*order)).all()
            why = connection.execute(reasons.order_by(REASONS.c.rank)).all()
        columns: Columns = {name: [] for name in names}
        for part in map(_unpacked, rows) if packed else [zip(*rows, strict=True)]:
            for values, more in zip(columns.values(), part, strict=False):
                values += more
        return Stored(columns, dict(why))

    def _make(self) -> None:
        if self._is_sqlite:
            Path(self.url.database or "").parent.mkdir(parents=True, exist_ok=True)
        with self._begin() as connection:
            self._lock(connection, "tables")
            if _version(connection) is None:  # else another process was quicker
                METADATA.create_all(connection)
                connection.execute(SCHEMA.insert().values(version=SCHEMA_VERSION))

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        with self._engine.execution_options(hpcprof_writes=True).begin() as connection:
            yield connection

    @contextmanager
    def _writing(self, run_id: str) -> Iterator[Connection]:
        """Write in one transaction; two that write the same run follow each other."""
        with self._sentences(), self._begin() as connection:
            self._lock(connection, f"run {run_id}")
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._sentences(), self._engine.connect() as connection:
            yield connection

    def _lock(self, connection: Connection, what: str) -> None:
        """Let one at a time change something until its transaction ends; SQLite has one writer anyway."""
        if not self._is_sqlite:
            digest = sha256(f"hpcprof {what}".encode("utf-8", "backslashreplace")).digest()
            key = int.from_bytes(digest[:8], "big", signed=True)
            connection.execute(select(func.pg_advisory_xact_lock(key)))

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, OSError, OverflowError) as error:
            raise StoreError(f"cannot use the results database {self}: {cause(error)}.") from None


def store_url(given: str | None, runs: Path) -> URL:
    """Return the URL of the results database: ``given`` (a URL or a path), else in the folder of runs.

    Raises
    ------
    UsageError
        If ``given`` is not a URL that SQLAlchemy can use here.
    """
    if given is None or "://" not in given:
        return URL.create("sqlite", database=str(Path(given) if given else runs / "hpcprof.db"))
    try:
        url = make_url(given)
        url.get_dialect().import_dbapi()
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        name = given.partition("://")[0]
        remedy = ": pip install 'hpcprof[postgres]'" if name.startswith("postgresql") else ""
        raise UsageError(f"--db {name}://…: this database cannot be used here: {error}{remedy}.") from None
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise UsageError(
            f"--db {url.get_backend_name()}://…: results go into SQLite (a path) or PostgreSQL "
            "(postgresql+psycopg://USER@HOST/DATABASE)."
        )
    return url


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        # Parameters by place, as SQLite's are: see `_insert_columns`.
        return create_engine(url, paramstyle="format")
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS})

    # Python's sqlite3 begins transactions late and commits before DDL; with its own handling switched
    # off, BEGIN is ours, and making the tables is as atomic as filling them (SQLAlchemy's manual,
    # "Serializable isolation / Savepoints / Transactional DDL").
    @event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and writes later cannot wait for another writer: it fails.
        writes = connection.get_execution_options().get("hpcprof_writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _version(connection: Connection) -> int | None:
    """Return the version of the tables that are there, None without any."""
    if not inspect(connection).has_table(SCHEMA.name):
        return None
    return connection.execute(select(SCHEMA.c.version)).scalar()


def _clear(connection: Connection, run_id: str, rank: int) -> None:
    """Remove everything of one rank, or with `WHOLE_RUN` what belongs to the run as a whole."""
    key = (plain(run_id), rank)
    if rank == WHOLE_RUN:
        _delete(connection, RUN_TABLES.values(), "run_id", key[:1])
        _delete(connection, [REASONS], "run_id rank", key)
    else:
        _delete(connection, [PROFILES, GPUS, FACTS, REASONS, *RANK_TABLES.values()], "run_id rank", key)


def _delete(connection: Connection, tables: Iterable[Table], names: str, key: tuple[Any, ...]) -> None:
    """Remove the rows of a key; so plain a statement takes SQLAlchemy ten times as long as SQLite."""
    mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
    where = " AND ".join(f"{name} = {mark}" for name in names.split())
    for table in tables:
        connection.exec_driver_sql(f"DELETE FROM {table.name} WHERE {where}", key)


def _insert(connection: Connection, run_id: str, rank: int, results: Mapping[str, Result]) -> None:
    for name, result in results.items():
        count = len(next(iter(result.columns.values()), ()))
        if count and ANALYSES[name].packed:
            row: Columns = {"run_id": [run_id], "rank": [rank], "packed": [_packed(name, result.columns)]}
            _insert_columns(connection, TABLES[name], row)
        elif count:
            numbered: Columns = {"run_id": [run_id] * count, "position": [*range(count)], **result.columns}
            _insert_columns(connection, TABLES[name], numbered)
    reasons = [ReasonRow(run_id, rank, name, result.reason) for name, result in results.items()]
    _insert_rows(connection, REASONS, [row for row in reasons if row.reason])


def _insert_rows(connection: Connection, table: Table, rows: Sequence[msgspec.Struct]) -> None:
    columns = {column.name: [getattr(row, column.name) for row in rows] for column in table.columns}
    _insert_columns(connection, table, columns)


def _insert_columns(connection: Connection, table: Table, columns: Columns) -> None:
    """Insert rows as the driver takes them, many by one statement.

    SQLAlchemy alone takes longer for each than the database, and that two thirds for many at once.
    """
    insert = table.insert().compile(dialect=connection.dialect, column_keys=[*columns])
    assert insert.positiontup is not None
    head, _, row = str(insert).partition(" VALUES ")
    rows = list(zip(*(_bound(columns[name], table.c[name].type) for name in insert.positiontup), strict=True))
    size = _MOST_PARAMETERS // len(columns)
    parts = [tuple(chain.from_iterable(rows[at : at + size])) for at in range(0, len(rows), size)]
    for length, alike in groupby(parts, len):
        values = ", ".join([row] * (length // len(columns)))
        connection.exec_driver_sql(f"{head} VALUES {values}", list(alike))


def _bound(values: list[Any], kind: TypeEngine[Any]) -> list[Any]:
    """Return values as the store has them; SQLAlchemy does that only in statements of its own."""
    if isinstance(kind, Plain):
        texts = {text: plain(text) for text in {*values}}  # Many rows have few texts.
        return [texts[text] for text in values]
    return [finite(value) for value in values] if isinstance(kind, Finite) else values


def _packed(analysis: str, columns: Columns) -> bytes:
    """Return the columns of an analysis, in its own order, as one value."""
    wanted = ANALYSES[analysis].columns
    return msgspec.msgpack.encode([_bound(columns[column.name], TYPES[column.kind]) for column in wanted])


def _unpacked(row: SQLRow[bytes]) -> list[list[Any]]:
    columns: list[list[Any]] = msgspec.msgpack.decode(row[0])
    return columns


def cause(error: Exception) -> str:
    """Return what a database, or the file system below it, says is wrong."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0]
