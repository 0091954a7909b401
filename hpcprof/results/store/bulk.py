"""Deleting and inserting many rows at once.

The statements go to the driver as text with positional parameters: compiling and running them through
SQLAlchemy takes longer than the database needs to execute them.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from math import isfinite
from typing import Any

import msgspec
from sqlalchemy import Connection, Dialect, Table
from sqlalchemy.types import TypeEngine

from hpcprof.results.store.tables import Finite, Plain, finite, plain

# SQLite's documented limit on the parameters of a statement was 999 before version 3.32.
_MOST_PARAMETERS = 999


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
        values[place::width] = storable(columns[name], table.c[name].type)
    size = _MOST_PARAMETERS // width * width
    parts = [tuple(values[at : at + size]) for at in range(0, len(values), size)]
    for length, alike in groupby(parts, len):
        marks = ", ".join([row] * (length // width))
        connection.exec_driver_sql(f"{head} VALUES {marks}", list(alike))


@lru_cache(maxsize=256)
def _insert(table: Table, dialect: Dialect, columns: tuple[str, ...]) -> tuple[list[str], str, str]:
    """Return the order of the columns, and the text of an INSERT before and after ``VALUES``."""
    insert = table.insert().compile(dialect=dialect, column_keys=columns)
    assert insert.positiontup is not None
    head, _, row = str(insert).partition(" VALUES ")
    return insert.positiontup, head, row


def storable(values: list[Any], kind: TypeEngine[Any]) -> list[Any]:
    """Convert the values of a column of a type, as that type does in SQLAlchemy's own statements."""
    if isinstance(kind, Plain):
        texts = {text: plain(text) for text in {*values}}  # Many rows have few texts.
        altered = any(text is not stored for text, stored in texts.items())
        return [texts[text] for text in values] if altered else values
    # If a value is not finite, neither is its sum with others.
    if isinstance(kind, Finite) and (None in values or not isfinite(sum(values))):
        return [finite(value) for value in values]
    return values
