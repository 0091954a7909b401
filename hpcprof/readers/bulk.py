"""Whole columns of integers out of a SQLite file, through Arrow: no Python object is made for a value."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import adbc_driver_manager as adbc
import adbc_driver_sqlite
import numpy as np
import pyarrow as pa

from hpcprof.timeline import Ints

# Fewer and larger batches than the driver's 1024 rows: their columns are joined in the end.
_OPTIONS = {"adbc.sqlite.query.batch_rows": "65536"}


def read_only_uri(path: Path) -> str:
    """Return the URI by which SQLite opens a file and never writes to it or beside it.

    It quotes what a URI gives a meaning to: spaces, '?', '#' and '%'.
    """
    return f"{path.absolute().as_uri()}?mode=ro"


def int_columns(path: Path, statements: Sequence[str], nulls: Sequence[int]) -> list[Ints] | None:
    """Return the columns of several statements, rows of the first statement first.

    Each statement runs in a thread and on a connection of its own: the driver works outside Python's lock.

    Parameters
    ----------
    path : Path
        The SQLite file.
    statements : sequence of str
        Queries with the same columns.
    nulls : sequence of int
        What stands for NULL in each column.

    Returns
    -------
    list of ndarray of int64, or None
        None where a column holds anything but integers and NULL, or where the driver gives up.
    """
    try:
        with ThreadPoolExecutor(len(statements)) as pool:
            parts = list(pool.map(lambda statement: _table(path, statement), statements))
    except (adbc.Error, pa.ArrowException, OSError):
        return None
    if any(not pa.types.is_int64(kind) for part in parts for kind in part.schema.types):
        return None
    found = []
    for null in nulls:
        chunks = [chunk for part in parts for chunk in part.column(0).chunks]
        # Dropped here, so that a column is not in memory twice for longer than it takes to copy it.
        parts = [part.remove_column(0) for part in parts]
        filled = (chunk.fill_null(null) if chunk.null_count else chunk for chunk in chunks)
        found.append(np.concatenate([np.empty(0, np.int64), *(chunk.to_numpy() for chunk in filled)]))
    return found


def _table(path: Path, statement: str) -> pa.Table:
    with (
        adbc_driver_sqlite.connect(read_only_uri(path)) as database,
        adbc.AdbcConnection(database) as connection,
        adbc.AdbcStatement(connection) as query,
    ):
        query.set_options(**_OPTIONS)
        query.set_sql_query(statement)
        stream, _ = query.execute_query()
        return pa.RecordBatchReader.from_stream(stream).read_all()
