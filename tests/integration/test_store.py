"""The store on SQLite and on a real PostgreSQL: one body of tests, through the command line where it can."""

from __future__ import annotations

import json
import math
import multiprocessing
import secrets
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.framework.outcome import WHOLE_RUN, AnalysisTable, Outcome, columns_of, empty_table
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.errors import StoreError, UsageError
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.timeline import Fact, Gpu
from hpcprof.profiles.timeline_parquet import RankEvents
from hpcprof.results.ask.query import query as hpcprof_query
from hpcprof.results.collect.kept_events import finish
from hpcprof.results.store.rank_tables import ANALYSES_WITH_EVENTS
from hpcprof.results.store.store import RankResults, Store, open_store
from hpcprof.results.store.tables import BaselineRow, ProfileRow, RunRow
from tests.command_server import CommandServer
from tests.conftest import Hpcprof
from tests.integration.conftest import Database, on_sqlite, unpack
from tests.unit.analysis.timelines import timeline

AS_JSON = ("--format", "json")

KILLED = "tests.integration.killed_command"
NewDatabase = Callable[[], Database]


def opened(database: Database) -> Store:
    store = open_store(database.url, Path())
    store.prepare()
    return store


def profile(rank: int = 0, sha256: str = "0" * 64) -> ProfileRow:
    return ProfileRow("run", rank, "f", sha256, 1, "nsys", None, "", None, None, analysis_version=1)


def kernel(**values: object) -> dict[str, object]:
    numbers = dict.fromkeys(("instances", "total_ns", "min_ns", "max_ns"), 1)
    floats = dict.fromkeys(("time_pct", "avg_ns", "med_ns", "stddev_ns"), 1.0)
    return {"rank": 0, "name": "k", **numbers, **floats, "class": "comp", **values}


def table(rows: list[dict[str, object]], reason: str = "", rank: int = 0) -> AnalysisTable:
    return AnalysisTable(columns_of(rows), {rank: reason} if reason else {})


def absent(analysis: str, reason: str) -> AnalysisTable:
    return empty_table(ANALYSES[analysis], {WHOLE_RUN: reason})


@pytest.fixture
def filled(database: Database) -> Database:
    """A database with one row of one analysis."""
    run = RunRow(id="run", path="/run")
    opened(database).put_profiles(run, [RankResults(profile(), {"kernels": table([kernel()])})])
    return database


def test_a_collect_repeated_changes_nothing_and_a_changed_profile_replaces_what_was_there(
    hpcprof: Hpcprof, profiles: Path, database: Database
) -> None:
    assert "2 profiles collected" in hpcprof("collect", str(profiles)).stdout
    reference = database.dump()
    assert "0 profiles collected, 2 unchanged" in hpcprof("collect", str(profiles)).stdout
    assert database.dump() == reference
    whole = (profiles / "rank1.sqlite").read_bytes()
    with sqlite3.connect(profiles / "rank1.sqlite") as export:
        export.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid > 100")
    assert "1 profile collected, 1 unchanged" in hpcprof("collect", str(profiles)).stdout
    kernels = hpcprof("query", "SELECT sum(instances) AS n FROM analysis_kernels WHERE rank = 1", *AS_JSON)
    assert json.loads(kernels.stdout) == [{"n": 100}]
    (profiles / "rank1.sqlite").write_bytes(whole)
    hpcprof("collect", str(profiles))
    assert database.dump() == reference
    report = hpcprof("report", str(profiles))
    assert report.returncode == 0, report.stderr
    assert "matmul_1" in report.stdout


@pytest.mark.parametrize("new_database", ["PostgreSQL"], indirect=True)
def test_both_kinds_of_database_hold_the_same(
    hpcprof: Hpcprof, profiles: Path, database: Database, tmp_path: Path
) -> None:
    hpcprof("collect", str(profiles))
    other = Database(str(tmp_path / "other.db"))
    hpcprof("collect", str(profiles), "--db", other.url)
    assert database.dump() == other.dump()
    assert any("analysis_kernels" in row for row in database.dump())


