"""The tables of analyses: writing, deleting and reading them.

Most have a row for each row of the analysis. A packed analysis (``Analysis.packed``) has one row per rank
that holds all columns in MessagePack: of `rank_collectives`, tens of thousands of rows a rank, nobody asks
for single ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, exists, or_, select

from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.results.analysis_table import WHOLE_RUN, AnalysisTable, Batches
from hpcprof.results.store.bulk import delete, insert_columns, insert_rows, storable
from hpcprof.results.store.tables import (
    EXPLANATIONS,
    RANK_TABLES,
    REASONS,
    RUN_TABLES,
    TABLES,
    TYPES,
    ReasonRow,
    plain,
)

_BATCH = 10_000
"""How many rows of an analysis that spans the ranks are turned into Python's values at a time."""


@dataclass(frozen=True)
class PackedTable:
    """The rows of a packed analysis as the store keeps them; empty without rows."""

    packed: bytes
    reasons: Mapping[int, str]


Stored = AnalysisTable | PackedTable
"""An analysis that can be inserted."""


def pack_tables(tables: Mapping[str, AnalysisTable]) -> dict[str, Stored]:
    """Encode the packed ones of some analyses.

    Where many processes analyze ranks, each does this for its own: the one that stores them all has enough
    to do.
    """
    return {name: _as_stored(name, table) for name, table in tables.items()}


def _as_stored(name: str, table: Stored) -> Stored:
    if isinstance(table, PackedTable) or not ANALYSES[name].packed:
        return table
    return PackedTable(_packed(name, table.columns) if table.count else b"", table.reasons)


def delete_rank_analyses(connection: Connection, run_id: str, rank: int) -> None:
    """Delete the analyses of one rank, with their reasons."""
    delete(connection, [REASONS, *RANK_TABLES.values()], {"run_id": plain(run_id), "rank": rank})


def delete_run_analyses(connection: Connection, run_id: str) -> None:
    """Delete the analyses that span the ranks of a run, with their reasons, and the explanation."""
    delete(connection, [EXPLANATIONS, *RUN_TABLES.values()], {"run_id": plain(run_id)})
    delete(connection, [REASONS], {"run_id": plain(run_id), "rank": WHOLE_RUN})


def delete_run_analysis(connection: Connection, run_id: str, name: str) -> None:
    """Delete one analysis that spans the ranks of a run, with its reason."""
    delete(connection, [RUN_TABLES[name]], {"run_id": plain(run_id)})
    delete(connection, [REASONS], {"run_id": plain(run_id), "rank": WHOLE_RUN, "analysis": name})


def insert_analyses(connection: Connection, run_id: str, found: Mapping[int, Mapping[str, Stored]]) -> None:
    """Insert the analyses of some ranks, or with `WHOLE_RUN` those that span the ranks.

    The rows of several ranks are inserted together: a statement costs more than a row.
    """
    for name in dict.fromkeys(name for tables in found.values() for name in tables):
        of_ranks = {
            rank: _as_stored(name, of_rank[name]) for rank, of_rank in found.items() if name in of_rank
        }
        packed = {rank: one.packed for rank, one in of_ranks.items() if isinstance(one, PackedTable)}
        _insert_packed(connection, run_id, name, packed)
        tables = [one for one in of_ranks.values() if isinstance(one, AnalysisTable) and one.count]
        if tables:
            columns = {
                key: [*chain.from_iterable(one.columns[key] for one in tables)] for key in tables[0].columns
            }
            positions = [*chain.from_iterable(range(one.count) for one in tables)]
            _insert_rows(connection, run_id, name, columns, positions)
    reasons = [
        ReasonRow(run_id, about, name, reason)
        for tables in found.values()
        for name, table in tables.items()
        for about, reason in table.reasons.items()
    ]
    insert_rows(connection, REASONS, reasons)


def insert_outcomes(connection: Connection, run_id: str, outcomes: Mapping[str, Batches]) -> None:
    """Insert analyses that span the ranks, a batch of rows after the other."""
    for name, outcome in outcomes.items():
        position = 0
        for columns in outcome.batches(_BATCH):
            count = len(next(iter(columns.values())))
            _insert_rows(connection, run_id, name, columns, range(position, position + count))
            position += count
    reasons = [ReasonRow(run_id, WHOLE_RUN, name, one.reason) for name, one in outcomes.items() if one.reason]
    insert_rows(connection, REASONS, reasons)


