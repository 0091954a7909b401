"""Rows of a run from another installation, decoded table by table and checked.

A table stays JSON until it is read, and its memory is estimated before it is decoded. Each column is decoded
by the type of its values in the store.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from threading import Condition
from typing import Annotated, Any, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType
from sqlalchemy import BigInteger, Integer

from hpcprof.analysis.explain.explanation import Explanation
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common import __version__
from hpcprof.common.decode import from_json
from hpcprof.common.errors import DamagedInput
from hpcprof.common.freed_memory import return_freed_memory
from hpcprof.profiles.losses import LossKind, Subject
from hpcprof.results.store.tables import TABLES_OF_RUNS, Finite

MAX_RESULTS_BYTES = 256 << 20
"""Maximum size of the results of a package as JSON."""

MAX_MEMORY_BYTES = 576 << 20
"""Maximum memory of the results of all packages that are decoded at the same time."""

_MAX_TABLE_BYTES = MAX_MEMORY_BYTES - MAX_RESULTS_BYTES

MAX_RANK = 9_999_999

_NO_RANK = -1
"""Value of the column ``rank`` in rows about the whole run."""

_MAX_EXPLANATION_BYTES = 8 << 20
_VALUE_BYTES = 64
"""Memory of a value: the object, its places in a list, in the rows of an INSERT and in its parameters."""

_RESERVED_PER_BYTE = 32
"""Memory that is reserved for each byte of JSON before its values are counted."""

_BLOCK = 1 << 20
_COUNT_COLUMNS = frozenset({"ranks", "position", "bytes", "count", "total", "analysis_version"})
"""Columns of tables about a run whose numbers are counts."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
DAMAGES = (msgspec.MsgspecError, RecursionError)


class MemoryBudget:
    """Memory that concurrent work shares; work that does not fit waits until other work has ended."""

    def __init__(self, most: int) -> None:
        self._size_bytes = self._available = most
        self._changed = Condition()

    @contextmanager
    def reserved(self, count: int) -> Iterator[None]:
        """Wait until ``count`` bytes (at most the whole budget) are available, and hold them in the block."""
        count = min(count, self._size_bytes)
        with self._changed:
            self._changed.wait_for(lambda: self._available >= count)
            self._available -= count
        try:
            yield
        finally:
            with self._changed:
                self._available += count
                self._changed.notify_all()


_MEMORY = MemoryBudget(MAX_MEMORY_BYTES)


@contextmanager
def memory_for(size: int) -> Iterator[None]:
    """Hold the memory that decoding ``size`` bytes of results takes."""
    with _MEMORY.reserved(size * _RESERVED_PER_BYTE):
        try:
            yield
        finally:
            return_freed_memory()


class PackedRows(Mapping[str, Mapping[str, list[Any]]]):
    """The rows of a run in JSON, by table and column; a table is decoded each time that it is asked for.

    Raises DamagedInput, then or here, for an unknown table or column, a name that is there twice, a value of
    another type, and a table that takes too much memory.
    """

    def __init__(self, text: bytes, made_by: str) -> None:
        self._made_by = made_by
        self._tables = self._fields("results.json", text, tuple(TABLES_OF_RUNS))

    def forget(self) -> None:
        """Let the memory of the rows go, even if somebody still has this object."""
        self._tables = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def __getitem__(self, name: str) -> Mapping[str, list[Any]]:
        names = tuple(column.name for column in TABLES_OF_RUNS[name].table.columns)
        columns = self._fields(f"the table {name!r}", self._tables[name], names)
        needed = sum(map(_memory_of, columns.values()))
        if needed > _MAX_TABLE_BYTES:
            raise DamagedInput(f"{name} takes {needed:,} bytes of memory; the limit is {_MAX_TABLE_BYTES:,}")
        decoders, rows = _decoders(name), {}
        for column, text in columns.items():
            try:
                rows[column] = decoders[column].decode(text)
            except DAMAGES as error:
                raise _type_error(name, column, error) from None
        return rows

    def _fields(self, noun: str, text: bytes | Raw, names: tuple[str, ...]) -> dict[str, Raw]:
        """Return the values of an object, still as JSON."""
        try:
            values = _object_decoder(names).decode(text)
        except msgspec.ValidationError as error:
            versions = f"a package by hpcprof {self._made_by[:20]}; here is hpcprof {__version__}"
            raise DamagedInput(f"{noun} has unknown columns, in {versions}: {error}") from None
        except DAMAGES as error:
            raise DamagedInput(f"{noun} is damaged: {error}") from None
        fields = {name: cast(Raw, value) for name in names if (value := getattr(values, name)) is not UNSET}
        # A value that a later one of the same name replaces is in the text and in no field.
        separators = max(0, 2 * len(fields) - 1)
        compact = 2 + separators + sum(len(name) + 2 + _size(value) for name, value in fields.items())
        if _size(text) not in (compact, compact + separators):
            raise DamagedInput(f"{noun} has a name twice, or more space than JSON needs")
        return fields


