"""SQL over events reads all ranks, and nothing else on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hpcprof.common.errors import UsageError
from hpcprof.profiles.timeline_parquet import RankEvents
from hpcprof.results.ask.event_query import EventFiles, asking, schema
from hpcprof.results.ask.query import Value
from tests.unit.analysis.timelines import COMM, COMP, timeline

Ask = Callable[..., list[tuple[Value, ...]]]


def keep(folder: Path, run: str, rank: int) -> tuple[RankEvents, dict[str, int]]:
    """Keep two kernels of a rank, the first of them in step 4."""
    events = RankEvents(folder, run, rank, "f00d")
    kept = timeline([(10 * rank, 10 * rank + 5, COMP, 1), (20, 26, COMM, 2)])
    events.write(kept, np.array([4, -1]))
    events.finish(kept, {})
    rows = events.rows()
    assert rows is not None
    return events, rows


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> EventFiles:
    """Two ranks of one run and one of another, in folders whose names mean something to DuckDB."""
    folder = tmp_path_factory.mktemp("runs")
    one, two = folder / "user=me/run [1]'s", folder / "other*"
    return EventFiles([keep(one, "a b=1", 0), keep(one, "a b=1", 3), keep(two, "20261122", 0)])


@pytest.fixture
def ask(found: EventFiles) -> Ask:
    """Execute SQL and return its rows."""

    def rows(sql: str, memory: str = "1GiB") -> list[tuple[Value, ...]]:
        with asking(sql, found, memory) as answer:
            return list(answer.rows)

    return rows


def test_all_ranks_of_all_runs_are_one_table(ask: Ask) -> None:
    assert ask("SELECT run, rank, count(*) FROM kernels GROUP BY ALL ORDER BY ALL") == [
        ("20261122", 0, 2),
        ("a b=1", 0, 2),
        ("a b=1", 3, 2),
    ]
    assert ask("SELECT start_ns, end_ns, category, step FROM kernels WHERE rank = 3 ORDER BY 1") == [
        (20, 26, "communication", None),
        (30, 35, "compute", 4),
    ]


def test_tables_without_rows_have_their_columns(ask: Ask, found: EventFiles) -> None:
    tables = {row[0] for row in schema().rows}
    assert {"kernels", "api", "ranges", "collectives", "steps", "memory_operations"} <= tables
    for table in tables:
        with asking(f"FROM {table}", found) as answer:
            names = answer.columns
        assert names == [row[1] for row in schema().rows if row[0] == table]
    assert ask("SELECT sum(exposed_ns) FROM collectives") == [(None,)]


def test_columns_of_the_same_name_are_told_apart(found: EventFiles) -> None:
    with asking("SELECT 1 AS a, 2 AS a", found) as answer:
        assert answer.columns == ["a", "a_2"]


@pytest.mark.parametrize(
    "sql",
    [
        "FROM read_text('{folder}/secret')",
        "FROM read_csv('{folder}/secret')",
        "FROM read_blob('{folder}/*')",
        "FROM glob('{folder}/*')",
        "FROM '{folder}/secret'",
        "FROM parquet_metadata('{folder}/other.parquet')",
        "FROM query('COPY kernels TO ''{folder}/written''')",
        "FROM enable_logging(storage := 'file', storage_path := '{folder}/written')",
        "COPY kernels TO '{folder}/written'",
        "EXPLAIN ANALYZE COPY kernels TO '{folder}/written'",
        "EXPORT DATABASE '{folder}/written'",
        "ATTACH '{folder}/written'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CREATE TABLE t AS SELECT 1",
        "SET enable_external_access = true",
        "SET memory_limit = '900GB'",
        "RESET lock_configuration",
        "PRAGMA database_list",
        "SELECT 1; COPY kernels TO '{folder}/written'",
        "FROM found",
        "",
    ],
)
def test_nothing_else_is_read_written_or_changed(ask: Ask, tmp_path: Path, sql: str) -> None:
    (tmp_path / "secret").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError) as refused:
        print(ask(sql.format(folder=tmp_path)))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "written").exists()


def test_the_files_of_the_events_are_not_changed(found: EventFiles, ask: Ask) -> None:
    path = found.files[0][0].path("kernels")
    before = path.read_bytes()
    with pytest.raises(UsageError):
        ask(f"COPY (SELECT 1) TO '{path}'")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("FROM kernel", 'Table with name kernel does not exist; did you mean "kernels"'),
        ("FROM '/etc/passwd'", "Table with name /etc/passwd does not exist"),
        ("FROM read_text('/etc/passwd')", "hpcprof query --events reads nothing but the events of its runs"),
        ("DROP VIEW kernels", "hpcprof query --events takes one SELECT: it only reads."),
        ("SELECT CAST(category AS INT) FROM kernels", "Could not convert string"),
    ],
)
def test_a_mistake_is_one_sentence(ask: Ask, sql: str, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        ask(sql)
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


def test_memory_is_limited_and_what_does_not_fit_goes_to_a_folder_that_disappears(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    assert ask("SELECT current_setting('memory_limit')", "64MiB") == [("64.0 MiB",)]
    # The sorted rows take 16 MB and more.
    sql = "SELECT max(n) FROM (SELECT row_number() OVER (ORDER BY hash(i)) AS n FROM range(2000000) t(i))"
    assert ask(sql, "32MiB") == [(2_000_000,)]
    with pytest.raises(UsageError, match="more with --memory"):
        ask("SELECT length(string_agg(hash(i)::TEXT, '')) FROM range(2000000) t(i)", "16MiB")
    assert not list((tmp_path / "scratch").iterdir())


def test_values_are_those_of_json(ask: Ask) -> None:
    assert ask("SELECT 1.5::DECIMAL(9,2), 7::HUGEINT, 0.0 / 0.0, DATE '2026-11-22', [1, 2]") == [
        (1.5, 7, None, "2026-11-22", "[1, 2]")
    ]


def test_another_duckdb_or_none_is_a_sentence(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duckdb.__version__", "1.4.5")
    with pytest.raises(UsageError, match=r"DuckDB 2.0 or later, and 1.4.5 is installed: pip install"):
        ask("SELECT 1")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(UsageError, match=r"and it is not installed: pip install 'hpcprof\[events\]'"):
        ask("SELECT 1")