@pytest.mark.slow
def test_a_collect_that_is_killed_at_any_moment_and_run_again_leaves_the_same_store(
    hpcprof: Hpcprof,
    command_server: CommandServer,
    profiles: Path,
    database: Database,
    new_database: NewDatabase,
) -> None:
    def collect(step: int, into: Database) -> subprocess.CompletedProcess[str]:
        words = [str(step), "collect", "--jobs", "1", str(profiles), "--db", into.url]
        return command_server.run(words, profiles.parent, 480, KILLED)

    steps = int(collect(0, database).stderr.split()[-1])
    reference = database.dump()
    unlike = 0
    for step in range(1, steps + 1, steps // 4):
        other = new_database()
        assert collect(step, other).returncode == -signal.SIGKILL
        unlike += other.dump() != reference
        assert hpcprof("collect", "--jobs", "1", str(profiles), "--db", other.url).returncode == 0
        assert other.dump() == reference
    assert unlike > 2


@pytest.mark.slow
def test_processes_that_collect_the_same_and_other_runs_at_once_leave_what_one_after_another_leave(
    hpcprof: Hpcprof, database: Database, new_database: NewDatabase, tmp_path: Path
) -> None:
    runs = [str(unpack(tmp_path / name)) for name in ("one", "two")]
    # The first to come makes the tables, and all come at once.
    shares = [runs, runs[::-1], runs[1:]]
    with ThreadPoolExecutor(len(shares)) as threads:
        done = [*threads.map(lambda share: hpcprof("collect", "--jobs", "1", *share), shares)]
    assert [one.returncode for one in done] == [0] * len(shares), [one.stderr for one in done]
    alone = new_database()
    for run in runs:
        hpcprof("collect", run, "--db", alone.url)
    assert database.dump() == alone.dump()
    assert sum("analysis_steps_summary" in row for row in database.dump()) == len(runs)


@pytest.mark.slow
def test_two_processes_may_make_the_tables_at_once(database: Database) -> None:
    forked = multiprocessing.get_context("fork")
    ready = forked.Barrier(6)

    def prepare() -> None:
        store = open_store(database.url, Path())
        ready.wait()
        store.prepare()
        store.prepare()

    processes = [forked.Process(target=prepare) for _ in range(ready.parties)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(480)
    assert [process.exitcode for process in processes] == [0] * len(processes)
    assert opened(database).exists()


def test_results_over_ranks_that_another_collect_has_overtaken_are_not_written(database: Database) -> None:
    store = opened(database)
    run = RunRow(id="run", path="/run")
    store.put_profiles(run, [RankResults(profile(0, "a" * 64), {})])
    old = {0: "a" * 64}
    store.put_profiles(run, [RankResults(profile(1, "b" * 64), {})])
    before = database.dump()
    assert not store.put_run("run", {"steps": absent("steps", "computed of one rank")}, old)
    assert database.dump() == before
    assert store.put_run("run", {"steps": absent("steps", "computed of two")}, {**old, 1: "b" * 64})
    assert store.table("run", "steps").reasons == {-1: "computed of two"}


@on_sqlite
def test_an_explanation_is_kept_until_a_profile_of_the_run_changes(
    hpcprof: Hpcprof, profiles: Path, database: Database
) -> None:
    assert hpcprof("collect", str(profiles)).returncode == 0
    store = opened(database)
    (run,) = store.runs()
    collected = database.dump()
    assert store.table(run.id, "critical_path").reasons == {-1: "hpcprof explain computes it"}
    row = {"rank": 0, "kind": "host", "name": "x", "range": None, "ns_per_step": 7, "share_pct": 50.0}
    sha256 = {rank: of_rank.sha256 for rank, of_rank in store.profiles(run.id).items()}
    for text in ("{}", '{"findings": []}'):
        assert store.put_analyses(run.id, WHOLE_RUN, {"critical_path": table([row])}, sha256, text)
        kept = store.explanation(run.id)
        assert kept is not None and kept.explanation == text
    assert (store.table(run.id, "critical_path").rows, store.table(run.id, "critical_path").reasons) == (
        [row],
        {},
    )
    with_it = database.dump()
    assert "0 profiles collected, 2 unchanged" in hpcprof("collect", str(profiles)).stdout
    assert not store.put_analyses(
        run.id, WHOLE_RUN, {"critical_path": table([])}, {**sha256, 1: "0" * 64}, "late"
    )
    assert database.dump() == with_it
    database.execute("UPDATE profiles SET analysis_version = 0 WHERE rank = 1")
    assert "1 profile collected, 1 unchanged" in hpcprof("collect", str(profiles)).stdout
    assert store.explanation(run.id) is None
    assert database.dump() == collected
    assert store.put_analyses(run.id, WHOLE_RUN, {"critical_path": table([row])}, sha256, "{}")
    store.delete_run(run.id)
    assert not [line for line in database.dump() if run.id in line]


def test_any_text_of_a_profile_can_be_stored(database: Database) -> None:
    store = opened(database)
    for number, (name, stored) in enumerate(
        (
            ("zero\0byte", "zerobyte"),
            ("half \ud800 of a pair", "half \\ud800 of a pair"),
            *((text, text) for text in ("naïve 内核 🚀 </script> ' \" ; --", "%s %(a)s :b ? $1", "")),
        )
    ):
        run = f"run{number}"
        row = msgspec.structs.replace(profile(), run_id=run, host=name, file=name)
        tables = {"kernels": table([kernel(name=name)], f"why {name}")}
        gpus, facts = [Gpu(0, name, name)], [Fact("environment", name, name)]
        store.put_profiles(RunRow(id=run, path=f"/{name}"), [RankResults(row, tables, gpus, facts)])
        found = store.table(run, "kernels")
        assert [r["name"] for r in found.rows] == [stored]
        assert found.reasons == {0: f"why {stored}"}
        assert store.profiles(run)[0].host == stored


def test_losses_are_stored_with_their_profile_and_shown_with_what_they_touch(database: Database) -> None:
    store, run = opened(database), RunRow(id="run", path="/run")
    losses = [
        Loss(LossKind.ROW, Subject.KERNEL, 57, 172, "end"),
        Loss(LossKind.DIAGNOSTIC, Subject.CAPTURE, detail="naïve \ud800\0"),
    ]
    for rank in (1, 0):
        store.put_profiles(
            run, [RankResults(profile(rank), {"kernels": table([kernel(rank=rank)])}, losses=losses)]
        )
    stored = [losses[0], Loss(LossKind.DIAGNOSTIC, Subject.CAPTURE, detail="naïve \\ud800")]
    assert store.losses("run") == [(rank, loss) for rank in (0, 1) for loss in stored]
    sentence = "ranks 0, 1: 114 of 344 kernels have no valid end and are left out"
    assert store.table("run", "kernels").losses == (sentence,)
    assert store.table("run", "api").losses == ()
    store.put_profiles(run, [RankResults(profile(1), {"kernels": table([kernel(rank=1)])})])
    assert {rank for rank, _ in store.losses("run")} == {0}


def test_a_run_whose_id_is_no_utf8_is_found_again(database: Database) -> None:
    store, run_id = opened(database), "caf\udce9-1"
    row = msgspec.structs.replace(profile(), run_id=run_id)
    store.put_profiles(
        RunRow(id=run_id, path=f"/{run_id}"), [RankResults(row, {"kernels": table([kernel()])})]
    )
    assert len(store.table(run_id, "kernels").rows) == 1
    assert list(store.profiles(run_id)) == [0]


def test_the_collectives_of_ranks_come_back_by_rank_with_nulls_and_any_text(
    database: Database, tmp_path: Path
) -> None:
    store = opened(database)
    store.put_profiles(
        RunRow(id="run", path="/run", events=str(tmp_path)), [RankResults(profile(r), {}) for r in (1, 0)]
    )
    for rank in (1, 0):
        columns: dict[str, list[Any]] = {
            column.name: [rank, None] for column in ANALYSES["rank_collectives"].columns
        }
        columns["comm_id"] = ["c", None]
        columns["op"] = ["AllReduce", "half \ud800 and zero\0"]
        tables = {name: empty_table(ANALYSES[name]) for name in ANALYSES_WITH_EVENTS}
        tables["rank_collectives"] = replace(tables["rank_collectives"], values=columns)
        events = RankEvents(tmp_path, "run", rank, profile(rank).sha256)
        finish(events, timeline([]), tables, with_timeline=False)
    rows = store.table("run", "rank_collectives").rows
    assert [row["seq"] for row in rows] == [0, None, 1, None]
    assert [row["rank"] for row in rows] == [0, 0, 1, 1]
    assert [row["op"] for row in rows] == 2 * ["AllReduce", "half ? and zero\0"]
    shutil.rmtree(tmp_path / "collectives/run=run/rank=0")
    found = store.table("run", "rank_collectives")
    assert [row["rank"] for row in found.rows] == [1, 1]
    assert "rank 0 of run are not in" in found.reasons[0]


def test_rows_over_ranks_are_written_in_batches_that_keep_their_order(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcprof.results.store.store._BATCH_ROWS", 2)
    store = opened(database)
    store.put_profiles(RunRow(id="run", path="/run"), [RankResults(profile(), {})])
    names = [column.name for column in ANALYSES["steps"].columns]
    rows = pd.DataFrame({name: np.arange(5, 0, -1) for name in names})
    rows["min_ns"] = pd.Series([5, None, 3, None, 1], dtype=object)
    table = AnalysisTable(Outcome(rows).arrays(), {WHOLE_RUN: "two are missing"})
    assert store.put_run("run", {"steps": table}, {0: "0" * 64})
    found = store.table("run", "steps")
    assert found.columns == {name: [5, 4, 3, 2, 1] for name in names} | {"min_ns": [5, None, 3, None, 1]}
    assert found.reasons == {-1: "two are missing"}


def test_the_store_has_a_run_from_its_own_analyses_on_until_a_rank_changes(database: Database) -> None:
    store, run = opened(database), RunRow(id="run", path="/run")
    store.put_profiles(run, [RankResults(profile(), {})])
    assert not store.has_run("run")
    # An explanation of a run whose collect was interrupted.
    assert store.put_analyses("run", -1, {"profiler_cost": absent("profiler_cost", "unknown")}, {0: "0" * 64})
    assert not store.has_run("run")
    assert store.put_run("run", {"steps": absent("steps", "too few")}, {0: "0" * 64})
    assert store.has_run("run")
    store.put_profiles(run, [RankResults(profile(), {})])
    assert not store.has_run("run")


def test_whole_numbers_keep_all_64_bits_and_what_is_no_number_is_null(database: Database) -> None:
    store = opened(database)
    most, least = 2**63 - 1, -(2**63)
    rows = [
        kernel(total_ns=most, min_ns=least, avg_ns=math.nan, med_ns=None),
        kernel(total_ns=2**53 + 1, avg_ns=math.inf, med_ns=0.1),
    ]
    store.put_profiles(RunRow(id="run", path="/"), [RankResults(profile(), {"kernels": table(rows)})])
    first, second = store.table("run", "kernels").rows
    assert (first["total_ns"], first["min_ns"], first["avg_ns"], first["med_ns"]) == (most, least, None, None)
    assert (second["total_ns"], second["avg_ns"], second["med_ns"]) == (2**53 + 1, None, 0.1)


def test_any_number_of_rows_comes_back_in_order(database: Database) -> None:
    store = opened(database)
    for count in (1, 75, 76, 77, 500):
        run = RunRow(id=f"run{count}", path="/")
        rows = [kernel(name=f"k{i % 3}", total_ns=i) for i in range(count)]
        of_run = msgspec.structs.replace(profile(), run_id=run.id)
        store.put_profiles(run, [RankResults(of_run, {"kernels": table(rows)})])
        assert store.table(run.id, "kernels").rows == rows


def test_a_number_beyond_64_bits_is_refused_and_nothing_of_the_profile_is_written(database: Database) -> None:
    store = opened(database)
    before = database.dump()
    results = {"kernels": table([kernel(), kernel(total_ns=2**63)])}
    with pytest.raises(StoreError, match="cannot use the results database"):
        store.put_profiles(RunRow(id="run", path="/"), [RankResults(profile(), results)])
    assert database.dump() == before


def test_tables_of_another_version_are_one_sentence(
    hpcprof: Hpcprof, profiles: Path, filled: Database
) -> None:
    filled.execute("UPDATE hpcprof_schema SET version = 99")
    for command in (["collect", str(profiles)], ["report", "run"], ["query", "SELECT 1"]):
        done = hpcprof(*command)
        assert done.returncode == 1
        assert "has schema version 99, this hpcprof knows versions up to" in done.stderr


def test_tables_of_an_earlier_version_are_migrated_and_filled_by_the_next_collect(
    hpcprof: Hpcprof, profiles: Path, database: Database
) -> None:
    hpcprof("collect", str(profiles))
    hpcprof("report", str(profiles))
    current = database.dump()
    # As an earlier version left it: without a table, with another column in one, without one in a record.
    database.execute("UPDATE hpcprof_schema SET version = 4")
    database.execute("DROP TABLE analysis_phases")
    database.execute("ALTER TABLE analysis_step_times RENAME COLUMN step TO older")
    database.execute("ALTER TABLE gpus DROP COLUMN memory_bytes_per_s")
    database.execute("ALTER TABLE profiles DROP COLUMN made_by")
    report = hpcprof("report", str(profiles))
    assert report.returncode == 0, report.stderr
    assert "was collected by an earlier version of hpcprof: collecting it first" in report.stderr
    assert "2 profiles collected" in report.stderr
    assert "matmul_1" in report.stdout
    assert sorted(database.dump()) == sorted(current)


@on_sqlite
def test_figures_whose_profiles_are_gone_are_shown_with_the_version_that_made_them(
    hpcprof: Hpcprof, profiles: Path, database: Database
) -> None:
    hpcprof("collect", str(profiles))
    (run,) = (found.id for found in opened(database).runs())
    database.execute("UPDATE hpcprof_schema SET version = 11")
    database.execute("DROP TABLE analysis_phases")
    database.execute("ALTER TABLE analysis_step_kinds DROP COLUMN counted_steps")
    database.execute("ALTER TABLE analysis_step_kinds DROP COLUMN once_steps")
    database.execute("ALTER TABLE profiles DROP COLUMN made_by")
    moved = profiles.rename(profiles.with_name("moved"))
    report = hpcprof("report", run)
    assert report.returncode == 0, report.stderr
    assert "matmul_1" in report.stdout and "computed by hpcprof 0.2.0" in report.stdout
    assert "A step takes" in report.stdout
    phases = hpcprof("report", run, "--analysis", "phases")
    assert "collected by an earlier version" in phases.stdout
    explained = hpcprof("explain", run)
    assert explained.returncode == 1
    assert "cannot be explained: hpcprof 0.2.0 collected it, and its folder is gone." in explained.stderr
    moved.rename(profiles)
    assert "computed by" not in hpcprof("report", run).stdout


def test_baselines_are_replaced_as_a_whole_and_come_with_the_migration(database: Database) -> None:
    opened(database)
    database.execute("UPDATE hpcprof_schema SET version = 10")
    database.execute("DROP TABLE baselines")
    store = opened(database)
    assert store.baselines() == []
    first = [
        BaselineRow("main", i, run, "/run", "2026-11-22T20:00:00+00:00") for i, run in enumerate(("r1", "r2"))
    ]
    other = BaselineRow("other", 0, "r1", "/run", "2026-11-22T20:00:00+00:00")
    store.put_baseline("main", first)
    store.put_baseline("other", [other])
    assert opened(database).baselines() == [*first, other]
    later = BaselineRow("main", 0, "r3", "/run", "2026-11-22T21:00:00+00:00")
    store.put_baseline("main", [later])
    assert store.baselines() == [later, other]
    store.put_baseline("main", [])
    assert store.baselines() == [other]


def test_a_database_of_another_program_is_refused_and_not_touched(hpcprof: Hpcprof, profiles: Path) -> None:
    export = profiles / "rank0.sqlite"
    before = export.read_bytes()
    for command in (["collect", str(profiles)], ["report", str(profiles)], ["query", "SELECT 1"]):
        done = hpcprof(*command, "--db", str(export))
        assert done.returncode == 1
        assert f"{export} is a database of another program" in done.stderr
    assert export.read_bytes() == before


def test_what_a_profile_says_about_itself_is_stored_and_of_its_environment_a_list_only(
    hpcprof: Hpcprof, profiles: Path, database: Database
) -> None:
    with sqlite3.connect(profiles / "rank0.sqlite") as export:
        export.executemany(
            "INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', ?)",
            [
                ('NCCL_ALGO="Ring"',),
                ("CUDA_VISIBLE_DEVICES=0,1",),
                ("NCCL_COMM_ID=hush-host:2222",),
                ("NCCL_DEBUG_FILE=/home/hush/nccl.log",),
                ("NCCL_LONG=hush hush hush",),
                ("API_KEY=hush-hush",),
            ],
        )
        export.execute("INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:COLLECT_CUDA_TRACE', 'true')")
        export.execute("INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:COMMAND', 'hush')")
    hpcprof("collect", str(profiles))
    rows = json.loads(query(hpcprof, "SELECT kind, name, value FROM facts WHERE rank = 0"))
    facts = {(row["kind"], row["name"]): row["value"] for row in rows}
    assert facts["environment", "NCCL_ALGO"] == "Ring"
    assert facts["environment", "CUDA_VISIBLE_DEVICES"] == "0,1"
    assert facts["environment", "OMPI_COMM_WORLD_RANK"] == "0"
    assert facts["option", "COLLECT_CUDA_TRACE"] == "true"
    assert facts["version", "nsys export schema"] == "3.20.3"
    gpus = json.loads(
        hpcprof("query", "SELECT * FROM gpus WHERE rank = 0 ORDER BY device", "--format", "json").stdout
    )
    assert [gpu["device"] for gpu in gpus] == [0, 1, 2, 3]
    assert gpus[0]["name"] == "NVIDIA H200"
    assert gpus[0]["memory_bytes_per_s"] == 4_814_304_000_000
    assert (gpus[0]["clock_hz"], gpus[0]["sm_count"], gpus[0]["compute_capability"]) == (
        1_980_000_000,
        132,
        "9.0",
    )
    assert "hush" not in "".join(database.dump())


def query(hpcprof: Hpcprof, sql: str, form: str = "json") -> str:
    done = hpcprof("query", sql, "--format", form)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_query_gives_rows_in_three_forms(hpcprof: Hpcprof, profiles: Path, database: Database) -> None:
    hpcprof("collect", str(profiles))
    sql = (
        "SELECT rank, sum(total_ns) AS total, avg(instances) AS mean, NULL AS missing "
        "FROM analysis_kernels WHERE name LIKE 'nccl%' AND name <> 'a:b' GROUP BY rank ORDER BY rank"
    )
    rows = json.loads(query(hpcprof, sql))
    assert rows == [
        {"rank": 0, "total": 31250790, "mean": 43, "missing": None},
        {"rank": 1, "total": 32709576, "mean": 43, "missing": None},
    ]
    lines = query(hpcprof, sql, "csv").splitlines()
    assert lines[0] == "rank,total,mean,missing"
    assert lines[1].startswith("0,31250790,43")
    assert query(hpcprof, sql, "table").split()[:4] == ["rank", "total", "mean", "missing"]


def test_two_columns_of_one_name_are_both_there(hpcprof: Hpcprof, filled: Database) -> None:
    assert json.loads(query(hpcprof, "SELECT 1 AS a, 2 AS a")) == [{"a": 1, "a_2": 2}]


def test_a_query_changes_nothing_and_says_so(hpcprof: Hpcprof, filled: Database, tmp_path: Path) -> None:
    before, files = filled.dump(), sorted(tmp_path.iterdir())
    # The server's user can write to /tmp and not to the folder of the test.
    stolen = Path(f"/tmp/hpcprof-stolen-{secrets.token_hex(8)}")
    for sql in (
        "DELETE FROM runs",
        "UPDATE profiles SET file = 'x'",
        "DROP TABLE runs",
        "CREATE TABLE mine (a int)",
        "CREATE TEMP TABLE mine (a int)",
        "COMMIT; DELETE FROM runs",
        "SELECT 1; DELETE FROM runs",
        "INSERT INTO runs VALUES ('a', 'b', 'c', 'd', 1) RETURNING id",
        "VACUUM INTO 'stolen.db'",
        "ATTACH 'other.db' AS other",
        "PRAGMA query_only = OFF",
        "PRAGMA user_version = 7",
        f"COPY runs TO '{stolen}'",
        "SET default_transaction_read_only = off",
        "WITH gone AS (DELETE FROM runs RETURNING id) SELECT * FROM gone",
        "SELECT 1) AS q; DELETE FROM runs; SELECT 1 FROM (SELECT 1",
    ):
        with pytest.raises(UsageError) as refused:
            hpcprof_query(opened(filled), sql)
        assert "\n" not in str(refused.value), sql
        assert filled.dump() == before, sql
        assert sorted(tmp_path.iterdir()) == files, sql
        assert not stolen.exists(), sql
    done = hpcprof("query", "SELECT 1; DELETE FROM runs")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert filled.dump() == before


@pytest.mark.usefixtures("filled")
def test_wrong_sql_is_one_sentence(hpcprof: Hpcprof) -> None:
    for sql, says in (
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM kernels", "kernels"),
        ("SELECT nothing FROM runs", "nothing"),
        ("", "hpcprof"),
    ):
        done = hpcprof("query", sql)
        assert done.returncode == 2, sql
        assert says in done.stderr
        assert "--schema" in done.stderr or "only reads" in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("new_database", ["PostgreSQL"], indirect=True)
@pytest.mark.usefixtures("filled")
def test_postgresql_refuses_functions_that_may_change_something(hpcprof: Hpcprof) -> None:
    for sql in (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity",
        'SELECT "pg_terminate_backend"(pid) FROM pg_stat_activity WHERE false',
        "SELECT 1 WHERE set_config('statement_timeout', '0', false) IS NOT NULL",
        "SELECT id FROM runs ORDER BY pg_notify('channel', id)::text",
        "WITH a AS (SELECT pg_sleep(0)) SELECT * FROM a",
        "SELECT * FROM pg_ls_dir('.')",
        "SELECT lo_create(0)",
    ):
        done = hpcprof("query", sql)
        assert done.returncode == 2, sql
        assert "may change something: hpcprof query only reads" in done.stderr
        assert done.stderr.count("\n") == 1
    found = json.loads(query(hpcprof, "SELECT count(*) AS n, count(*), random() < 2 AS r FROM runs;"))
    assert found[0]["n"] == 1


def test_a_query_before_anything_is_collected_says_how_to(hpcprof: Hpcprof, database: Database) -> None:
    done = hpcprof("query", "SELECT * FROM runs")
    assert done.returncode == 1
    assert "run hpcprof collect first" in done.stderr


def test_the_schema_lists_every_column_that_the_database_has(hpcprof: Hpcprof, filled: Database) -> None:
    listed = json.loads(hpcprof("query", "--schema", "--format", "json").stdout)
    columns = {(row["table"], row["column"]) for row in listed}
    assert ("analysis_kernels", "total_ns") in columns
    store = opened(filled)
    for table in {table for table, _ in columns}:
        names = ", ".join(sorted(f'"{column}"' for of, column in columns if of == table))
        hpcprof_query(store, f"SELECT {names} FROM {table}")


def test_a_server_that_cannot_be_reached_is_one_sentence_without_the_password(hpcprof: Hpcprof) -> None:
    url = "postgresql+psycopg://me:hush-1@/db?host=/nowhere&password=hush-2"
    done = hpcprof("query", "SELECT 1", "--db", url)
    assert done.returncode == 1
    assert "cannot use the results database postgresql+psycopg://me:***@/db" in done.stderr
    assert "hush" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_one_sentence(hpcprof: Hpcprof, profiles: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    done = hpcprof("collect", str(profiles), "--db", "/dev/full")
    assert done.returncode == 1
    assert "cannot use the results database /dev/full" in done.stderr
    assert "Traceback" not in done.stderr
