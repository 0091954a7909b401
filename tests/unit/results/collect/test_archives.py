"""One archive of all ranks of a run, collected and read again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hpcprof.results.collect.collection import collect
from hpcprof.results.collect.run_profiles import profiles_of, runs_below
from hpcprof.results.collect.timelines import find_timelines
from hpcprof.results.store.store import Store, open_store
from hpcprof.runs.directory import Run, open_run
from tests.data.otf2_archive import write_archive

pytest.importorskip("otf2")


@pytest.fixture
def anchor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of four ranks that was written an hour ago."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3600 * 10**9)
    return write_archive(tmp_path / "scorep-20260101")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = open_store(None, tmp_path / "runs")
    store.prepare()
    return store


def test_each_rank_of_an_archive_is_a_profile_with_a_checksum_of_its_own_files(
    anchor: Path, store: Store
) -> None:
    run = open_run(anchor.parent)
    assert collect(run, store).read == [anchor]
    found = store.profiles(run.id)
    assert [*found] == [0, 1, 2, 3]
    assert {profile.file for profile in found.values()} == {"traces.otf2"}
    assert len({profile.sha256 for profile in found.values()}) == 4
    assert collect(run, store).unchanged == [anchor]


def test_a_rank_whose_events_change_is_read_again_and_the_others_are_not(anchor: Path, store: Store) -> None:
    run = open_run(anchor.parent)
    collect(run, store)
    before = {rank: profile.sha256 for rank, profile in store.profiles(run.id).items()}
    # Everything after the mark of the end of a file is ignored.
    with (anchor.with_suffix("") / "1.evt").open("ab") as events:
        events.write(bytes(64))
    done = collect(run, store)
    after = {rank: profile.sha256 for rank, profile in store.profiles(run.id).items()}
    assert (done.read, done.unchanged) == ([anchor], [])
    assert [rank for rank in before if before[rank] != after[rank]] == [1]


def test_a_damaged_rank_is_named_and_the_others_are_collected(anchor: Path, store: Store) -> None:
    events = anchor.with_suffix("") / "2.evt"
    events.write_bytes(events.read_bytes()[:-40])
    run = open_run(anchor.parent)
    done = collect(run, store)
    assert [*store.profiles(run.id)] == [0, 1, 3]
    (sentence,) = done.skipped
    assert "rank 2 (2.evt)" in sentence


def test_the_archive_in_the_folder_that_score_p_made_belongs_to_the_run(tmp_path: Path) -> None:
    (tmp_path / "run/profiles").mkdir(parents=True)
    anchor = write_archive(tmp_path / "run/profiles/scorep", ranks=2)
    run = Run("run", tmp_path / "run")
    assert profiles_of(run) == [anchor]
    assert [*find_timelines(run).paths] == [0, 1]


def test_archives_of_several_experiments_are_runs_of_their_own(tmp_path: Path) -> None:
    for name in ("scorep-1", "scorep-2"):
        write_archive(tmp_path / "all" / name, ranks=2, steps=1)
    assert [run.path.name for run in runs_below(tmp_path / "all")] == ["scorep-1", "scorep-2"]
