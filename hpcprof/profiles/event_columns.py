"""The events of a rank as Arrow columns: their names and types for other programs.

Times are nanoseconds and end in ``_ns``, names and kinds are texts, and what the profiler did not record is
null. ``rank`` and ``run`` are not among the columns: the folders of the dataset hold them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

import numpy as np
import pyarrow as pa

from hpcprof.profiles.columns.unique import numbered
from hpcprof.profiles.timeline import FLOATS, NO_NAME, SHAPES, Allocations, Ints, Table, Timeline, along_axes

TEXTS = (
    *("name", "counter", "domain", "dims", "types", "values", "operation", "communicator"),
    *("function", "file", "source", "metric", "unit"),
)
"""The columns whose values are numbers of texts in a timeline."""

WORDS = {
    "category": ("compute", "communication", "memory"),
    "style": ("push_pop", "start_end"),
    "kind": ("event", "stream_wait", "stream", "device"),
    "host_memory": ("none", "pageable", "pinned", "managed"),
}
"""The columns whose values are those of an enumeration, with the word for each value from 0."""

STEPPED = "kernels"
"""The table in which each row also has its step."""

TIMES = ("start", "end", "time")
"""The columns that hold time stamps."""

_OPTIONAL = (
    *("correlation", "process", "stream", "source_stream", "source_correlation"),
    *("bytes", "received_bytes", "ranks", "peer", "comm_peer", "root", "tag", "wait_ns"),
    *("link", "line"),
)
"""The columns in which -1 says that the profiler did not record the value."""

_NAMES = {"memops": "memory_operations", "calls": "api", "collectives": "collective_calls"}
_AXES = ("x", "y", "z")


@cache
def timeline_tables() -> dict[str, type[Table]]:
    """Return the tables of a timeline by the name of its field."""
    kinds = get_type_hints(Timeline)
    types = {field.name: kinds[field.name] for field in fields(Timeline)}
    return {name: kind for name, kind in types.items() if isinstance(kind, type) and issubclass(kind, Table)}


def dataset_name(field: str) -> str:
    """Return the name that a table of a timeline has in the dataset and in SQL."""
    return _NAMES.get(field, field)


def column_names(column: str) -> list[str]:
    """Return the columns that are written for one of a timeline: three if it has shape (n, 3)."""
    if column in SHAPES:
        return [f"{column}_{axis}" for axis in _AXES]
    return [f"{column}_ns" if column in TIMES else column]


def is_text(column: str) -> bool:
    """Return whether a column of a timeline is written as text."""
    return column in TEXTS or column in WORDS


def table_schema(kind: type[Table]) -> pa.Schema:
    """Return the columns that are written for a kind of table."""
    return pa.schema(
        (name, pa.string() if is_text(f.name) else pa.float64() if f.name in FLOATS else pa.int64())
        for f in fields(kind)
        for name in column_names(f.name)
    )


def arrow_columns(table: Table, strings: Sequence[str]) -> pa.Table:
    """Return the rows of a table as they are written; texts have a dictionary."""
    columns: dict[str, Any] = {}
    for f in fields(table):
        values: Ints = getattr(table, f.name)
        if f.name in SHAPES:
            columns |= zip(column_names(f.name), np.ascontiguousarray(values.T, np.int64), strict=True)
        elif is_text(f.name):
            columns[f.name] = _texts(values, WORDS.get(f.name, strings))
        else:
            optional = f.name in _OPTIONAL and not isinstance(table, Allocations)
            unknown = values == NO_NAME if optional and values.min(initial=0) < 0 else None
            columns[column_names(f.name)[0]] = pa.array(np.ascontiguousarray(values), mask=unknown)
    return pa.table(columns)


def _texts(values: Ints, strings: Sequence[str]) -> pa.Array:
    """Return the texts of their numbers; the dictionary has only those that occur."""
    used, number = numbered(values)
    named = used != NO_NAME
    dictionary = pa.array([plain_text(strings[i]) for i in used[named].tolist()], pa.string())
    if named.all():
        return pa.DictionaryArray.from_arrays(pa.array(number.astype(np.int32)), dictionary)
    place = np.cumsum(named) - 1
    ids = pa.array(place[number].astype(np.int32), mask=~named[number])
    return pa.DictionaryArray.from_arrays(ids, dictionary)


def plain_text(value: str) -> str:
    """Return a text that UTF-8 can encode: a trace may contain half of a surrogate pair."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def table_of(kind: type[Table], columns: Mapping[str, pa.ChunkedArray], number: Mapping[str, int]) -> Table:
    """Return the table of a timeline whose columns were written.

    ``columns`` go by the name in the timeline, for a column of shape (n, 3) with its axis; ``number`` is the
    number of each text in the timeline.
    """
    fields_of_table = {}
    for f in fields(kind):
        names = column_names(f.name) if f.name in SHAPES else [f.name]
        words = WORDS.get(f.name)
        numbers = {word: i for i, word in enumerate(words)} if words else number
        parts = [_values(columns[name], numbers) for name in names]
        fields_of_table[f.name] = along_axes(parts) if f.name in SHAPES else _compact(parts[0])
    return kind(**fields_of_table)


def _compact(values: Ints) -> Ints:
    """Return a column, in the memory of one row if all of its values are equal."""
    equal = len(values) and values.min() == values.max()
    return np.broadcast_to(np.int64(values[0]), len(values)) if equal else values


def _values(column: pa.ChunkedArray, number: Mapping[str, int]) -> Ints:
    if not pa.types.is_dictionary(column.type):
        values: Ints = (column.fill_null(NO_NAME) if column.null_count else column).to_numpy()
        return values
    chunks = [np.empty(0, np.int64)]
    for chunk in column.chunks:
        # The index -1, for NULL, selects the last element.
        numbers = np.array([*(number[text] for text in chunk.dictionary.to_pylist()), NO_NAME], np.int64)
        chunks.append(numbers[chunk.indices.fill_null(-1).to_numpy()])
    return np.concatenate(chunks)
