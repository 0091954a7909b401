"""Tables of a folder that ``nsys export --type=parquetdir`` writes: one Parquet file per table.

Large tables are decoded by pyarrow. Small ones are copied into a SQLite database in memory when they are
first asked for, so that one reader serves both kinds of export.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hpcprof.common.errors import DamagedInput, first_line
from hpcprof.profiles.input_bounds import max_unpacked_bytes, unpacking_error
from hpcprof.profiles.readers.nsys.table_pages import BinaryColumn, TableColumns, Wanted, quoted
from hpcprof.profiles.timeline import Ints

SUFFIX = ".parquet"


class ParquetTables(msgspec.Struct):
    """The files of a folder by the names of their tables; ``copied`` are the tables that SQLite has too."""

    files: dict[str, Path]
    connection: sqlite3.Connection
    copied: set[str] = msgspec.field(default_factory=set)

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of a table's columns; none if it has no rows."""
        with self._naming_damage(table), pq.ParquetFile(self.files[table]) as file:
            return frozenset(file.schema_arrow.names if file.metadata.num_rows else ())

    def read(self, table: str, wanted: Wanted) -> TableColumns | None:
        """Return columns in the order of the file; None where SQLite has to read them."""
        columns = self._content(table, [*wanted.integers, *wanted.binary])
        arrays = {name: columns[name].combine_chunks() for name in columns.column_names}
        if not all(_is_whole(arrays[name].type) for name in wanted.integers):
            return None
        if not all(_is_binary(arrays[name].type) for name in wanted.binary):
            return None
        return (
            {name: _integers(arrays[name], null) for name, null in wanted.integers.items()},
            {name: _binary(arrays[name]) for name in wanted.binary},
        )

    def copy(self, table: str) -> None:
        """Copy a table into SQLite, unless it is there."""
        if table in self.copied:
            return
        content = self._content(table)
        names = ", ".join(map(quoted, content.column_names))
        self.connection.execute(f"CREATE TABLE {quoted(table)} ({names})")
        marks = ", ".join("?" * content.num_columns)
        rows = zip(*(_values(column.combine_chunks()) for column in content.columns), strict=True)
        self.connection.executemany(f"INSERT INTO {quoted(table)} VALUES ({marks})", rows)
        self.copied.add(table)

    def _content(self, table: str, columns: list[str] | None = None) -> pa.Table:
        path = self.files[table]
        max_bytes = max_unpacked_bytes(path.stat().st_size)
        with self._naming_damage(table), pq.ParquetFile(path) as file:
            texts = [field.name for field in file.schema_arrow if _is_binary(field.type)]
            chosen = file.schema_arrow.names if columns is None else columns
            # A page may repeat one value any number of times.
            if 8 * file.metadata.num_rows * len(chosen) > max_bytes:
                raise unpacking_error(path)
            # Texts stay numbers until their size is known.
            read = pq.read_table(
                path, columns=columns, use_threads=False, partitioning=None, read_dictionary=texts
            )
            size = sum(map(_text_bytes, (chunk for column in read.columns for chunk in column.chunks)))
            if size > max_bytes:
                raise unpacking_error(path)
            kinds = [(schema.name, schema.type) for schema in read.schema]
            plain = [(name, k.value_type if pa.types.is_dictionary(k) else k) for name, k in kinds]
            return read.cast(pa.schema(plain))

    @contextmanager
    def _naming_damage(self, table: str) -> Iterator[None]:
        """Name the file of a table that cannot be read."""
        try:
            yield
        except MemoryError:  # Arrow's is one of its own errors, too
            raise
        except (pa.ArrowException, OSError) as error:
            folder, name = self.files[table].parent, self.files[table].name
            raise DamagedInput(
                f"{folder} cannot be read as a Parquet export of nsys: {name}: {first_line(error)}."
            ) from None


def _text_bytes(column: pa.Array) -> int:
    """Return the bytes that the texts of a column take once each row has its own."""
    if not pa.types.is_dictionary(column.type):
        return 0
    return int(pc.sum(pc.take(pc.binary_length(column.dictionary), column.indices)).as_py() or 0)


def _is_whole(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def _integers(column: pa.Array, null: int) -> Ints:
    """Return integers; those from 2**63 become negative, as SQLite stores them."""
    if column.type == pa.uint64():
        column = column.view(pa.int64())
    return np.array(column.cast(pa.int64()).fill_null(null))


def _binary(column: pa.Array) -> BinaryColumn:
    """Return texts or bytes as bytes: nsys writes payloads as texts that are no UTF-8."""
    column = column.view(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()).cast(
        pa.large_binary()
    )
    present = column.is_valid().to_numpy(zero_copy_only=False)
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    content = column.buffers()[2]
    taken = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]] if content else np.empty(0, np.uint8)
    return BinaryColumn(taken, offsets[:-1] - offsets[0], offsets[1:] - offsets[0], present)


def _values(column: pa.Array) -> list[Any]:
    if _is_whole(column.type):
        pylist = column.is_valid().to_pylist()
        numbers = _integers(column, 0).tolist()
        return [number if is_present else None for number, is_present in zip(numbers, pylist, strict=True)]
    return _binary(column).texts() if _is_binary(column.type) else column.to_pylist()
