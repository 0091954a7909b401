"""Removing runs and what was collected of them, on SQLite and PostgreSQL; and the commands around it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest

from hpcprof.common.errors import HpcprofError, StoreError, UsageError
from hpcprof.results.across.cleanup import (
    Removal,
    chosen_removals,
    compact_store,
    missing_removals,
    old_removals,
    remove,
)
from hpcprof.results.across.listing import Selection, list_runs
from hpcprof.results.collect.collection import collect_profiles
from hpcprof.results.collect.jobs import find_jobs
from hpcprof.results.collect.run_names import find_known_runs
from hpcprof.results.store.overview import stored_runs
from hpcprof.results.store.store import RankResults, open_store
from hpcprof.results.store.tables import BaselineRow, ProfileRow, RunRow
from hpcprof.runs.directory import Run, save
from hpcprof.runs.tags import change_tags, read_tags
from hpcprof.submit.schedulers.base import user_name
from tests.conftest import Hpcprof
from tests.integration.conftest import Database
from tests.submitted_run import MakeRun
from tests.waiting import until

COMPLETED = json.dumps({"state": "completed", "reason": "", "exit_code": 0})


def ids(removals: Sequence[Removal]) -> list[str]:
    return [removal.id for removal in removals]


def carry_out(removals: Sequence[Removal], runs_dir: Path) -> None:
    assert ids(list(remove(removals, runs_dir))) == ids(removals)


def submitted(run: Run, age: timedelta) -> Run:
    """Write a run as if it had been submitted so long ago."""
    assert run.manifest is not None
    created = (datetime.now(timezone.utc) - age).isoformat()
    return save(Run(run.id, run.path, msgspec.structs.replace(run.manifest, created=created)))


def stored(runs_dir: Path, run_id: str, path: Path) -> None:
    store = open_store(None, runs_dir)
    store.prepare()
    profile = ProfileRow(run_id, 0, "f", "0" * 64, 1, "nsys", None, "", None, None, analysis_version=1)
    store.put_profiles(RunRow(run_id, str(path)), [RankResults(profile, {})])


def test_a_run_whose_folder_was_removed_is_no_imported_one(tmp_path: Path) -> None:
    stored(tmp_path, "gone", tmp_path / "gone")
    with pytest.raises(UsageError, match=r"^unknown run 'other' .* Valid: gone\.$"):
        find_jobs(["other"], tmp_path)
    with pytest.raises(UsageError, match=f"^the folder of gone was removed.*{tmp_path}/gone. Its results"):
        find_jobs(["gone"], tmp_path)
    with pytest.raises(UsageError, match="hpcprof list shows were imported, or their folders removed"):
        find_jobs(["last"], tmp_path)


def test_the_rows_of_imported_profiles_are_removed_from_every_table_and_their_files_are_left(
    database: Database, profiles: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(profiles / "rank0.sqlite", other)
    collect_profiles(other, runs_dir=tmp_path)
    before = database.dump()
    collect_profiles(profiles, runs_dir=tmp_path)
    (row,) = [row for row in stored_runs(None, tmp_path) if row.path == str(profiles)]
    assert (row.profiles, row.kind, row.step_p50_ns) == (2, "nsys", 3654419.0)
    (listed,) = [row for row in list_runs(tmp_path) if row.path == str(profiles)]
    # The profiles of two ranks record that there were four.
    assert (listed.state, listed.ranks) == ("imported", 4)
    with pytest.raises(UsageError, match=f"{row.id} was imported from {profiles}: it has no job"):
        find_jobs([row.id[:12]], tmp_path)
    with pytest.raises(UsageError, match=f"was imported from {other}: it has no job"):
        find_jobs(["rank0"], tmp_path)
    with pytest.raises(UsageError, match=r"^no job in .*: the runs that hpcprof list shows were imported"):
        find_jobs(["last"], tmp_path)
    (run,) = find_known_runs([row.id], tmp_path, open_store(None, tmp_path))
    assert change_tags(run, tmp_path, ["first"]) == ["first"]
    assert [one.run for one in list_runs(tmp_path, None, Selection(tags=["first"]))] == [row.id]
    removals = chosen_removals([row.id[:12]], tmp_path)
    assert (ids(removals), removals[0].run) == ([row.id], None)
    carry_out(removals, tmp_path)
    assert database.dump() == before
    assert len(list(profiles.iterdir())) == 2 and read_tags(run, tmp_path) == []
    assert compact_store(removals, tmp_path) >= 0
    assert database.dump() == before


def test_rows_are_missing_only_if_the_place_of_their_folder_exists(
    database: Database, tmp_path: Path, make_run: MakeRun
) -> None:
    here = save(make_run(verdict=COMPLETED))
    stored(tmp_path, here.id, here.path)
    stored(tmp_path, "gone", tmp_path / "gone")
    stored(tmp_path, "away", tmp_path / "not mounted" / "away")
    assert ids(missing_removals(tmp_path)) == ["gone"]
    carry_out(missing_removals(tmp_path), tmp_path)
    assert [row.id for row in stored_runs(None, tmp_path)] == ["away", here.id]
    carry_out(chosen_removals(["away"], tmp_path), tmp_path)
    assert [row.id for row in stored_runs(None, tmp_path)] == [here.id]


def test_old_runs_are_those_that_have_ended_without_a_tag(make_run: MakeRun, tmp_path: Path) -> None:
    old, young = timedelta(days=40), timedelta(days=20)
    ended = submitted(make_run("1", scheduler="local", verdict=COMPLETED), old)
    submitted(make_run("2", scheduler="local", verdict=COMPLETED), young)
    tagged = submitted(make_run("3", scheduler="local", verdict=COMPLETED), old)
    change_tags(tagged, tmp_path, ["keep"])
    queued = submitted(make_run("", scheduler="local"), old)
    now = datetime.now(timezone.utc).isoformat()
    (queued.path / "state/submitting").write_text(f"{now} login1 4711 1 boot\n")
    stored(tmp_path, ended.id, ended.path)
    removals = old_removals(datetime.now(timezone.utc) - timedelta(days=30), tmp_path)
    assert [(removal.id, removal.rows is not None) for removal in removals] == [(ended.id, True)]
    assert removals[0].bytes > 500
    carry_out(removals, tmp_path)
    assert not ended.path.exists()
    assert stored_runs(None, tmp_path) == []


def test_runs_of_a_baseline_are_kept_and_named(database: Database, make_run: MakeRun, tmp_path: Path) -> None:
    ended = submitted(make_run("1", scheduler="local", verdict=COMPLETED), timedelta(days=40))
    stored(tmp_path, ended.id, ended.path)
    stored(tmp_path, "gone", tmp_path / "gone")
    rows = [BaselineRow("main", i, name, "", "") for i, name in enumerate((ended.id, "gone"))]
    open_store(None, tmp_path).put_baseline("main", rows)
    kept: set[str] = set()
    now = datetime.now(timezone.utc)
    assert [old_removals(now, tmp_path, protected=kept), missing_removals(tmp_path, protected=kept)] == [
        [],
        [],
    ]
    assert kept == {ended.id, "gone"}
    for name in kept:
        with pytest.raises(UsageError, match=rf"^{name} is in the baseline 'main': first give the baseline"):
            chosen_removals([name], tmp_path)
    open_store(None, tmp_path).put_baseline("main", [])
    assert ids(chosen_removals(sorted(kept), tmp_path)) == sorted(kept)


def test_the_rows_of_a_run_stay_while_the_copy_that_they_are_of_exists(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = save(make_run(scheduler="local", verdict=COMPLETED))
    runs = tmp_path / "runs"
    shutil.copytree(run.path, runs / run.id)
    stored(runs, run.id, run.path)
    carry_out(chosen_removals([run.id], runs), runs)
    assert run.path.is_dir()
    assert [row.id for row in stored_runs(None, runs)] == [run.id]


def test_a_run_whose_state_is_unknown_is_not_removed_and_the_way_out_is_named(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = save(make_run(scheduler="slurm"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HpcprofError, match=r"may still run: cannot start squeue") as refused:
        chosen_removals([run.id], tmp_path)
    # The command is that of this folder of runs.
    assert str(refused.value).endswith(f"with hpcprof gc --missing --runs-dir {tmp_path}.")
    assert old_removals(datetime.now(timezone.utc), tmp_path) == []


def test_a_run_with_a_job_that_still_collects_it_is_not_removed(make_run: MakeRun, tmp_path: Path) -> None:
    run = save(make_run(scheduler="local", verdict=COMPLETED))
    made = make_run("", scheduler="local")
    assert made.manifest is not None
    path = run.path / "collect" / "20261121-021554-collect-3fa9"
    shutil.copytree(made.path, path)
    collecting = save(Run(path.name, path, msgspec.structs.replace(made.manifest, id=path.name)))
    now = datetime.now(timezone.utc).isoformat()
    (collecting.path / "state/submitting").write_text(f"{now} login1 4711 1 boot\n")
    with pytest.raises(HpcprofError, match=rf"collect-3fa9 is queued: .* hpcprof cancel {path}\.$"):
        chosen_removals([run.id], tmp_path)


def test_names_that_match_nothing_or_several_collected_folders_are_named(tmp_path: Path) -> None:
    for name in ("mine-1", "mine-2"):
        stored(tmp_path, name, tmp_path / name)
    with pytest.raises(UsageError, match="'mine' is ambiguous in the results database"):
        chosen_removals(["mine"], tmp_path)
    with pytest.raises(UsageError, match="unknown run 'yours'"):
        chosen_removals(["yours"], tmp_path)
    with pytest.raises(UsageError, match="nothing was collected from"):
        chosen_removals([str(tmp_path)], tmp_path)


def test_a_database_of_a_newer_version_is_refused_before_a_run_is_removed(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = save(make_run(scheduler="local", verdict=COMPLETED))
    stored(tmp_path, run.id, run.path)
    with sqlite3.connect(tmp_path / "hpcprof.db") as connection:
        connection.execute("UPDATE hpcprof_schema SET version = 99")
    removals = chosen_removals([run.id], tmp_path)
    with pytest.raises(StoreError, match="schema version 99"):
        carry_out(removals, tmp_path)
    assert run.path.is_dir()


def test_a_run_is_listed_tagged_kept_and_removed_by_the_commands(hpcprof: Hpcprof, tmp_path: Path) -> None:
    hpcprof("submit", "--", "sleep", "300")
    until(lambda: "running" in hpcprof("status").stdout)
    done = hpcprof("rm", "--yes", "last")
    assert (done.returncode, "is running: end it first, with hpcprof cancel" in done.stderr) == (1, True)
    hpcprof("cancel", "last")
    assert hpcprof("tag", "last", "smoke", "v=1").stdout.endswith(": smoke v=1\n")
    (row,) = json.loads(hpcprof("list", "--tag", "smoke", "--format", "json").stdout)
    assert (row["state"], row["tags"], row["command"]) == ("cancelled", ["smoke", "v=1"], "sleep 300")
    assert hpcprof("gc", "--older-than", "0m", "--yes").stdout == "nothing to remove\n"
    assert hpcprof("tag", "last", "smoke", "v=1", "--remove").stdout.endswith(": no tags\n")
    dry = hpcprof("gc", "--older-than", "0m", "--dry-run").stdout
    assert f"would remove {row['run']} (cancelled: by {user_name(os.getuid())}, with hpcprof cancel): " in dry
    assert "nobody can confirm here" in hpcprof("rm", "last").stderr
    assert hpcprof("rm", "--yes", "last").stdout.startswith(f"removed {row['run']} (cancelled")
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("gc",), "give --older-than AGE, --missing, or both."),
        (("gc", "--older-than", "3w"), "--older-than 3w: write a number with d, h or m, as in 30d or 12h."),
        (("list", "--since", "3w"), "--since 3w: write a date"),
        (("tag", "last", "a b"), "tag 'a b': a tag has"),
        (("rm", "--yes", "last"), "no runs in runs yet"),
    ],
)
def test_a_mistake_is_one_sentence(words: tuple[str, ...], sentence: str, hpcprof: Hpcprof) -> None:
    done = hpcprof(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
