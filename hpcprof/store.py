"""The results database: runs, profiles, and one table an analysis.

Every key is made of what it names (run, rank, position), never of a counter or the clock: collecting
again writes the same rows. A profile's rows are written in one transaction that replaces what was
there, so half of a profile is never visible.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Engine,
    Integer,
    Table,
    Text,
    create_engine,
    delete,
    event,
    inspect,
    select,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from hpcprof.analysis.catalogue import ANALYSES, Analysis, Kind, Scope
from hpcprof.errors import StoreError, UsageError

SCHEMA_VERSION = 3
ANALYSIS_VERSION = 3
"""Raised whenever an analysis gives other figures: profiles collected before are collected again."""

WHOLE_RUN = -1
"""Stands for the rank of what belongs to the run as a whole."""

_BUSY_SECONDS = 60.0
Row = dict[str, Any]
ResultT = TypeVar("ResultT")


class _Base(DeclarativeBase):
    pass


class SchemaRow(_Base):
    """The version of the tables."""

    __tablename__ = "hpcprof_schema"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class RunRow(_Base):
    """One collected run."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(Text, primary_key=True)
    path: Mapped[str] = mapped_column(Text)
    site: Mapped[str | None] = mapped_column(Text)
    workload: Mapped[str | None] = mapped_column(Text)
    ranks: Mapped[int | None]


