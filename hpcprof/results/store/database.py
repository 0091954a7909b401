"""The database below the store: its URL, connections, transactions, locks, rows, version and migration.

Many rows are deleted and inserted at once. These statements go to the driver as text with positional
parameters: compiling and running them through SQLAlchemy takes longer than the database needs.

A migration keeps the rows of an analysis if its columns are unchanged. Other tables are dropped and created;
the next collect fills them, and until then a reason says so.
"""

import errno
import shlex
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from hashlib import sha256
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, Dialect, Engine, Table, create_engine, event, func, inspect, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable, DropTable
from sqlalchemy.types import TypeEngine

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.outcome import WHOLE_RUN
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import RepeatedRow, StoreError, UsageError
from hpcprof.common.paths import read_only_uri
from hpcprof.common.private import make_private, make_private_file
from hpcprof.results.store.tables import (
    METADATA,
    PROFILES,
    REASONS,
    RUNS,
    SCHEMA,
    SCHEMA_VERSION,
    TABLES,
    Finite,
    Plain,
    ReasonRow,
    storable_number,
    storable_text,
)
from hpcprof.runs.config import database_file, group_may_read

_BUSY_SECONDS = 60.0
# SQLite's documented limit on the parameters of a statement was 999 before version 3.32.
_MAX_PARAMETERS = 999
_SHOWN_PARAMETERS = ("host", "port", "service", "sslmode")
"""The parameters of a PostgreSQL URL that are printed: none of them can be a secret."""


def store_url(address: str | None, runs_dir: Path) -> URL:
    """Return the URL of the results database.

    ``address`` is a URL or the path of an SQLite file; None for ``hpcprof.db`` in the folder of runs. Raises
    UsageError if SQLAlchemy cannot use the URL here, or it names neither SQLite nor PostgreSQL.
    """
    file = database_file(address, runs_dir)
    if address is None or file is not None:
        return URL.create("sqlite", database=str(file))
    try:
        url = make_url(address)
        url.get_dialect().import_dbapi()
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        name = address.partition("://")[0]
        remedy = ": pip install 'hpcprof[postgres]'" if name.startswith("postgresql") else ""
        raise UsageError(f"--db {name}://…: this database cannot be used here: {error}{remedy}.") from None
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise UsageError(
            f"--db {url.get_backend_name()}://…: results go into SQLite (a path) or PostgreSQL "
            "(postgresql+psycopg://USER@HOST/DATABASE)."
        )
    return url


def public_address(url: URL) -> str:
    """Return a database as users can give it after ``--db``.

    A password is left out: PostgreSQL takes it from ``~/.pgpass`` or ``$PGPASSWORD``.
    """
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    parameters = {name: value for name, value in url.query.items() if name in _SHOWN_PARAMETERS}
    return url.set(query=parameters)._replace(password=None).render_as_string()


