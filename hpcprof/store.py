"""The results database: runs, profiles, and one table an analysis.

Every key is made of what it names (run, rank, position), never of a counter or the clock: collecting
again writes the same rows. A profile's rows are written in one transaction that replaces what was
there, so half of a profile is never visible.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import (
    Connection,
    Dialect,
    Engine,
    Table,
    create_engine,
    delete,
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
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeEngine

from hpcprof.analysis.catalogue import ANALYSES
from hpcprof.errors import StoreError, UsageError
from hpcprof.store_tables import (
    PROFILE_ROWS,
    RANK_TABLES,
    RUN_TABLES,
    TABLES,
    TYPES,
    Base,
    FactRow,
    GpuRow,
    Plain,
    ProfileRow,
    ReasonRow,
    RunRow,
    SchemaRow,
)

if TYPE_CHECKING:  # numpy is not needed to report from the store
    from hpcprof.timeline import Fact, Gpu

SCHEMA_VERSION = 5
ANALYSIS_VERSION = 5
"""Raised whenever an analysis gives other figures: profiles collected before are collected again."""

WHOLE_RUN = -1
"""Stands for the rank of what belongs to the run as a whole."""

_BUSY_SECONDS = 60.0
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
        with self._sentences():
            found = self._version()
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
        with self._reading() as connection, Session(connection) as session:
            return list(session.scalars(select(RunRow).order_by(RunRow.id)))

    def gpus(self, run_id: str) -> list[GpuRow]:
        """Return the GPUs that the profiles of a run tell of, by rank and device."""
        query = select(GpuRow).where(GpuRow.run_id == run_id).order_by(GpuRow.rank, GpuRow.device)
        with self._reading() as connection, Session(connection) as session:
            return list(session.scalars(query))

    def profiles(self, run_id: str) -> dict[int, ProfileRow]:
        """Return the collected profiles of a run by rank."""
        query = select(ProfileRow).where(ProfileRow.run_id == run_id).order_by(ProfileRow.rank)
        with self._reading() as connection, Session(connection) as session:
            return {profile.rank: profile for profile in session.scalars(query)}

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
        key = {"run_id": run.id, "rank": profile.rank}
        with self._writing(run.id) as connection, Session(connection) as session:
            _clear(connection, run.id, profile.rank)
            _clear(connection, run.id, WHOLE_RUN)
            session.merge(run)
            session.add(profile)
            gpus: dict[int, Gpu] = {}
            for gpu in described.gpus:
                gpus.setdefault(gpu.device, gpu)  # of two of one number the first counts
            session.add_all(GpuRow(**key, **asdict(gpu)) for gpu in gpus.values())
            session.add_all(FactRow(**key, **asdict(fact)) for fact in described.facts)
            session.flush()
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
        query = select(ProfileRow.rank, ProfileRow.sha256).where(ProfileRow.run_id == run_id)
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
        reason = exists().where(ReasonRow.run_id == run_id, ReasonRow.rank == WHOLE_RUN)
        with self._reading() as connection:
            return bool(connection.execute(select(or_(reason, *found))).scalar())

    def read(self, run_id: str, analysis: str) -> Stored:
        """Return one analysis, by rank and in its own order."""
        table = TABLES[analysis]
        packed = ANALYSES[analysis].packed
        names = [column.name for column in ANALYSES[analysis].columns]
        order = [column for column in table.primary_key if column.name != "run_id"]
        query = select(*([table.c.packed] if packed else (table.c[n] for n in names)))
        reasons = select(ReasonRow.rank, ReasonRow.reason).where(
            ReasonRow.run_id == run_id, ReasonRow.analysis == analysis
        )
        with self._reading() as connection:
            rows = connection.execute(query.where(table.c.run_id == run_id).order_by(*order)).all()
            why = connection.execute(reasons.order_by(ReasonRow.rank)).all()
        columns: Columns = {name: [] for name in names}
        for part in map(_unpacked, rows) if packed else [zip(*rows, strict=True)]:
            for values, more in zip(columns.values(), part, strict=False):
                values += more
        return Stored(columns, dict(why))

    def _make(self) -> None:
        if self._is_sqlite:
            Path(self.url.database or "").parent.mkdir(parents=True, exist_ok=True)
        with self._begin() as connection, Session(connection) as session:
            self._lock(connection, "tables")
            Base.metadata.create_all(connection)
            session.merge(SchemaRow(version=SCHEMA_VERSION))
            session.flush()

    def _version(self) -> int | None:
        with self._engine.connect() as connection:
            if not inspect(connection).has_table(SchemaRow.__tablename__):
                return None
            return connection.execute(select(SchemaRow.version)).scalar()

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


def _clear(connection: Connection, run_id: str, rank: int) -> None:
    """Remove everything of one rank, or with `WHOLE_RUN` what belongs to the run as a whole."""
    of_rank = (ReasonRow.run_id == run_id, ReasonRow.rank == rank)
    connection.execute(delete(ReasonRow).where(*of_rank))
    if rank == WHOLE_RUN:
        for table in RUN_TABLES.values():
            connection.execute(table.delete().where(table.c.run_id == run_id))
        return
    for kind in PROFILE_ROWS:
        connection.execute(delete(kind).where(kind.run_id == run_id, kind.rank == rank))
    for table in RANK_TABLES.values():
        connection.execute(table.delete().where(table.c.run_id == run_id, table.c.rank == rank))


def _insert(connection: Connection, run_id: str, rank: int, results: Mapping[str, Result]) -> None:
    for name, result in results.items():
        count = len(next(iter(result.columns.values()), ()))
        if count and ANALYSES[name].packed:
            row = {"run_id": run_id, "rank": rank, "packed": _packed(connection, name, result.columns)}
            connection.execute(TABLES[name].insert(), row)
        elif count:
            numbered: Columns = {"run_id": [run_id] * count, "position": list(range(count)), **result.columns}
            _insert_columns(connection, TABLES[name], numbered)
        if result.reason:
            row = {"run_id": run_id, "rank": rank, "analysis": name, "reason": result.reason}
            connection.execute(ReasonRow.__table__.insert(), row)  # type: ignore[attr-defined]


def _insert_columns(connection: Connection, table: Table, columns: Columns) -> None:
    """Insert rows as the driver takes them: SQLAlchemy alone takes longer for each than the database."""
    insert = table.insert().compile(dialect=connection.dialect, column_keys=[*columns])
    assert insert.positiontup is not None
    values = (_bound(columns[name], table.c[name].type, connection.dialect) for name in insert.positiontup)
    connection.exec_driver_sql(str(insert), list(zip(*values, strict=True)))


def _bound(values: list[Any], kind: TypeEngine[Any], dialect: Dialect) -> list[Any]:
    """Return values as the store has them; SQLAlchemy does that only in statements of its own."""
    process = kind.bind_processor(dialect)
    if process is None:
        return values
    # Many rows have few texts.
    return list(map(lru_cache(process) if isinstance(kind, Plain) else process, values))


def _packed(connection: Connection, analysis: str, columns: Columns) -> bytes:
    """Return the columns of an analysis, in its own order, as one value."""
    wanted = ANALYSES[analysis].columns
    return msgspec.msgpack.encode(
        [_bound(columns[column.name], TYPES[column.kind](), connection.dialect) for column in wanted]
    )


def _unpacked(row: SQLRow[bytes]) -> list[list[Any]]:
    columns: list[list[Any]] = msgspec.msgpack.decode(row[0])
    return columns


def cause(error: Exception) -> str:
    """Return what a database, or the file system below it, says is wrong."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0]
