"""Columns of a SQLite file through ADBC's SQLite driver, which hands over Arrow arrays.

Python's sqlite3 makes an object of every value; for the large tables of an export that takes three times as
long (docs/explanation/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import local
from typing import Any

import numpy as np

from hpcprof.profiles.readers.nsys.binary_column import BinaryColumn
from hpcprof.profiles.timeline import Ints

TableColumns = tuple[dict[str, Ints], dict[str, BinaryColumn]]
"""Columns of integers, and columns of texts and blobs, by their names."""

# The driver types a column by its first batch and fails where a later one has another type, as for text after
# NULLs. A query of texts is therefore one batch; integers are copied batch by batch, which takes less memory.
# The driver reserves memory for all rows of a batch, and crashes where it gets none.
_INTEGER_ROWS = 1 << 16
# A row takes at least so many bytes of a file: its length, its number, its header and a value.
_LEAST_BYTES = 4
# Rows that a thread reads at a time: enough to outweigh a query, few enough to share a table evenly.
_SPAN = 1 << 18

_WORTH_A_THREAD = 1 << 23
"""Of a smaller file, starting threads and waiting for them takes as long as reading its tables."""


@dataclass(frozen=True)
class ColumnQuery:
    """A query of integers, none NULL, and of texts or blobs, and the query of the number of its ``rows``."""

    query: str
    count: str
    integers: tuple[str, ...]
    binary: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Begun:
    """A query under way: each part returns how many rows of its places in ``integers`` it filled."""

    integers: dict[str, Ints]
    parts: list[tuple[int, Future[int | None]]]

    def result(self) -> TableColumns | None:
        """Wait for the parts and close the gaps that rows deleted from the table left; None if one failed."""
        end = 0
        for first, part in self.parts:
            if (rows := part.result()) is None:
                return None
            if end < first:
                for column in self.integers.values():
                    column[end : end + rows] = column[first : first + rows]
            end += rows
        return {name: column[:end] for name, column in self.integers.items()}, {}


class ArrowQueries:
    """Executes queries of one file in threads, for reading only.

    Each thread has a connection of its own, whose transaction lasts until `close`. The driver brings its own
    SQLite, and where one SQLite of a process ends a transaction, the process loses the locks of the other too
    (https://sqlite.org/howtocorrupt.html, section 2.2.1).

    Attributes
    ----------
    parallel : bool
        Whether the file is large enough to begin queries.
    """

    def __init__(self, path: Path, threads: int) -> None:
        # as_uri quotes what has a meaning in a URI: spaces, '?', '#' and '%'.
        self._uri = f"{path.absolute().as_uri()}?mode=ro"
        size = path.stat().st_size
        self.parallel = size >= _WORTH_A_THREAD
        self._most_rows = size // _LEAST_BYTES
        self._open = ExitStack()
        self._threads = ThreadPoolExecutor(threads)
        self._own = local()
        self._begun: dict[str, _Begun] = {}

    def begin(self, query: ColumnQuery, first: int, last: int) -> None:
        """Begin to execute in other threads what `fetch` will be called for: a query of integers of a table.

        ``first`` and ``last`` are the least and the greatest rowid. The threads share each table.
        """
        # Where most rows were deleted, the places of all would take too much memory.
        if last - first >= self._most_rows:
            return
        columns = {name: np.empty(last - first + 1, np.int64) for name in query.integers}
        parts = []
        for begin in range(first, last + 1, _SPAN):
            end = min(begin + _SPAN, last + 1)
            places = {name: column[begin - first : end - first] for name, column in columns.items()}
            text = f"{query.query} WHERE rowid BETWEEN {begin} AND {end - 1}"
            parts.append((begin - first, self._threads.submit(self._fill, text, places)))
        self._begun[query.query] = _Begun(columns, parts)

    def fetch(self, query: ColumnQuery) -> TableColumns | None:
        """Return the columns of a query, or None where the driver cannot read them."""
        begun = self._begun.pop(query.query, None)
        return begun.result() if begun else self._whole(query)

    def close(self) -> None:
        """Wait for what was begun, and end all transactions."""
        self._threads.shutdown(cancel_futures=True)
        self._open.close()

    def _whole(self, query: ColumnQuery) -> TableColumns | None:
        """Execute a query in this thread."""
        count = np.empty(1, np.int64)
        if self._fill(query.count, {"rows": count}) is None:
            return None
        rows = int(count[0])
        numbers = {name: np.empty(rows, np.int64) for name in query.integers}
        binary: dict[str, BinaryColumn] = {}
        return (numbers, binary) if self._fill(query.query, numbers, query.binary, binary) == rows else None

    def _fill(
        self,
        query: str,
        integers: Mapping[str, Ints],
        names: Sequence[str] = (),
        binary: dict[str, BinaryColumn] | None = None,
    ) -> int | None:
        """Execute a query and return the number of its rows.

        Its integers are written into ``integers``, its texts and blobs called ``names`` into ``binary``.

        Returns
        -------
        int or None
            None where the driver cannot read a column or finds more rows than there is room for.
        """
        # Imported here: what describes a profile needs neither.
        import adbc_driver_manager as adbc
        import pyarrow as pa

        at, room = 0, min(map(len, integers.values()))
        try:
            # One row more than there is room for shows that there are more.
            with _batches(
                self._connection(), query, 1 + (room if names else min(room, _INTEGER_ROWS))
            ) as found:
                if any(found.schema.field(name).type != pa.int64() for name in integers):
                    return None
                for batch in found:
                    end = at + len(batch)
                    if end > room:
                        return None
                    for name, column in integers.items():
                        column[at:end] = batch.column(name).to_numpy()
                    if binary is not None:
                        binary.update((name, BinaryColumn.from_arrow(batch.column(name))) for name in names)
                    at = end
        except MemoryError:  # Another way to read would need more.
            raise
        except (adbc.Error, pa.ArrowException, OSError):
            return None
        return at

    def _connection(self) -> Any:
        """Return the connection of this thread."""
        import adbc_driver_manager as adbc
        import adbc_driver_sqlite

        if not hasattr(self._own, "connection"):
            database = self._open.enter_context(adbc_driver_sqlite.connect(self._uri))
            connection = self._open.enter_context(adbc.AdbcConnection(database))
            connection.set_autocommit(False)
            self._own.connection = connection
        return self._own.connection


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