def error_line(error: Exception) -> str:
    """Return the first line of an error of a database, or of the file system below it."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    message = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
    return (
        f"{message}: move it away, and collect the profiles again"
        if "image is malformed" in message
        else message
    )


class Database:
    """An SQLite file or a PostgreSQL database with the tables of results.

    Every method raises `StoreError` if the database cannot be used. With ``read_only``, it refuses to write,
    and keeps no file open between two reads.
    """

    def __init__(self, url: URL, read_only: bool = False) -> None:
        self.url = url
        self.read_only = read_only
        self._engine = _reading_engine(url) if read_only else _engine(url)

    def __str__(self) -> str:
        if self._is_sqlite:
            return self.url.database or ""
        # The query part of a URL may hold a password too.
        return self.url.set(query={}).render_as_string(hide_password=True)

    @property
    def _is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    def exists(self) -> bool:
        """Return whether the database has the tables, migrated if they are old; it is not created.

        Raises StoreError if the file is not a database, or one of another program, the server cannot be
        reached, the tables are of a newer version, or tables of an earlier one may not be migrated.
        """
        if self._is_sqlite and not Path(self.url.database or "").is_file():
            return False
        with self.reading() as connection:
            version = _version(connection)
            foreign = self._is_sqlite and version is None and inspect(connection).get_table_names()
        if foreign:
            raise StoreError(
                f"{self} is a database of another program (its first table is {foreign[0]}): give --db the "
                "path of hpcprof's results, or of a new file."
            )
        if version is not None and version > SCHEMA_VERSION:
            raise StoreError(
                f"the results database {self} has schema version {version}, this hpcprof knows versions up "
                f"to {SCHEMA_VERSION}: upgrade hpcprof, or give another --db."
            )
        if version is not None and version < SCHEMA_VERSION:
            if self.read_only:
                raise StoreError(
                    f"{self._earlier_version()}, and only read here: {self._migration_command()}."
                )
            self._migrate()
        return version is not None

    def _earlier_version(self) -> str:
        return f"the results database {self} is of an earlier hpcprof"

    def _migration_command(self) -> str:
        # Readers of a served page are in no folder.
        place = (
            str(Path(public_address(self.url)).absolute()) if self._is_sqlite else public_address(self.url)
        )
        command = shlex.join(["hpcprof", "baseline", "list", "--db", place])
        return f"{command} migrates it, run by somebody who may write it"

    def _migrate(self) -> None:
        try:
            with self._begin() as connection:
                self._lock(connection, "tables")
                if _version(connection) != SCHEMA_VERSION:  # else another process was faster
                    migrate(connection)
        except (SQLAlchemyError, OSError) as error:
            raise StoreError(
                f"{self._earlier_version()}, and cannot be migrated: {error_line(error)}; "
                f"{self._migration_command()}."
            ) from None

    def prepare(self) -> None:
        """Create the database and its tables unless they exist."""
        if self.exists():
            return
        with self._errors_as_sentences():
            if self._is_sqlite:
                group, path = group_may_read(), Path(self.url.database or "")
                make_private(path.parent, group)
                make_private_file(path, group)
            with self._begin() as connection:
                self._lock(connection, "tables")
                if _version(connection) is None:  # else another process was faster
                    for statement in creations(self.url.drivername):
                        connection.exec_driver_sql(statement)
                    connection.execute(SCHEMA.insert().values(version=SCHEMA_VERSION))

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Connect to read."""
        with self._errors_as_sentences(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self, run_id: str) -> Iterator[Connection]:
        """Write in one transaction; transactions that write the same run wait for each other."""
        with self._errors_as_sentences(), self._begin() as connection:
            self._lock(connection, f"run {run_id}")
            yield connection

    def compact(self) -> int:
        """Shrink an SQLite file to what its rows need, and return by how many bytes (0 for PostgreSQL)."""
        if not self._is_sqlite:
            return 0
        path = Path(self.url.database or "")
        with self._errors_as_sentences():
            before = path.stat().st_size
            connection = self._engine.raw_connection()
            try:
                connection.cursor().execute("VACUUM")  # not within a transaction
            finally:
                connection.close()
            return before - path.stat().st_size

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        with self._engine.execution_options(hpcprof_writes=True).begin() as connection:
            yield connection

    def _lock(self, connection: Connection, name: str) -> None:
        """Hold a lock of this name until the transaction ends; SQLite has a single writer anyway."""
        if not self._is_sqlite:
            digest = sha256(f"hpcprof {name}".encode("utf-8", "backslashreplace")).digest()
            key = int.from_bytes(digest[:8], "big", signed=True)
            connection.execute(select(func.pg_advisory_xact_lock(key)))

    @contextmanager
    def _errors_as_sentences(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise RepeatedRow(f"a row is there twice: {error_line(error)}.") from None
        except (SQLAlchemyError, sqlite3.Error, OSError, OverflowError) as error:
            read_only = isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES)
            hint = "; --runs-dir gives another folder" * read_only
            raise StoreError(f"cannot use the results database {self}: {error_line(error)}{hint}.") from None


