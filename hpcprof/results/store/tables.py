"""The tables of the results database: their columns, types and versions."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Column, Dialect, Double, Integer, MetaData, Table, Text, TypeDecorator
from sqlalchemy.types import TypeEngine

from hpcprof.analysis.framework.declaration import Analysis, Kind, Policy, Scope
from hpcprof.analysis.framework.registry import ANALYSES

SCHEMA_VERSION = 22
"""Raised whenever these tables change: a store of an earlier version is migrated, one of a newer refused."""


def storable_text(text: str | None) -> str | None:
    r"""Return a text without zero bytes and lone surrogates, which a database cannot hold.

    Lone surrogates come from file names that are not UTF-8; they are written as ``\udcff``.
    """
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return text.replace("\0", "").encode("utf-8", "backslashreplace").decode("utf-8")


def storable_number(value: float | None) -> float | None:
    """Return a finite number, or None: SQLite stores NaN as null, and an infinity is not a measurement."""
    return value if value is not None and math.isfinite(value) else None


class Plain(TypeDecorator[str]):
    """Text, passed through `storable_text`."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return the text that is stored."""
        return storable_text(value)


class Finite(TypeDecorator[float]):
    """A number, passed through `storable_number`."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        """Return the number that is stored."""
        return storable_number(value)


TYPES: dict[Kind, TypeEngine[Any]] = {Kind.INT: BigInteger(), Kind.FLOAT: Finite(), Kind.TEXT: Plain()}
"""The types of the columns of an analysis."""

METADATA = MetaData()
"""All tables of the database."""

Int64 = int
"""Annotates a field of a row whose column holds 64 bits."""

_FIELDS: dict[str, type[TypeEngine[Any]]] = {"str": Plain, "int": Integer, "Int64": BigInteger}


class RunRow(msgspec.Struct, frozen=True):
    """One collected run.

    ``program`` is as a collect was given it, else as the job has it. ``events`` is the folder of the dataset
    with its events. ``sampled`` says which samples of its nodes are in the store, where it has no profile.
    """

    id: str
    path: str
    site: str | None = None
    workload: str | None = None
    ranks: int | None = None
    program: str | None = None
    events: str | None = None
    sampled: str | None = None


class ProfileRow(msgspec.Struct, frozen=True):
    """One rank's profile: the file and its origin."""

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
    made_by: str | None = None
    """The version of hpcprof that computed the figures; None if that was before 0.2."""


class GpuRow(msgspec.Struct, frozen=True):
    """A GPU of a profile's node, with the fields of `hpcprof.profiles.timeline.Gpu`."""

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
    """One more fact that a profile records; see `hpcprof.profiles.timeline.Fact`."""

    run_id: str
    rank: int
    kind: str
    name: str
    value: str


class LossRow(msgspec.Struct, frozen=True):
    """A loss of a profile, with the fields of `hpcprof.profiles.losses.Loss`; ``total`` is its ``of``."""

    run_id: str
    rank: int
    position: int
    kind: str
    subject: str
    count: Int64
    total: Int64 | None
    detail: str


class ReasonRow(msgspec.Struct, frozen=True):
    """The reason why an analysis has no rows, or nulls in its rows."""

    run_id: str
    rank: int
    analysis: str
    reason: str


class ExplanationRow(msgspec.Struct, frozen=True):
    """The explanation of a run, in JSON, and the version of the analyses that it was computed with."""

    run_id: str
    analysis_version: int
    explanation: str


class BaselineRow(msgspec.Struct, frozen=True):
    """One of the runs that a named baseline consists of; ``created`` is when it was set, in UTC.

    ``path`` finds a run that was not collected, but has results of its workload.
    """

    name: str
    position: int
    run_id: str
    path: str
    created: str


class PushedRow(msgspec.Struct, frozen=True):
    """A run that was pushed to a hub.

    ``who`` is the name of the token, ``pushed`` the time in UTC; ``sha256`` and ``bytes`` are of the package.
    ``listed`` is what a list shows of the run, in JSON. ``tags`` has words and ``note`` a text of the team's.
    """

    run_id: str
    who: str
    pushed: str
    sha256: str
    bytes: Int64
    listed: str
    tags: str = ""
    note: str = ""


def _row_table(name: str, row: type[msgspec.Struct], keys: int) -> Table:
    """Return the table whose columns are the fields of ``row``; the first ``keys`` of them are its key."""
    table = Table(name, METADATA)
    for field, annotation in row.__annotations__.items():
        kind, _, null = annotation.partition(" | ")
        key = len(table.columns) < keys
        table.append_column(
            Column(field, _FIELDS[kind], primary_key=key, autoincrement=False, nullable=bool(null))
        )
    return table


def _analysis_table(analysis: Analysis) -> Table:
    keys = ["run_id", *(["rank"] if analysis.scope is Scope.RANK else []), "position"]
    columns: list[Column[Any]] = [
        Column(key, Plain if key == "run_id" else Integer, primary_key=True, autoincrement=False)
        for key in keys
    ]
    columns += [Column(c.name, TYPES[c.kind]) for c in analysis.columns if c.name not in keys]
    return Table(f"analysis_{analysis.name}", METADATA, *columns)


SCHEMA = Table("hpcprof_schema", METADATA, Column("version", Integer, primary_key=True, autoincrement=False))
"""Holds `SCHEMA_VERSION` in its only row."""

RUNS = _row_table("runs", RunRow, keys=1)
PROFILES = _row_table("profiles", ProfileRow, keys=2)
GPUS = _row_table("gpus", GpuRow, keys=3)
FACTS = _row_table("facts", FactRow, keys=4)
LOSSES = _row_table("losses", LossRow, keys=3)
REASONS = _row_table("reasons", ReasonRow, keys=3)
EXPLANATIONS = _row_table("explanations", ExplanationRow, keys=1)
BASELINES = _row_table("baselines", BaselineRow, keys=2)
PUSHED = _row_table("pushed", PushedRow, keys=1)
TABLES = {
    name: _analysis_table(item) for name, item in ANALYSES.items() if item.policy is not Policy.WITH_EVENTS
}
RUN_TABLES = {name: table for name, table in TABLES.items() if ANALYSES[name].scope is Scope.RUN}
RANK_TABLES = {name: table for name, table in TABLES.items() if ANALYSES[name].scope is Scope.RANK}


class TableOfRuns(msgspec.Struct, frozen=True):
    """A table whose rows belong to runs, and its column with the id of the run."""

    table: Table
    run: str = "run_id"


TABLES_OF_RUNS = {
    "runs": TableOfRuns(RUNS, "id"),
    **{item.name: TableOfRuns(item) for item in (PROFILES, GPUS, FACTS, LOSSES, REASONS, EXPLANATIONS)},
    **{name: TableOfRuns(table) for name, table in TABLES.items()},
}
"""The tables whose rows belong to runs, by name; tables of analyses by the name of the analysis."""
