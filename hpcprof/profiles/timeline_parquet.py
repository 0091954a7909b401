"""A timeline stored as Parquet files, so that later questions need not read the profile again.

A folder holds ``rank00000.json`` and one file for each table, such as ``rank00000.kernels.parquet``. A table
has its own columns and ``rank``; names are text. The JSON file holds everything else. Each file contains the
checksum of the profile, so that files of different collects are never read as one timeline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hpcprof.common.atomic import replacing, write_atomically
from hpcprof.profiles.timeline import NO_NAME, SHAPES, Ints, Origin, Table, Timeline

VERSION = 1
"""Raise it when the meaning of a column changes; new and removed tables and columns are noticed anyway."""

_KEY = b"hpcprof"
_TEXT = ("name", "domain", "dims", "types", "values")
_AXES = ("x", "y", "z")
# Values that grow from row to row. The others repeat, and are smallest with a dictionary.
_GROWING = ("start", "end", "correlation", "source_correlation")
_GROUP = 1 << 18  # Rows that are written at a time, since Arrow copies them.


def save(folder: Path, timeline: Timeline, rank: int, sha256: str) -> None:
    """Write a timeline and the checksum of its profile; each file appears only when it is complete.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = pa.array([_text(value) for value in timeline.strings.tolist()], pa.string())
    for name, kind in _kinds().items():
        table: Table = getattr(timeline, name)
        schema = _arrow(kind.empty(), rank, texts).schema
        growing = [column for column in schema.names if column in _GROWING]
        with (
            replacing(_file(folder, rank, name)) as temporary,
            pq.ParquetWriter(
                temporary,
                schema.with_metadata({_KEY: json.dumps(_identity(sha256, kind)).encode()}),
                compression="zstd",
                compression_level=1,
                use_dictionary=[column for column in schema.names if column not in growing],
                column_encoding=dict.fromkeys(growing, "DELTA_BINARY_PACKED"),
                write_statistics=growing,
            ) as writer,
        ):
            for first in range(0, len(table), _GROUP):
                writer.write_table(_arrow(table.take(slice(first, first + _GROUP)), rank, texts))
    described = {
        **_identity(sha256),
        "origin": {**asdict(timeline.origin), "path": str(timeline.origin.path)},
        "strings": timeline.strings.tolist(),
    }
    write_atomically(_description(folder, rank), json.dumps(described))
    pa.default_memory_pool().release_unused()


def load(folder: Path, rank: int, sha256: str) -> Timeline | None:
    """Read a timeline that `save` wrote for the profile with this checksum.

    Returns
    -------
    Timeline or None
        None if there is none, or it is of another profile or version, or damaged.
    """
    try:
        described = json.loads(_description(folder, rank).read_text(encoding="utf-8"))
        if {**described, **_identity(sha256)} != described:
            return None
        number = {_text(value): i for i, value in enumerate(described["strings"])}
        tables: dict[str, Any] = {}
        for name, kind in _kinds().items():
            with pq.ParquetFile(_file(folder, rank, name)) as file:
                if json.loads(file.schema_arrow.metadata[_KEY]) != _identity(sha256, kind):
                    return None
                tables[name] = _table(kind, file.read(), number)
        origin = msgspec.convert(described["origin"], Origin, dec_hook=lambda kind, value: kind(value))
    except (OSError, pa.ArrowException, msgspec.ValidationError, ValueError, KeyError, TypeError):
        return None
    strings = np.empty(len(described["strings"]), object)
    strings[:] = described["strings"]
    return Timeline(origin=origin, strings=strings, **tables)


def _file(folder: Path, rank: int, table: str) -> Path:
    return folder / f"rank{rank:05d}.{table}.parquet"


def _description(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank:05d}.json"


def _identity(sha256: str, kind: type[Table] | None = None) -> dict[str, Any]:
    """Return what the JSON file, or the file of a table, must contain to be read."""
    layout = _columns(kind) if kind else list(_kinds())
    return {"version": VERSION, "layout": layout, "sha256": sha256}


def _kinds() -> dict[str, type[Table]]:
    """Return the tables of a timeline by name."""
    kinds = get_type_hints(Timeline)
    return {f.name: kinds[f.name] for f in fields(Timeline) if _is_table(kinds[f.name])}


def _is_table(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Table)


def _columns(kind: type[Table]) -> list[str]:
    """Return the names of a table's columns in its file."""
    return [name for f in fields(kind) for name in _parts(f.name)]


def _parts(column: str) -> list[str]:
    """Return the columns of a file for one of the timeline: three if it has shape (n, 3)."""
    return [f"{column}_{axis}" for axis in _AXES] if column in SHAPES else [column]


def _arrow(table: Table, rank: int, texts: pa.Array) -> pa.Table:
    columns = {"rank": pa.repeat(pa.scalar(rank, pa.int32()), len(table))}
    for f in fields(table):
        values: Ints = getattr(table, f.name)
        parts = values.T if f.name in SHAPES else [values]
        columns |= zip(_parts(f.name), map(np.ascontiguousarray, parts), strict=True)
        if f.name in _TEXT:
            unnamed = values == NO_NAME
            ids = pa.array(values.astype(np.int32), mask=unnamed if unnamed.any() else None)
            columns[f.name] = pa.DictionaryArray.from_arrays(ids, texts)
    return pa.table(columns)


def _text(value: str) -> str:
    """Return a text that UTF-8 can encode: a trace may contain half of a surrogate pair."""
    return value.encode("utf-8", "replace").decode()


def _table(kind: type[Table], rows: pa.Table, number: Mapping[str, int]) -> Table:
    columns = {}
    for f in fields(kind):
        parts = [_values(rows.column(name), number) for name in _parts(f.name)]
        columns[f.name] = np.column_stack(parts) if f.name in SHAPES else parts[0]
    return kind(**columns)


def _values(column: pa.ChunkedArray, number: Mapping[str, int]) -> Ints:
    """Return the values of a column, and for texts their numbers."""
    if not pa.types.is_dictionary(column.type):
        values: Ints = column.to_numpy()
        return values
    chunks = [np.empty(0, np.int64)]
    for chunk in column.chunks:
        # The index -1, for NULL, selects the last element.
        numbers = np.array([*(number[text] for text in chunk.dictionary.to_pylist()), NO_NAME], np.int64)
        chunks.append(numbers[chunk.indices.fill_null(-1).to_numpy()])
    return np.concatenate(chunks)
