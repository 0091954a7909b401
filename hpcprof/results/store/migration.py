"""Brings the tables of an earlier version up to date, in place.

What an analysis stored stays where its columns are still the same. A table whose columns have changed is made
anew: its rows come back with the next collect, and until then a reason says so.
"""

from __future__ import annotations

from sqlalchemy import Connection, inspect, select
from sqlalchemy.schema import CreateTable, DropTable

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.results.analysis_table import WHOLE_RUN
from hpcprof.results.store.bulk import insert_rows
from hpcprof.results.store.tables import (
    METADATA,
    PROFILES,
    REASONS,
    RUNS,
    SCHEMA,
    SCHEMA_VERSION,
    TABLES,
    ReasonRow,
)

_MADE_BY = {11: "0.2.0"}
"""The version of hpcprof that wrote tables of a version, before each profile recorded it."""

_RECORDS = {table.name: table for table in METADATA.sorted_tables if table not in TABLES.values()}
"""The tables that describe runs and profiles, which are kept."""


def migrate(connection: Connection) -> None:
    """Change the tables of an earlier version to those of this one, within the caller's transaction."""
    made_anew = [name for name, table in TABLES.items() if _has_changed(connection, table.name)]
    present = set(inspect(connection).get_table_names())
    for name in made_anew:
        if TABLES[name].name in present:
            connection.execute(DropTable(TABLES[name]))
        connection.execute(CreateTable(TABLES[name]))
    for name, table in _RECORDS.items():
        if name not in present:
            connection.execute(CreateTable(table))
            continue
        known = _columns(connection, name)
        for column in table.columns:
            if column.name not in known:
                kind = column.type.compile(connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {column.name} {kind}")
    found = connection.execute(select(SCHEMA.c.version)).scalar_one()
    unknown = PROFILES.c.made_by.is_(None)
    connection.execute(PROFILES.update().where(unknown).values(made_by=_MADE_BY.get(found)))
    if made_anew:
        _tell(connection, made_anew)
        # The next collect reads the profiles again, though their other figures are up to date.
        connection.execute(PROFILES.update().values(analysis_version=0))
    connection.execute(SCHEMA.update().values(version=SCHEMA_VERSION))


def _has_changed(connection: Connection, table: str) -> bool:
    """Return whether a table of an analysis is missing or has other columns than those of this version."""
    columns = [column.name for column in METADATA.tables[table].columns]
    return not inspect(connection).has_table(table) or _columns(connection, table) != set(columns)


def _columns(connection: Connection, table: str) -> set[str]:
    return {column["name"] for column in inspect(connection).get_columns(table)}


def _tell(connection: Connection, analyses: list[str]) -> None:
    """Give every run and rank a reason why these analyses have no rows."""
    connection.execute(REASONS.delete().where(REASONS.c.analysis.in_(analyses)))
    paths = dict(connection.execute(select(RUNS.c.id, RUNS.c.path)).all())
    reasons = []
    for run_id, rank in connection.execute(select(PROFILES.c.run_id, PROFILES.c.rank)).all():
        sentence = (
            f"collected by an earlier version of hpcprof: run hpcprof collect {paths.get(run_id, run_id)}"
        )
        for name in analyses:
            about = rank if ANALYSES[name].scope is Scope.RANK else WHOLE_RUN
            reasons.append(ReasonRow(run_id, about, name, sentence))
    # Every rank of a run gives the same reason for what spans the ranks.
    insert_rows(connection, REASONS, list(dict.fromkeys(reasons)))
