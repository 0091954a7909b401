"""Folders as ``nsys export --type=parquetdir`` writes them, from exports to SQLite.

The types are those that nsys 2023.4 writes: global ids are unsigned, texts are texts, and so are payloads,
whose bytes are no UTF-8. Nothing is compressed.
"""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def write_folder(export: Path, folder: Path, seed: int | None = None) -> Path:
    """Write the tables of an export into a folder; with a seed, their rows are shuffled."""
    folder.mkdir()
    with closing(sqlite3.connect(export)) as connection:
        connection.text_factory = bytes
        listed = connection.execute("SELECT CAST(name AS BLOB) FROM sqlite_master WHERE type = 'table'")
        for table in sorted(name.decode() for (name,) in listed):
            about = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
            rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
            if seed is not None:
                random.Random(seed).shuffle(rows)
            columns = [*zip(*rows, strict=True)] or [()] * len(about)
            arrays = {
                row[1].decode(): _column(row[1].decode(), row[2], values)
                for row, values in zip(about, columns, strict=True)
            }
            write_table(folder, table, pa.table(arrays))
    return folder


def write_table(folder: Path, name: str, table: pa.Table) -> None:
    """Write one table as nsys does."""
    pq.write_table(table, folder / f"{name}.parquet", compression="NONE", store_schema=False)


def _column(name: str, kind: bytes, values: Any) -> pa.Array:
    if kind in (b"TEXT", b"BLOB"):
        return pa.array(values, pa.binary()).view(pa.string())
    if kind == b"REAL":
        return pa.array(values, pa.float64())
    return pa.array(values, pa.uint64() if name.startswith("global") else pa.int64())
