"""The tables of the results database."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import BigInteger, Column, Dialect, Double, Integer, LargeBinary, Table, Text, TypeDecorator
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine

from hpcprof.analysis.catalogue import ANALYSES, Analysis, Kind, Scope


class Plain(TypeDecorator[str]):
    """Text without what no database can hold: zero bytes and halves of surrogate pairs.

    The halves come from file names that are no UTF-8; they are written as ``\\udcff``.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return value.replace("\0", "").encode("utf-8", "backslashreplace").decode("utf-8")


class Finite(TypeDecorator[float]):
    """A number, or null: SQLite stores a NaN as null, and an infinity is no figure."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        return value if value is not None and math.isfinite(value) else None


TYPES: dict[Kind, type[TypeEngine[Any]]] = {
    Kind.INT: BigInteger,
    Kind.FLOAT: Finite,
    Kind.TEXT: Plain,
}
"""The types of the columns of analyses."""


class Base(DeclarativeBase):
    """What the tables have in common: one list of them."""


class SchemaRow(Base):
    """The version of the tables."""

    __tablename__ = "hpcprof_schema"

    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class RunRow(Base):
    """One collected run."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(Plain, primary_key=True)
    path: Mapped[str] = mapped_column(Plain)
    site: Mapped[str | None] = mapped_column(Plain)
    workload: Mapped[str | None] = mapped_column(Plain)
    ranks: Mapped[int | None]


class ProfileRow(Base):
    """One rank's profile: the file and what it says about itself."""

    __tablename__ = "profiles"

    run_id: Mapped[str] = mapped_column(Plain, primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    file: Mapped[str] = mapped_column(Plain)
    sha256: Mapped[str] = mapped_column(Plain)
    bytes: Mapped[int] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(Plain)
    host: Mapped[str | None] = mapped_column(Plain)
    devices: Mapped[str] = mapped_column(Plain)
    profiler_version: Mapped[str | None] = mapped_column(Plain)
    start_utc_ns: Mapped[int | None] = mapped_column(BigInteger)
    analysis_version: Mapped[int]


class GpuRow(Base):
    """A GPU of a profile's node; the columns are those of `hpcprof.timeline.Gpu`."""

    __tablename__ = "gpus"

    run_id: Mapped[str] = mapped_column(Plain, primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    device: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(Plain)
    uuid: Mapped[str | None] = mapped_column(Plain)
    compute_capability: Mapped[str | None] = mapped_column(Plain)
    sm_count: Mapped[int | None] = mapped_column(BigInteger)
    clock_hz: Mapped[int | None] = mapped_column(BigInteger)
    memory_bytes: Mapped[int | None] = mapped_column(BigInteger)
    memory_bytes_per_s: Mapped[int | None] = mapped_column(BigInteger)


class FactRow(Base):
    """One more thing that a profile says; see `hpcprof.timeline.Fact`."""

    __tablename__ = "facts"

    run_id: Mapped[str] = mapped_column(Plain, primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str] = mapped_column(Plain, primary_key=True)
    name: Mapped[str] = mapped_column(Plain, primary_key=True)
    value: Mapped[str] = mapped_column(Plain)


class ReasonRow(Base):
    """Why an analysis has no rows, or a null in them."""

    __tablename__ = "reasons"

    run_id: Mapped[str] = mapped_column(Plain, primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    analysis: Mapped[str] = mapped_column(Plain, primary_key=True)
    reason: Mapped[str] = mapped_column(Plain)


def _analysis_table(analysis: Analysis) -> Table:
    keys: list[Column[Any]] = [Column("run_id", Plain, primary_key=True)]
    if analysis.scope is Scope.RANK:
        keys.append(Column("rank", Integer, primary_key=True, autoincrement=False))
    name = f"analysis_{analysis.name}"
    if analysis.packed:
        return Table(name, Base.metadata, *keys, Column("packed", LargeBinary, nullable=False))
    keys.append(Column("position", Integer, primary_key=True, autoincrement=False))
    named = {key.name for key in keys}
    values = [Column(c.name, TYPES[c.kind]()) for c in analysis.columns if c.name not in named]
    return Table(name, Base.metadata, *keys, *values)


PROFILE_ROWS = (ProfileRow, GpuRow, FactRow)
TABLES = {name: _analysis_table(analysis) for name, analysis in ANALYSES.items()}
RUN_TABLES = {name: table for name, table in TABLES.items() if ANALYSES[name].scope is Scope.RUN}
RANK_TABLES = {name: table for name, table in TABLES.items() if ANALYSES[name].scope is Scope.RANK}
