"""Execute a user's SQL on the results database, read-only."""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.paths import read_only_uri
from hpcprof.results.collect.run_names import command_line
from hpcprof.results.store.database import error_line
from hpcprof.results.store.store import Store
from hpcprof.results.store.tables import METADATA

Value = int | float | str | None

_STATEMENT_SECONDS = 600
"""Maximum time of a statement on PostgreSQL, whose server is shared, in seconds."""

_HARMLESS_FUNCTIONS = ("random", "clock_timestamp", "timeofday", "gen_random_uuid")
"""Volatile functions that change nothing."""

_VOLATILE_SQL = r"""
    SELECT DISTINCT proname FROM pg_catalog.pg_proc
    WHERE provolatile = 'v' AND proname <> ALL (%s) AND oid IN (
        SELECT (regexp_matches(ev_action::text, ':(?:funcid|opfuncid|aggfnoid|winfnoid) (\d+)', 'g'))[1]::oid
        FROM pg_catalog.pg_rewrite WHERE ev_class = 'pg_temp.hpcprof_query'::regclass
    ) ORDER BY 1
"""

_UNSAFE_FUNCTIONS = ("load_extension", "fts3_tokenizer")
"""Functions of SQLite that load code, or read and return addresses in memory."""

# Actions that a query may take. SQLite refuses all others, among them ATTACH and VACUUM INTO.
_READING_ACTIONS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


class QueryResult(msgspec.Struct, frozen=True):
    """The rows of a query; the names of the columns are distinct."""

    columns: list[str]
    rows: list[tuple[Value, ...]]


def query(
    store: Store, sql: str, most_rows: int | None = None, seconds: int = _STATEMENT_SECONDS
) -> QueryResult:
    """Execute one read-only statement.

    At most ``most_rows`` are returned, by default all; on PostgreSQL the statement may take ``seconds``.
    Raises HpcprofError if nothing has been collected into the store, and UsageError if the SQL is wrong,
    would change something, or is more than one statement, and UnicodeEncodeError if the SQL cannot be encoded
    in UTF-8.
    """
    if not store.exists():
        collecting = command_line(store, "collect")
        raise HpcprofError(f"nothing has been collected into {store}: run {collecting} first.")
    try:
        _check_functions(store, sql)
        with _read_only_connection(store, seconds) as connection:
            # Without parameters, % and : in the SQL have no special meaning. PostgreSQL gets the SQL as
            # DECLARE CURSOR FOR, which accepts one query and no COPY to a file.
            reading = connection.execution_options(no_parameters=True, stream_results=True)
            result = reading.exec_driver_sql(sql)
            if not result.returns_rows:
                raise UsageError("this SQL returns no rows: hpcprof query only reads.")
            rows = [tuple(map(plain_value, row)) for row in islice(result, most_rows)]
            return QueryResult(distinct_names(list(result.keys())), rows)
    except UnicodeEncodeError:
        raise
    except (SQLAlchemyError, sqlite3.Error, sqlite3.Warning, ValueError) as error:
        reason = error_line(error).rstrip(".")
        if reason in ("not authorized", "authorization denied"):
            reason = "hpcprof query only reads"
        raise UsageError(f"{reason}. Tables and columns: hpcprof query --schema.") from None


def schema() -> QueryResult:
    """Return every table of the results database with its columns in their order."""
    rows: list[tuple[Value, ...]] = []
    for table in sorted(METADATA.tables.values(), key=lambda table: table.name):
        for column in table.columns:
            kind = str(column.type).lower()
            rows.append((table.name, column.name, kind, "key" if column.primary_key else ""))
    return QueryResult(["table", "column", "type", "key"], rows)


def _check_functions(store: Store, sql: str) -> None:
    """Refuse volatile functions, which a read-only transaction does not stop.

    1. PostgreSQL parses the statement as a temporary view, which is never executed.
    2. The stored view has the number of every function, and the server's catalogue says if it is volatile.
    3. The view is rolled back.

    Raises UsageError if the statement calls a volatile function, or the driver is not psycopg, which can
    refuse several statements.
    """
    if store.url.get_backend_name() == "sqlite":
        return
    engine = create_engine(store.url, poolclass=NullPool)
    with engine.connect() as connection:
        raw = connection.connection.driver_connection
        if store.url.get_driver_name() != "psycopg" or raw is None:
            raise UsageError("hpcprof query needs the driver psycopg: write postgresql+psycopg://… in --db.")
        view = f"CREATE TEMPORARY VIEW hpcprof_query AS SELECT 1 FROM ({sql.strip().rstrip(';')}\n) AS q"
        try:
            raw.execute(view, prepare=True)  # a prepared statement is a single one
            rows = [name for (name,) in raw.execute(_VOLATILE_SQL, (list(_HARMLESS_FUNCTIONS),))]
        except engine.dialect.loaded_dbapi.Error as error:
            raise ValueError(error_line(error)) from None
        finally:
            raw.rollback()
    if rows:
        raise UsageError(f"{', '.join(rows)} may change something: hpcprof query only reads.")


@contextmanager
def _read_only_connection(store: Store, seconds: int) -> Iterator[Connection]:
    if store.url.get_backend_name() == "sqlite":
        uri = read_only_uri(Path(store.url.database or ""))
        engine = create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(uri, uri=True), poolclass=NullPool
        )
    else:
        # The option also holds for later transactions, in case the SQL ends this one.
        limit = f"-c statement_timeout={seconds}s"
        options = {"options": f"-c default_transaction_read_only=on {limit}"}
        engine = create_engine(store.url, connect_args=options, poolclass=NullPool)
        engine = engine.execution_options(postgresql_readonly=True)
    with engine.connect() as connection:
        raw = connection.connection.driver_connection
        if isinstance(raw, sqlite3.Connection):
            raw.set_authorizer(_authorize)
        yield connection


def _authorize(action: int, _: object, function: str | None, *__: object) -> int:
    denied = action not in _READING_ACTIONS or (function or "").lower() in _UNSAFE_FUNCTIONS
    return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK


def plain_value(value: Any) -> Value:
    """Convert a value to a type of JSON and CSV: PostgreSQL returns sums of whole numbers as decimals."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value if value is None or isinstance(value, (int, float, str)) else str(value)


def distinct_names(names: list[str]) -> list[str]:
    """Return the names with a number after each that occurs again: ``rank``, ``rank_2``."""
    unique: list[str] = []
    for name in names:
        repeated, number = name, 1
        while repeated in unique:
            number += 1
            repeated = f"{name}_{number}"
        unique.append(repeated)
    return unique
