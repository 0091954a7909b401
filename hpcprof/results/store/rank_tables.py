"""The analyses of ranks whose rows are kept with the events, in Parquet (`Policy.WITH_EVENTS`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hpcprof.analysis.framework.declaration import Analysis, Policy, Scope
from hpcprof.analysis.framework.outcome import arrow_schema
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import StoreError

if TYPE_CHECKING:
    from hpcprof.profiles.timeline_parquet import RankEvents

ANALYSES_WITH_EVENTS: dict[str, Analysis] = {
    name: analysis
    for name, analysis in ANALYSES.items()
    if analysis.policy is Policy.WITH_EVENTS and analysis.scope is Scope.RANK
}
"""The analyses of one rank whose rows are kept with the events, by name."""


MPI_TABLES = ("mpi_call_list", "mpi_operation_list")
"""The tables of calls of MPI, and of the messages and collectives that begin in them."""


def has_mpi(events: RankEvents, table: str = MPI_TABLES[0]) -> bool:
    """Return whether a rank has MPI calls, or rows of another table of `MPI_TABLES`.

    Files of earlier versions have none of these tables.
    """
    return bool(events.written_rows().get(dataset_table(table)))


def dataset_table(analysis: str) -> str:
    """Return the name that the table of an analysis has in the dataset and in SQL."""
    return analysis.removeprefix("rank_")


def analysis_schema(analysis: Analysis, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the columns of a table, by default all; the folders of the dataset hold the rank."""
    chosen = (column for column in analysis.columns if columns is None or column.name in columns)
    return arrow_schema(column for column in chosen if column.name != "rank")


def kept_table(
    events: Iterable[RankEvents],
    name: str,
    columns: Sequence[str] | None = None,
    lost: dict[int, StoreError] | None = None,
) -> pa.Table:
    """Read the rows of some ranks, with the column ``rank`` first; ``columns`` chooses some of the others.

    Raises StoreError if the rows of a rank are gone; with ``lost``, that error is put there by rank instead.
    """
    schema = analysis_schema(ANALYSES_WITH_EVENTS[name], columns)
    tables = {}
    for event in events:
        rows = event.table(dataset_table(name), schema)
        if rows is not None:
            tables[event.rank] = rows
            continue
        error = StoreError(
            f"the rows of {name} of rank {event.rank} of {event.run_id} are not in {event.folder}: collect "
            "the run again."
        )
        if lost is None:
            raise error
        lost[event.rank] = error
    whole = pa.concat_tables(tables.values()) if tables else schema.empty_table()
    ranks = np.repeat(np.array([*tables], np.int64), [len(rows) for rows in tables.values()])
    return whole.add_column(0, "rank", pa.array(ranks, pa.int64()))
