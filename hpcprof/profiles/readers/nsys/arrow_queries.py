"""Columns of a SQLite file through ADBC's SQLite driver, which hands over Arrow arrays.

Python's sqlite3 makes an object of every value; for the large tables of an export that takes three times as
long (docs/explanation/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcprof.profiles.readers.nsys.binary_column import BinaryColumn
from hpcprof.profiles.timeline import Ints

TableColumns = tuple[dict[str, Ints], dict[str, BinaryColumn]]
"""Columns of integers, and columns of texts and blobs, by their names."""

# The driver types a column by its first batch and fails where a later one has another type, as for text after
# NULLs. A query of texts is therefore one batch; integers are copied batch by batch, which takes less memory.
_INTEGER_ROWS, _ALL_ROWS = 1 << 16, 1 << 30

_WORTH_A_THREAD = 1 << 23
"""Of a smaller file, starting threads and waiting for them takes as long as reading its tables."""


@dataclass(frozen=True)
class ColumnQuery:
    """A query of integers, none NULL, and of texts or blobs, and the query of the number of its rows."""

    query: str
    count: str
    integers: tuple[str, ...]
    binary: tuple[str, ...] = ()


class ArrowQueries:
    """Executes queries of one file, for reading only.

    Each has a connection of its own, whose transaction lasts until `close`. The driver brings its own SQLite,
    and where one SQLite of a process ends a transaction, the process loses the locks of the other too
    (https://sqlite.org/howtocorrupt.html, section 2.2.1).
    """

    def __init__(self, path: Path) -> None:
        # as_uri quotes what has a meaning in a URI: spaces, '?', '#' and '%'.
        self._uri = f"{path.absolute().as_uri()}?mode=ro"
        self._parallel = path.stat().st_size >= _WORTH_A_THREAD
        self._open = ExitStack()
        self._threads = ThreadPoolExecutor(2)
        self._begun: dict[str, Future[TableColumns | None]] = {}

    def begin(self, query: ColumnQuery) -> None:
        """Begin to execute in another thread what `fetch` will be called for, unless the file is small."""
        if self._parallel:
            self._begun[query.query] = self._threads.submit(self._fetch, query)

    def fetch(self, query: ColumnQuery) -> TableColumns | None:
        """Return the columns of a query, or None where the driver cannot read them."""
        begun = self._begun.pop(query.query, None)
        return begun.result() if begun else self._fetch(query)

    def close(self) -> None:
        """Wait for what was begun, and end all transactions."""
        self._threads.shutdown(cancel_futures=True)
        self._open.close()

    def _fetch(self, query: ColumnQuery) -> TableColumns | None:
        # Imported here: what describes a profile needs neither.
        import adbc_driver_manager as adbc
        import pyarrow as pa

        try:
            connection = self._connection()
            with _batches(connection, query.count, 1) as found:
                (rows,) = (batch.column(0)[0].as_py() for batch in found)
            numbers = {name: np.empty(rows, np.int64) for name in query.integers}
            binary: dict[str, BinaryColumn] = {}
            with _batches(connection, query.query, _ALL_ROWS if query.binary else _INTEGER_ROWS) as found:
                if any(found.schema.field(name).type != pa.int64() for name in query.integers):
                    return None
                at = 0
                for batch in found:
                    if at + len(batch) > rows:
                        return None
                    for name, column in numbers.items():
                        column[at : at + len(batch)] = batch.column(name).to_numpy()
                    at += len(batch)
                    binary = {name: BinaryColumn.from_arrow(batch.column(name)) for name in query.binary}
            return (numbers, binary) if at == rows else None
        except (adbc.Error, pa.ArrowException, OSError):
            return None

    def _connection(self) -> Any:
        import adbc_driver_manager as adbc
        import adbc_driver_sqlite

        database = self._open.enter_context(adbc_driver_sqlite.connect(self._uri))
        connection = self._open.enter_context(adbc.AdbcConnection(database))
        connection.set_autocommit(False)
        return connection


@contextmanager
def _batches(connection: Any, query: str, rows: int) -> Iterator[Any]:
    """Execute a query, and yield a `pyarrow.RecordBatchReader` of so many rows a batch."""
    import adbc_driver_manager as adbc
    import pyarrow as pa

    with adbc.AdbcStatement(connection) as statement:
        statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
        statement.set_sql_query(query)
        stream, _ = statement.execute_query()
        with pa.RecordBatchReader.from_stream(stream) as reader:
            yield reader
