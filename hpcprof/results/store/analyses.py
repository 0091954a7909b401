"""The tables of analyses: writing, deleting and reading them.

Of those that are kept with the events (`Analysis.kept_with_events`), the database has the reasons alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, exists, or_, select

from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.results.analysis_table import WHOLE_RUN, AnalysisTable
from hpcprof.results.store.bulk import delete, insert_columns, insert_rows
from hpcprof.results.store.tables import (
    EXPLANATIONS,
    RANK_TABLES,
    REASONS,
    RUN_TABLES,
    TABLES,
    ReasonRow,
    plain,
)

if TYPE_CHECKING:  # numpy is not needed to report from the store
    from hpcprof.analysis.framework.outcome import Outcome

_BATCH = 10_000
"""The rows of an analysis over the ranks that are turned into Python's values at a time."""


def delete_rank_analyses(connection: Connection, run_id: str, rank: int) -> None:
    """Delete the analyses of one rank, with their reasons."""
    delete(connection, [REASONS, *RANK_TABLES.values()], {"run_id": plain(run_id), "rank": rank})


def delete_run_analyses(connection: Connection, run_id: str) -> None:
    """Delete the analyses that span the ranks of a run, with their reasons, and the explanation."""
    delete(connection, [EXPLANATIONS, *RUN_TABLES.values()], {"run_id": plain(run_id)})
    delete(connection, [REASONS], {"run_id": plain(run_id), "rank": WHOLE_RUN})


def delete_analysis(connection: Connection, run_id: str, name: str, rank: int = WHOLE_RUN) -> None:
    """Delete one analysis of a rank, or one that spans the ranks of a run, with its reason."""
    of_rank = {} if rank == WHOLE_RUN else {"rank": rank}
    delete(connection, [TABLES[name]], {"run_id": plain(run_id), **of_rank})
    delete(connection, [REASONS], {"run_id": plain(run_id), "rank": rank, "analysis": name})


def insert_analyses(
    connection: Connection, run_id: str, found: Mapping[int, Mapping[str, AnalysisTable]]
) -> None:
    """Insert the analyses of some ranks, or with `WHOLE_RUN` those that span the ranks.

    The rows of several ranks are inserted together: a statement costs more than a row.
    """
    for name in dict.fromkeys(name for tables in found.values() for name in tables if name in TABLES):
        tables = [one for of_rank in found.values() if (one := of_rank.get(name)) and one.count]
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


def insert_outcomes(connection: Connection, run_id: str, outcomes: Mapping[str, Outcome]) -> None:
    """Insert analyses that span the ranks, a batch of rows after the other."""
    for name, outcome in outcomes.items():
        position = 0
        for columns in outcome.batches(_BATCH):
            count = len(next(iter(columns.values())))
            _insert_rows(connection, run_id, name, columns, range(position, position + count))
            position += count
    reasons = [ReasonRow(run_id, WHOLE_RUN, name, one.reason) for name, one in outcomes.items() if one.reason]
    insert_rows(connection, REASONS, reasons)


def _insert_rows(
    connection: Connection,
    run_id: str,
    name: str,
    columns: Mapping[str, list[Any]],
    positions: Sequence[int],
) -> None:
    """Insert rows of an analysis; of each rank, positions count from 0."""
    keys: dict[str, list[Any]] = {"run_id": [run_id] * len(positions), "position": [*positions]}
    insert_columns(connection, TABLES[name], {**keys, **columns})


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


def read_columns(
    connection: Connection,
    run_id: str,
    name: str,
    ranks: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
) -> dict[str, list[Any]]:
    """Read the columns of an analysis of a run, ordered by rank and then as the analysis ordered its rows.

    ``ranks`` and ``columns`` choose some of them; by default all.
    """
    table = TABLES[name]
    wanted = [column.name for column in ANALYSES[name].columns] if columns is None else columns
    order = [column for column in table.primary_key if column.name != "run_id"]
    query = select(*(table.c[column] for column in wanted)).where(table.c.run_id == run_id)
    if ranks is not None:
        query = query.where(table.c.rank.in_(ranks))
    rows = _fetched(connection, query.order_by(*order))
    values = [list(of) for of in zip(*rows, strict=True)] or [[] for _ in wanted]
    return dict(zip(wanted, values, strict=True))


def ranks_with(connection: Connection, run_id: str, name: str) -> set[int]:
    """Return the ranks of which an analysis has rows or a reason."""
    rows = select(TABLES[name].c.rank).where(TABLES[name].c.run_id == run_id)
    reasons = select(REASONS.c.rank).where(REASONS.c.run_id == run_id, REASONS.c.analysis == name)
    return set(connection.execute(rows.union(reasons)).scalars())


def has_run_analyses(connection: Connection, run_id: str) -> bool:
    """Return whether the analyses that span the ranks are stored: each has rows or a reason."""
    rows = [exists().where(table.c.run_id == run_id) for table in RUN_TABLES.values()]
    reason = exists().where(REASONS.c.run_id == run_id, REASONS.c.rank == WHOLE_RUN)
    return bool(connection.execute(select(or_(reason, *rows))).scalar())