class ProfileRow(_Base):
    """One rank's profile: the file and what it says about itself."""

    __tablename__ = "profiles"

    run_id: Mapped[str] = mapped_column(Text, primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    file: Mapped[str] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(Text)
    bytes: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(Text)
    host: Mapped[str | None] = mapped_column(Text)
    devices: Mapped[str] = mapped_column(Text)
    profiler_version: Mapped[str | None] = mapped_column(Text)
    start_utc_ns: Mapped[int | None] = mapped_column(BigInteger)
    analysis_version: Mapped[int]


class ReasonRow(_Base):
    """Why an analysis has no rows, or a null in them."""

    __tablename__ = "reasons"

    run_id: Mapped[str] = mapped_column(Text, primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    analysis: Mapped[str] = mapped_column(Text, primary_key=True)
    reason: Mapped[str] = mapped_column(Text)


def _analysis_table(analysis: Analysis) -> Table:
    kinds = {Kind.INT: BigInteger, Kind.FLOAT: Double, Kind.TEXT: Text}
    keys: list[Column[Any]] = [Column("run_id", Text, primary_key=True)]
    if analysis.scope is Scope.RANK:
        keys.append(Column("rank", Integer, primary_key=True, autoincrement=False))
    keys.append(Column("position", Integer, primary_key=True, autoincrement=False))
    named = {key.name for key in keys}
    values = [Column(c.name, kinds[c.kind]()) for c in analysis.columns if c.name not in named]
    return Table(f"analysis_{analysis.name}", _Base.metadata, *keys, *values)


_TABLES = {name: _analysis_table(analysis) for name, analysis in ANALYSES.items()}
_RUN_TABLES = {name: table for name, table in _TABLES.items() if ANALYSES[name].scope is Scope.RUN}
_RANK_TABLES = {name: table for name, table in _TABLES.items() if ANALYSES[name].scope is Scope.RANK}


@dataclass(frozen=True)
class Stored:
    """An analysis as the store has it: its rows, and by rank the reasons for what is missing."""

    rows: list[Row]
    reasons: dict[int, str]


@dataclass(frozen=True)
class Result:
    """An analysis to be stored."""

    rows: Sequence[Row]
    reason: str = ""


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
        found = self._guarded(self._version)
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
            self._guarded(self._make)

    def __str__(self) -> str:
        return self.url.database or "" if self._is_sqlite else self.url.render_as_string(hide_password=True)

    @property
    def _is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    def profiles(self, run_id: str) -> dict[int, ProfileRow]:
        """Return the collected profiles of a run by rank."""
        with Session(self._engine) as session:
            found = session.scalars(select(ProfileRow).where(ProfileRow.run_id == run_id))
            return {profile.rank: profile for profile in found}

    def put_profile(self, run: RunRow, profile: ProfileRow, results: Mapping[str, Result]) -> None:
        """Write one rank's profile and analyses, replacing what the store has of that rank.

        What belongs to the run as a whole is removed with it: it no longer fits.
        """
        with self._writing() as connection, Session(connection) as session:
            _clear(connection, run.id, profile.rank)
            _clear(connection, run.id, WHOLE_RUN)
            session.merge(run)
            session.add(profile)
            session.flush()
            _insert(connection, run.id, profile.rank, results)

    def put_run(self, run_id: str, results: Mapping[str, Result]) -> None:
        """Write the analyses over all ranks of a run, replacing those that the store has."""
        with self._writing() as connection:
            _clear(connection, run_id, WHOLE_RUN)
            _insert(connection, run_id, WHOLE_RUN, results)

    def read(self, run_id: str, analysis: str) -> Stored:
        """Return the rows of one analysis, by rank and in the analysis' own order."""
        table = _TABLES[analysis]
        names = [column.name for column in ANALYSES[analysis].columns]
        order = ["rank", "position"] if analysis in _RANK_TABLES else ["position"]
        query = select(*(table.c[n] for n in names)).where(table.c.run_id == run_id)
        reasons = select(ReasonRow.rank, ReasonRow.reason).where(
            ReasonRow.run_id == run_id, ReasonRow.analysis == analysis
        )
        with self._engine.connect() as connection:
            rows = connection.execute(query.order_by(*(table.c[n] for n in order)))
            why = connection.execute(reasons.order_by(ReasonRow.rank))
            return Stored([dict(row._mapping) for row in rows], dict(why.tuples().all()))

    def _guarded(self, work: Callable[[], ResultT]) -> ResultT:
        try:
            return work()
        except (SQLAlchemyError, OSError) as error:
            raise StoreError(f"cannot use the results database {self}: {_cause(error)}.") from None

    def _make(self) -> None:
        if self._is_sqlite:
            Path(self.url.database or "").parent.mkdir(parents=True, exist_ok=True)
        with self._writing() as connection, Session(connection) as session:
            _Base.metadata.create_all(connection)
            session.merge(SchemaRow(version=SCHEMA_VERSION))
            session.flush()

    def _version(self) -> int | None:
        with self._engine.connect() as connection:
            if not inspect(connection).has_table(SchemaRow.__tablename__):
                return None
            return connection.execute(select(SchemaRow.version)).scalar()

    def _writing(self) -> AbstractContextManager[Connection]:
        return self._engine.execution_options(hpcprof_writes=True).begin()


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
        raise UsageError(f"--db {name}://…: this database cannot be used here: {error}.") from None
    return url


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url)
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
        for table in _RUN_TABLES.values():
            connection.execute(table.delete().where(table.c.run_id == run_id))
        return
    connection.execute(delete(ProfileRow).where(ProfileRow.run_id == run_id, ProfileRow.rank == rank))
    for table in _RANK_TABLES.values():
        connection.execute(table.delete().where(table.c.run_id == run_id, table.c.rank == rank))


def _insert(connection: Connection, run_id: str, rank: int, results: Mapping[str, Result]) -> None:
    for name, result in results.items():
        if result.rows:
            connection.execute(_TABLES[name].insert(), list(_numbered(run_id, result.rows)))
        if result.reason:
            row = {"run_id": run_id, "rank": rank, "analysis": name, "reason": result.reason}
            connection.execute(ReasonRow.__table__.insert(), row)  # type: ignore[attr-defined]


def _numbered(run_id: str, rows: Sequence[Row]) -> Iterable[Row]:
    # PostgreSQL has no zero byte in text.
    for position, row in enumerate(rows):
        clean = {k: v.replace("\0", "") if isinstance(v, str) else v for k, v in row.items()}
        yield {"run_id": run_id, "position": position, **clean}


def _cause(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(getattr(error, "orig", None) or error).strip().splitlines()[0]
