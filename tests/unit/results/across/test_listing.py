"""The list of runs, and which of them are chosen."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcprof.common.errors import UsageError
from hpcprof.results.across.listing import Coverage, Selection, list_runs, parse_age, parse_since
from hpcprof.results.store.store import RankResults, open_store
from hpcprof.results.store.tables import ProfileRow, RunRow
from hpcprof.runs.directory import Run, save
from hpcprof.runs.step_time import StepTime
from hpcprof.runs.tags import change_tags
from hpcprof.submit.schedulers.base import JobState, JobStatus
from tests.submitted_run import MakeRun
from tests.submitted_run import make_run as make_run

NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
COMPLETED = json.dumps({"state": "completed", "reason": "", "exit_code": 0})
FAILED = json.dumps({"state": "failed", "reason": "exit code 3", "exit_code": 3})


@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCPROF_DB", raising=False)


def changed(run: Run, **job: Any) -> Run:
    """Write a run with other values in its job."""
    assert run.manifest is not None
    manifest = msgspec.structs.replace(run.manifest, job=msgspec.structs.replace(run.manifest.job, **job))
    return save(Run(run.id, run.path, manifest))


def stored(runs_dir: Path, run_id: str, path: Path, ranks: int = 1, start: int = 1795230532) -> None:
    store = open_store(None, runs_dir)
    store.prepare()
    for rank in range(ranks):
        profile = ProfileRow(
            run_id, rank, "f", "0" * 64, 1, "nsys", None, "", None, start * 10**9, analysis_version=1
        )
        store.put_profiles(RunRow(run_id, str(path)), [RankResults(profile, {})])


def test_a_run_is_listed_with_its_command_times_and_tags(make_run: MakeRun, tmp_path: Path) -> None:
    run = changed(
        make_run(verdict=COMPLETED, started="2026-11-21T02:16:00Z", finished="0"),
        workload="ddp",
        arguments=["--model", "a b"],
        nodes=2,
    )
    change_tags(run, tmp_path, ["base"])
    os.utime(run.path / "state/started", (1000, 1000))
    os.utime(run.path / "state/finished", (1090, 1090.5))
    (row,) = list_runs(tmp_path)
    assert (row.run, row.state, row.site, row.nodes, row.ranks) == (run.id, "completed", "here", 2, 2)
    assert (row.command, row.tags) == ("ddp --model 'a b'", ["base"])
    assert row.submitted == datetime(2026, 11, 21, 2, 15, 54, tzinfo=timezone.utc)
    assert row.started == datetime(2026, 11, 21, 2, 16, tzinfo=timezone.utc)
    assert (row.duration_s, row.step_ns, row.collected) == (90.5, None, Coverage.NOT_PROFILED)


def test_profiles_of_a_run_are_collected_partly_or_not(make_run: MakeRun, tmp_path: Path) -> None:
    for name, ranks in (("1", 0), ("2", 1), ("3", 2)):
        run = make_run(name, verdict=COMPLETED)
        changed(run, ranks_per_node=2, profiler="nsys")
        if ranks:
            stored(tmp_path, run.id, run.path, ranks)
    found = [row.collected for row in list_runs(tmp_path)]
    assert found == [Coverage.NO, Coverage.PARTLY, Coverage.YES]


def test_collected_profiles_of_no_run_are_imported_or_missing(make_run: MakeRun, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (tmp_path / "theirs").mkdir()
    stored(runs, "theirs-1", tmp_path / "theirs", ranks=2)
    stored(runs, "gone-1", tmp_path / "gone")
    elsewhere = save(make_run())
    stored(runs, elsewhere.id, elsewhere.path)
    stored(runs, "a-later-one", tmp_path / "gone", start=1795230533)
    gone, theirs, later = list_runs(runs)
    assert later.run == "a-later-one"
    assert (gone.run, gone.state) == ("gone-1", "missing")
    assert (theirs.run, theirs.state, theirs.ranks, theirs.profiler) == ("theirs-1", "imported", 2, "nsys")
    assert theirs.started == datetime.fromtimestamp(1795230532, timezone.utc)
    assert [row.run for row in list_runs(runs, None, Selection(states=["missing"]))] == [
        *("gone-1", "a-later-one")
    ]
    # The clock of PyTorch's traces begins up to three months before they do.
    with closing(sqlite3.connect(runs / "hpcprof.db")) as database, database:
        database.execute("UPDATE profiles SET kind = 'torch'")
    assert {row.started for row in list_runs(runs)} == {None}


def test_the_step_is_the_elapsed_time_of_all_steps_beside_the_median_also_from_stores_without_kinds(
    tmp_path: Path,
) -> None:
    runs = tmp_path / "runs"
    (tmp_path / "theirs").mkdir()
    stored(runs, "theirs-1", tmp_path / "theirs")
    with closing(sqlite3.connect(runs / "hpcprof.db")) as database, database:
        rows = "INSERT INTO analysis_{} (run_id, position, {}) VALUES ('theirs-1', {})"
        database.execute(rows.format("step_kinds", "kind, elapsed_ns", "0, 0, 119"))
        database.execute(rows.format("step_kinds", "kind, elapsed_ns", "1, 1, 100"))
        database.execute(rows.format("steps_summary", "p50_ns", "0, 73"))
    (row,) = list_runs(runs)
    assert (row.step_ns, row.step_p50_ns, row.step_source) == (119, 73, "profiles")
    with closing(sqlite3.connect(runs / "hpcprof.db")) as database, database:
        database.execute("DROP TABLE analysis_step_kinds")
    (row,) = list_runs(runs)
    assert (row.step_ns, row.step_p50_ns) == (None, 73)


def test_steps_that_a_program_noted_stay_when_its_node_was_collected(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = save(make_run(verdict=COMPLETED))
    store = open_store(None, tmp_path)
    store.prepare()
    store.put_profiles(RunRow(run.id, str(run.path)), [])
    noted = StepTime(119, 73, 9, 9)
    monkeypatch.setattr("hpcprof.results.across.listing.noted_step_time", lambda run: noted)
    (row,) = list_runs(tmp_path)
    assert (row.step_ns, row.step_p50_ns, row.step_source) == (119, 73, "program")


def test_runs_are_chosen_by_state_site_tag_and_time(make_run: MakeRun, tmp_path: Path) -> None:
    good, bad = save(make_run("1", verdict=COMPLETED)), save(make_run("2", verdict=FAILED))
    change_tags(bad, tmp_path, ["x"])

    def chosen(**values: Any) -> list[str]:
        return [row.run for row in list_runs(tmp_path, None, Selection(**values))]

    assert chosen(states=["failed", "timeout"]) == [bad.id]
    assert chosen(sites=["here", "there"]) == [good.id, bad.id]
    assert chosen(sites=["there"]) == []
    assert chosen(tags=["x", "y"]) == [bad.id]
    submitted = datetime(2026, 11, 21, 2, 15, 54, tzinfo=timezone.utc)
    assert chosen(since=submitted) == [good.id, bad.id]
    assert chosen(since=submitted + timedelta(seconds=1)) == []


def test_a_database_that_cannot_be_read_does_not_hide_the_runs(make_run: MakeRun, tmp_path: Path) -> None:
    run = save(make_run(verdict=COMPLETED))
    (tmp_path / "hpcprof.db").write_text("this is no database at all, whatever its name says" * 20)
    skipped: list[str] = []
    assert [row.run for row in list_runs(tmp_path, None, Selection(), skipped)] == [run.id]
    assert skipped == [f"cannot read the results database {tmp_path / 'hpcprof.db'}: file is not a database."]


def test_a_database_without_a_column_is_named_with_the_way_out(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "hpcprof.db") as connection:
        connection.execute("CREATE TABLE hpcprof_schema (version INTEGER)")
        connection.execute("CREATE TABLE runs (id TEXT)")
    skipped: list[str] = []
    assert list_runs(tmp_path, None, Selection(), skipped) == []
    assert "no such " in skipped[0]
    assert skipped[0].endswith("; give another --db, or move it away and collect again.")


def test_a_list_makes_no_database(tmp_path: Path) -> None:
    assert list_runs(tmp_path) == []
    assert list_runs(tmp_path, str(tmp_path / "other.db")) == []
    assert not list(tmp_path.iterdir())


def test_a_time_is_an_age_a_date_or_a_date_with_a_time() -> None:
    assert parse_since("7d", NOW) == NOW - timedelta(days=7)
    assert parse_since("12h", NOW) == NOW - timedelta(hours=12)
    assert parse_since("2026-11-21", NOW) == datetime(2026, 11, 21).astimezone()
    assert parse_since("2026-11-21T14:30+00:00", NOW) == datetime(2026, 11, 21, 14, 30, tzinfo=timezone.utc)
    for wrong in ("7", "d", "yesterday", "7w", "-3d", "99999999d"):
        with pytest.raises(UsageError, match=f"--since {wrong}: write a date"):
            parse_since(wrong, NOW)


def test_an_age_has_a_unit() -> None:
    assert (parse_age("90m"), parse_age("30d")) == (timedelta(minutes=90), timedelta(days=30))
    assert parse_age("30") is None


@pytest.mark.parametrize(
    "place", ["results.across.listing.noted_step_time", "submit.schedulers.polling.status_now"]
)
def test_a_run_that_fails_as_nobody_foresaw_leaves_the_others_listed(
    place: str, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (save(make_run(number, scheduler="local", finished="0")) for number in ("1", "2"))

    def fail(run: Run, *_: object) -> JobStatus | None:
        if run.id == first.id:
            raise ZeroDivisionError("division by zero")
        return JobStatus(JobState.RUNNING) if "status" in place else None

    monkeypatch.setattr(f"hpcprof.{place}", fail)
    skipped: list[str] = []
    listed = {row.run: row for row in list_runs(tmp_path, skipped=skipped)}
    assert second.id in listed
    said = " ".join([*skipped, *(row.reason for row in listed.values())])
    assert (
        f"{first.id} is left out: an internal error of hpcprof, ZeroDivisionError: division by zero" in said
    )
