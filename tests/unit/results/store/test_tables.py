"""The tables of a results database, and their version."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from hpcprof.analysis.framework.outcome import WHOLE_RUN
from hpcprof.results.store.store import open_store
from hpcprof.results.store.tables import METADATA, SCHEMA_VERSION, RunRow

_DIGEST = "6cdb3406782a5765"
"""The digest of the names of all tables and columns of the version in the test."""


def test_tables_of_other_columns_have_another_version() -> None:
    names = sorted(
        f"{table.name}.{column.name}" for table in METADATA.tables.values() for column in table.columns
    )
    digest = sha256("\n".join(names).encode()).hexdigest()[:16]
    # Else a store that an earlier state wrote is read without its migration, and lacks a column.
    assert (SCHEMA_VERSION, digest) == (22, _DIGEST), "raise SCHEMA_VERSION, and change both values here"


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (["DROP COLUMN late_rank", "DROP COLUMN wait_s"], ""),
        (
            ["RENAME COLUMN opens TO older"],
            "collected by an earlier version of hpcprof: run hpcprof collect /logs",
        ),
    ],
)
def test_logs_of_a_run_without_profiles_are_kept_or_said_to_be_of_an_earlier_version(
    tmp_path: Path, statements: Sequence[str], why: str
) -> None:
    store = open_store(None, tmp_path)
    store.prepare()
    store.describe_run(RunRow(id="logs", path="/logs"))
    with closing(sqlite3.connect(store.url.database or "")) as connection, connection:
        connection.execute("INSERT INTO analysis_darshan_files (run_id, position) VALUES ('logs', 0)")
        for statement in statements:
            connection.execute(f"ALTER TABLE analysis_darshan_files {statement}")
        connection.execute("UPDATE hpcprof_schema SET version = 21")
    migrated = open_store(None, tmp_path)
    migrated.prepare()
    table = migrated.table("logs", "darshan_files")
    assert (table.count, table.reasons) == ((0, {WHOLE_RUN: why}) if why else (1, {}))