def _insert_packed(connection: Connection, run_id: str, name: str, packed: Mapping[int, bytes]) -> None:
    """Insert the rows of a packed analysis of each rank that has some."""
    filled = {rank: rows for rank, rows in packed.items() if rows}
    if filled:
        keys: dict[str, list[Any]] = {"run_id": [run_id] * len(filled), "rank": [*filled]}
        insert_columns(connection, TABLES[name], {**keys, "packed": [*filled.values()]})


def _insert_rows(
    connection: Connection,
    run_id: str,
    name: str,
    columns: Mapping[str, list[Any]],
    positions: Sequence[int],
) -> None:
    """Insert rows of an analysis that is not packed; of each rank, positions count from 0."""
    keys: dict[str, list[Any]] = {"run_id": [run_id] * len(positions), "position": [*positions]}
    insert_columns(connection, TABLES[name], {**keys, **columns})


def read_columns(connection: Connection, run_id: str, name: str) -> dict[str, list[Any]]:
    """Read the columns of an analysis of a run, ordered by rank and then as the analysis ordered its rows."""
    columns: dict[str, list[Any]] = {column.name: [] for column in ANALYSES[name].columns}
    for part in read_parts(connection, run_id, name):
        for column, values in part.items():
            columns[column] += values
    return columns


def read_reasons(connection: Connection, run_id: str, name: str) -> dict[int, str]:
    """Read why rows or values of an analysis are missing, by rank."""
    reasons = select(REASONS.c.rank, REASONS.c.reason).where(
        REASONS.c.run_id == run_id, REASONS.c.analysis == name
    )
    return dict(connection.execute(reasons.order_by(REASONS.c.rank)).all())


def read_all_reasons(connection: Connection, run_id: str) -> dict[str, dict[int, str]]:
    """Read the reasons of all analyses of a run at once: a search for one passes over those of all."""
    query = select(REASONS.c.analysis, REASONS.c.rank, REASONS.c.reason).where(REASONS.c.run_id == run_id)
    found: dict[str, dict[int, str]] = {}
    for name, rank, reason in _fetched(connection, query.order_by(REASONS.c.rank)):
        found.setdefault(name, {})[rank] = reason
    return found


def _fetched(connection: Connection, query: Select[Any]) -> list[tuple[Any, ...]]:
    """Return rows as the driver has them: no column is converted, and SQLAlchemy's rows take longer."""
    cursor = connection.execute(query).cursor
    assert cursor is not None
    return list(cursor.fetchall())


def read_parts(
    connection: Connection,
    run_id: str,
    name: str,
    ranks: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[dict[str, list[Any]]]:
    """Yield the columns of an analysis in the order of its rows: rank by rank if it is packed.

    ``ranks`` and ``columns`` choose some of them; by default all.
    """
    table, packed = TABLES[name], ANALYSES[name].packed
    names = [column.name for column in ANALYSES[name].columns]
    wanted = names if columns is None else columns
    order = [column for column in table.primary_key if column.name != "run_id"]
    query = select(*([table.c.packed] if packed else (table.c[column] for column in wanted)))
    if ranks is not None:
        query = query.where(table.c.rank.in_(ranks))
    query = query.where(table.c.run_id == run_id).order_by(*order)
    if not packed:
        values = list(zip(*_fetched(connection, query), strict=True))
        if values:
            yield {column: list(of) for column, of in zip(wanted, values, strict=True)}
        return
    for (row,) in connection.execute(query):
        written = msgspec.msgpack.decode(row)
        # An earlier version packed fewer columns: the newer ones come last.
        written += [[None] * len(written[0])] * (len(names) - len(written))
        of_rank = dict(zip(names, written, strict=True))
        yield {column: of_rank[column] for column in wanted}


def has_run_analyses(connection: Connection, run_id: str) -> bool:
    """Whether the analyses that span the ranks are stored: each has rows or a reason."""
    rows = [exists().where(table.c.run_id == run_id) for table in RUN_TABLES.values()]
    reason = exists().where(REASONS.c.run_id == run_id, REASONS.c.rank == WHOLE_RUN)
    return bool(connection.execute(select(or_(reason, *rows))).scalar())


def _packed(name: str, columns: Mapping[str, list[Any]]) -> bytes:
    """Encode the columns of an analysis, in the order of its declaration."""
    declared = ANALYSES[name].columns
    return msgspec.msgpack.encode([storable(columns[column.name], TYPES[column.kind]) for column in declared])
