"""Results that come from a host: they replace those here, and must have the types of their columns."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from hpcprof.common.errors import DamagedInput, StoreError
from hpcprof.results.collect.host_collect import _copy_results
from hpcprof.results.store.analysis_version import ANALYSIS_VERSION
from hpcprof.results.store.store import Store, open_store
from hpcprof.runs.directory import Run

SHA256 = "ab" * 32
PROFILE = (
    "INSERT INTO profiles VALUES"
    f" ('one', 0, 'rank0.sqlite', '{SHA256}', 12, 'nsys', NULL, '0', '2025.3', 5, {ANALYSIS_VERSION}, '0.3')"
)
TOTALS = "INSERT INTO analysis_breakdown (run_id, rank, position, idle_pct) VALUES ('one', 0, 0, 12.5)"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The database of a host, with one rank of one run."""
    path = tmp_path / "collected.db"
    open_store(str(path), tmp_path).prepare()
    execute(path, "INSERT INTO runs (id, path, site, ranks) VALUES ('one', '/there', 'polaris', 1)")
    execute(path, PROFILE)
    execute(path, TOTALS)
    return path


def execute(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as database:
        database.execute(statement)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = open_store(str(tmp_path / "here.db"), tmp_path)
    made.prepare()
    return made


def test_the_results_of_a_run_are_copied_and_replace_earlier_ones(source: Path, store: Store) -> None:
    for _ in range(2):
        assert _copy_results(Run("one", Path("/here/one")), source, store)
    assert [(run.path, run.events) for run in store.runs()] == [("/here/one", "/here/one/timeline")]
    assert store.profiles("one")[0].bytes == 12
    assert store.table("one", "breakdown", ["idle_pct"]).columns == {"idle_pct": [12.5]}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE profiles SET bytes = 'many'",
        "UPDATE profiles SET file = x'00ff'",
        "UPDATE analysis_breakdown SET idle_pct = 'all'",
        "UPDATE analysis_breakdown SET idle_pct = x'00'",
    ],
)
def test_a_value_of_another_type_is_refused_and_nothing_is_written(
    change: str, source: Path, store: Store
) -> None:
    execute(source, change)
    with pytest.raises(DamagedInput, match="has a value of another type"):
        _copy_results(Run("one", Path("/here/one")), source, store)
    assert store.runs() == []


def test_what_is_no_database_is_a_sentence(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "collected.db"
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError):
        _copy_results(Run("one", Path("/here/one")), path, store)