def _size(text: bytes | Raw) -> int:
    return memoryview(text).nbytes


def _memory_of(column: Raw) -> int:
    """Return an upper bound of the memory that a column takes once it is decoded."""
    view = memoryview(column)
    values = memory = 1
    for start in range(0, view.nbytes, _BLOCK):
        block = bytes(view[start : start + _BLOCK])
        values += block.count(b",")
        # Every character of a text takes as much as its widest.
        memory += block.count(b'"') * _VALUE_BYTES // 2 + len(block) * (1 if block.isascii() else 4)
    return memory + values * _VALUE_BYTES


@cache
def _object_decoder(names: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    # SQLAlchemy has names of a type of its own.
    fields = [(f"{name}", Raw | UnsetType, UNSET) for name in names]
    return msgspec.json.Decoder(msgspec.defstruct("Packed", fields, forbid_unknown_fields=True))


@cache
def _decoders(name: str) -> dict[str, msgspec.json.Decoder[Any]]:
    return {column: msgspec.json.Decoder(kind) for column, kind in _types(name).items()}


@cache
def _types(name: str) -> dict[str, Any]:
    """Return the types of the columns of a table: lists of values that its database can hold."""
    types: dict[str, Any] = {}
    for column in TABLES_OF_RUNS[name].table.columns:
        kind: Any = str
        if isinstance(column.type, (Integer, BigInteger, Finite)):
            bits = 31 if isinstance(column.type, Integer) and not isinstance(column.type, BigInteger) else 63
            counted = column.name in _COUNT_COLUMNS and (column.primary_key or name not in ANALYSES)
            low = 0 if counted else _NO_RANK if column.name == "rank" else -(1 << bits)
            high = MAX_RANK if column.name == "rank" else (1 << bits) - 1
            kind = Annotated[int, msgspec.Meta(ge=low, le=high)]
            kind = kind | float if isinstance(column.type, Finite) else kind
        types[column.name] = list[kind | None] if column.nullable else list[kind]
    return types


def check_types(rows: Mapping[str, Mapping[str, list[Any]]]) -> None:
    """Check that values are of the types of their columns, which SQLite does not enforce."""
    for name, columns in rows.items():
        for column, values in columns.items():
            try:
                msgspec.convert(values, _types(name)[column])
            except msgspec.ValidationError as error:
                raise _type_error(name, column, error) from None


def _type_error(name: str, column: str, error: Exception) -> DamagedInput:
    return DamagedInput(f"{name}.{column} has a value of another type: {error}")


def check_rows(run_id: str, rows: Mapping[str, Mapping[str, list[Any]]]) -> None:
    """Check rows from another installation: they belong to one run, and fit the tables.

    ``rows`` are as `hpcprof.results.store.store.Store.all_rows` returns them. Raises DamagedInput for the
    first table that is not as it has to be.
    """
    if "runs" not in rows:
        raise DamagedInput("the results are not of one run")
    for name, columns in rows.items():
        stored = TABLES_OF_RUNS[name]
        if len({len(values) for values in columns.values()}) > 1:
            raise DamagedInput(f"the columns of {name} are of different lengths")
        if set(columns.get(stored.run, [run_id])) != {run_id}:
            raise DamagedInput(f"{name} has rows of another run")
        required = {column.name for column in stored.table.columns if not column.nullable}
        if missing := required - columns.keys():
            raise DamagedInput(f"{name} lacks {', '.join(sorted(missing))}")
        _check_content(name, columns)


_ALLOWED_VALUES = {
    ("losses", "kind"): frozenset(kind.value for kind in LossKind),
    ("losses", "subject"): frozenset(subject.value for subject in Subject),
    ("reasons", "analysis"): frozenset(ANALYSES),
}


def _check_content(name: str, columns: Mapping[str, list[Any]]) -> None:
    if name == "runs" and len(columns["id"]) != 1:
        raise DamagedInput("the results are not of one run")
    if name == "profiles" and min(columns["rank"], default=0) < 0:
        raise DamagedInput("profiles has a negative rank")
    if name == "profiles" and not all(map(_SHA256.fullmatch, columns["sha256"])):
        raise DamagedInput("profiles has an invalid checksum")
    for (table, column), values in _ALLOWED_VALUES.items():
        if table == name and not values.issuperset(columns[column]):
            raise DamagedInput(f"{name} has a {column} that hpcprof {__version__} does not know")
    for text in columns["explanation"] if name == "explanations" else ():
        try:
            if len(text) > _MAX_EXPLANATION_BYTES:
                raise DamagedInput(f"the explanation exceeds {_MAX_EXPLANATION_BYTES:,} bytes")
            from_json(text, Explanation)
        except DAMAGES as error:
            raise DamagedInput(f"the explanation is damaged: {error}") from None