def delete(connection: Connection, tables: Iterable[Table], key: Mapping[str, str | int | None]) -> int:
    """Delete the rows of each table whose columns equal ``key``, and return how many there were."""
    mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
    where = " AND ".join(f"{name} = {mark}" for name in key)
    values = tuple(key.values())
    return sum(
        connection.exec_driver_sql(f"DELETE FROM {table.name} WHERE {where}", values).rowcount
        for table in tables
    )


def insert_rows(connection: Connection, table: Table, rows: Sequence[msgspec.Struct]) -> None:
    """Insert rows whose fields are the columns of the table."""
    columns = {column.name: [getattr(row, column.name) for row in rows] for column in table.columns}
    insert_columns(connection, table, columns)


def insert_columns(connection: Connection, table: Table, columns: Mapping[str, list[Any]]) -> None:
    """Insert rows that are given as columns of equal length, many rows in one statement."""
    names, head, row = _insert(table, connection.dialect, tuple(columns))
    width, count = len(names), len(columns[names[0]])
    # The rows one after the other. An object for each row would take six times as long.
    values: list[Any] = [None] * (width * count)
    for place, name in enumerate(names):
        values[place::width] = _storable(columns[name], table.c[name].type)
    size = _MAX_PARAMETERS // width * width
    parts = [tuple(values[at : at + size]) for at in range(0, len(values), size)]
    for length, same_length in groupby(parts, len):
        marks = ", ".join([row] * (length // width))
        connection.exec_driver_sql(f"{head} VALUES {marks}", list(same_length))


@lru_cache(maxsize=256)
def _insert(table: Table, dialect: Dialect, columns: tuple[str, ...]) -> tuple[list[str], str, str]:
    """Return the order of the columns, and the text of an INSERT before and after ``VALUES``."""
    insert = table.insert().compile(dialect=dialect, column_keys=columns)
    assert insert.positiontup is not None
    head, _, row = str(insert).partition(" VALUES ")
    return insert.positiontup, head, row


def _storable(values: list[Any], kind: TypeEngine[Any]) -> list[Any]:
    """Convert the values of a column of a type, as that type does in SQLAlchemy's own statements."""
    if isinstance(kind, Plain):
        texts = {text: storable_text(text) for text in {*values}}  # Many rows have few texts.
        altered = any(text is not stored for text, stored in texts.items())
        return [texts[text] for text in values] if altered else values
    # The sum is finite only if all values are.
    if isinstance(kind, Finite) and (None in values or not isfinite(sum(values))):
        return [storable_number(value) for value in values]
    return values


@cache
def creations(drivername: str) -> tuple[str, ...]:
    """Return the statements that create all tables; to compile them takes longer than to run them."""
    dialect = URL.create(drivername).get_dialect()()
    tables = (CreateTable(table, if_not_exists=True) for table in METADATA.sorted_tables)
    return tuple(str(table.compile(dialect=dialect)) for table in tables)


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        # Positional parameters, as for SQLite.
        return create_engine(url, paramstyle="format")
    engine = create_engine(url, connect_args={"timeout": _BUSY_SECONDS})

    # Python's sqlite3 begins transactions late and commits before DDL. With its own handling switched
    # off, BEGIN is ours, and creating the tables is as atomic as filling them (SQLAlchemy's manual,
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


def _reading_engine(url: URL) -> Engine:
    """Return an engine whose connections cannot write."""
    if url.get_backend_name() != "sqlite":
        url_options = url.query.get("options", "")
        words = url_options if isinstance(url_options, str) else " ".join(url_options)
        options = f"{words} -c default_transaction_read_only=on"
        return create_engine(url, paramstyle="format", connect_args={"options": options.strip()})
    uri = read_only_uri(Path(url.database or ""))

    def connect() -> sqlite3.Connection:
        # A thread may read what another has connected; none of them at the same time.
        return sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, check_same_thread=False)

    return create_engine("sqlite://", creator=connect, poolclass=NullPool)


def _version(connection: Connection) -> int | None:
    """Return the version of the tables, or None if the database has none."""
    if not inspect(connection).has_table(SCHEMA.name):
        return None
    return connection.execute(select(SCHEMA.c.version)).scalar()


_VERSION_OF_SCHEMA = {11: "0.2.0"}
"""The version of hpcprof that wrote tables of a version, before each profile recorded it."""

_ADDED_COLUMNS = {"step_kinds": {"counted_steps", "once_steps"}, "darshan_files": {"late_rank", "wait_s"}}
"""Columns that were added to analyses whose older rows remain valid without them."""

_RECORDS = {table.name: table for table in METADATA.sorted_tables if table not in TABLES.values()}
"""The tables that describe runs and profiles, which are kept."""


def migrate(connection: Connection) -> None:
    """Change the tables of an earlier version to those of this one, within the caller's transaction."""
    recreated = [name for name in TABLES if _has_changed(connection, name)]
    present = set(inspect(connection).get_table_names())
    for name in recreated:
        if TABLES[name].name in present:
            connection.execute(DropTable(TABLES[name]))
        connection.execute(CreateTable(TABLES[name]))
    kept_tables = [*_RECORDS.values(), *(TABLES[name] for name in _ADDED_COLUMNS)]
    for table in kept_tables:
        if table.name not in present:
            connection.execute(CreateTable(table, if_not_exists=True))
            continue
        columns = _columns(connection, table.name)
        for column in table.columns:
            if column.name not in columns:
                kind = column.type.compile(connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}")
    row = connection.execute(select(SCHEMA.c.version)).scalar_one()
    unknown = PROFILES.c.made_by.is_(None)
    connection.execute(PROFILES.update().where(unknown).values(made_by=_VERSION_OF_SCHEMA.get(row)))
    if recreated:
        _insert_reasons(connection, recreated)
        # The next collect reads the profiles again, though their other figures are up to date.
        connection.execute(PROFILES.update().values(analysis_version=0))
    connection.execute(SCHEMA.update().values(version=SCHEMA_VERSION))


def _has_changed(connection: Connection, name: str) -> bool:
    """Return whether the table of an analysis is missing or has other columns than those of this version."""
    table, added = TABLES[name], _ADDED_COLUMNS.get(name, set())
    if not inspect(connection).has_table(table.name):
        return True
    return _columns(connection, table.name) - added != {column.name for column in table.columns} - added


def _columns(connection: Connection, table: str) -> set[str]:
    return {column["name"] for column in inspect(connection).get_columns(table)}


def _insert_reasons(connection: Connection, analyses: list[str]) -> None:
    """Give every run and rank a reason why these analyses have no rows."""
    connection.execute(REASONS.delete().where(REASONS.c.analysis.in_(analyses)))
    paths = dict(connection.execute(select(RUNS.c.id, RUNS.c.path)).all())
    ranks = connection.execute(select(PROFILES.c.run_id, PROFILES.c.rank)).all()
    rank_analyses = {name for name in analyses if ANALYSES[name].scope is Scope.RANK}
    # A run without profiles may have logs, snapshots of memory or samples.
    runs = dict.fromkeys([*paths, *(run_id for run_id, _ in ranks)])
    rows = [(run_id, rank, name) for run_id, rank in ranks for name in rank_analyses]
    rows += [(run_id, WHOLE_RUN, name) for run_id in runs for name in analyses if name not in rank_analyses]
    earlier = "collected by an earlier version of hpcprof: run hpcprof collect"
    reasons = [ReasonRow(*row, f"{earlier} {paths.get(row[0], row[0])}") for row in rows]
    insert_rows(connection, REASONS, reasons)
