"""The tables of the results database."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)
from sqlalchemy.types import TypeEngine

from hpcprof.analysis.framework.declaration import Analysis, Kind, Scope
from hpcprof.analysis.framework.registry import ANALYSES


def plain(text: str | None) -> str | None:
    """Return a text without what no database can hold: zero bytes and halves of surrogate pairs.

    The halves come from file names that are no UTF-8; they are written as ``\\udcff``.
    """
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "").encode("utf-8", "backslashreplace").decode("utf-8")


def finite(value: float | None) -> float | None:
    """Return a number, or None: SQLite stores a NaN as null, and an infinity is no figure."""
    return value if value is not None and math.isfinite(value) else None


class Plain(TypeDecorator[str]):
    """A text as `plain` returns it."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return plain(value)


class Finite(TypeDecorator[float]):
    """A number as `finite` returns it."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        return finite(value)


TYPES: dict[Kind, TypeEngine[Any]] = {
    Kind.INT: BigInteger(),
    Kind.FLOAT: Finite(),
    Kind.TEXT: Plain(),
}
"""The types of the columns of analyses."""

METADATA = MetaData()
"""The list of the tables."""

Int64 = int
"""In the annotation of a row's field: a whole number of more than 32 bits."""

_FIELDS: dict[str, type[TypeEngine[Any]]] = {"str": Plain, "int": Integer, "Int64": BigInteger}


class RunRow(msgspec.Struct, frozen=True):
    """One collected run."""

    id: str
    path: str
    site: str | None = None
    workload: str | None = None
    ranks: int | None = None


class ProfileRow(msgspec.Struct, frozen=True):
    """One rank's profile: the file and what it says about itself."""

    run_id: str
    rank: int
    file: str
    sha256: str
    bytes: Int64
    kind: str
    host: str | None
    devices: str
    profiler_version: str | None
    start_utc_ns: Int64 | None
    analysis_version: int


class GpuRow(msgspec.Struct, frozen=True):
    """A GPU of a profile's node; the fields are those of `hpcprof.profiles.timeline.Gpu`."""

    run_id: str
    rank: int
    device: Int64
    name: str
    uuid: str | None
    compute_capability: str | None
    sm_count: Int64 | None
    clock_hz: Int64 | None
    memory_bytes: Int64 | None
    memory_bytes_per_s: Int64 | None


class FactRow(msgspec.Struct, frozen=True):
    """One more thing that a profile says; see `hpcprof.profiles.timeline.Fact`."""

    run_id: str
    rank: int
    kind: str
    name: str
    value: str


class ReasonRow(msgspec.Struct, frozen=True):
    """Why an analysis has no rows, or a null in them."""

    run_id: str
    rank: int
    analysis: str
    reason: str


def _row_table(name: str, row: type[msgspec.Struct], keys: int) -> Table:
    """Return the table whose columns are the fields of a row; the first of them are its key."""
    table = Table(name, METADATA)
    for field, annotation in row.__annotations__.items():
        kind, _, null = annotation.partition(" | ")
        key = len(table.columns) < keys
        table.append_column(
            Column(field, _FIELDS[kind], primary_key=key, autoincrement=False, nullable=bool(null))
        )
    return table


def _analysis_table(analysis: Analysis) -> Table:
    keys = ["run_id", *(["rank"] if analysis.scope is Scope.RANK else [])]
    keys += [] if analysis.packed else ["position"]
    columns: list[Column[Any]] = [
        Column(key, Plain if key == "run_id" else Integer, primary_key=True, autoincrement=False)
        for key in keys
    ]
    if analysis.packed:
        columns.append(Column("packed", LargeBinary, nullable=False))
    else:
        columns += [Column(c.name, TYPES[c.kind]) for c in analysis.columns if c.name not in keys]
    return Table(f"analysis_{analysis.name}", METADATA, *columns)


SCHEMA = Table("hpcprof_schema", METADATA, Column("version", Integer, primary_key=True, autoincrement=False))
"""The version of the tables, its one row."""

RUNS = _row_table("runs", RunRow, keys=1)
PROFILES = _row_table("profiles", ProfileRow, keys=2)
GPUS = _row_table("gpus", GpuRow, keys=3)
FACTS = _row_table("facts", FactRow, keys=4)
REASONS = _row_table("reasons", ReasonRow, keys=3)
TABLES = {name: _analysis_table(analysis) for name, analysis in ANALYSES.items()}
RUN_TABLES = {name: table for name, table in TABLES.items() if ANALYSES[name].scope is Scope.RUN}
RANK_TABLES = {name: table for name, table in TABLES.items() if ANALYSES[name].scope is Scope.RANK}
