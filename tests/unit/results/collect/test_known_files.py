"""Facts kept of profiles that have not changed."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcprof.cli.collect import command
from hpcprof.common.errors import DamagedInput
from hpcprof.common.paths import user_cache
from hpcprof.profiles.event_folders import EVENTS, origin_path, remove_run_events
from hpcprof.profiles.readers.declaration import SeveralRanks
from hpcprof.results.collect import collection, profile_ranks
from hpcprof.results.collect.known_files import (
    Identity,
    KnownFile,
    remember,
    remember_settled,
    settled_state,
    stamps_of,
    unchanged_files,
)
from hpcprof.results.collect.rank_task import ProfileTask, RankOutcome, Unchanged
from hpcprof.results.store.analysis_version import ANALYSIS_VERSION
from hpcprof.results.store.store import RankResults, Store, open_store
from hpcprof.results.store.tables import ProfileRow, RunRow
from hpcprof.runs.directory import Run, open_run

SEVERAL = SeveralRanks(((11,), (12, 13)), (4, 7))


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at files as if they had been written an hour ago."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3600 * 10**9)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "rank00003.sqlite"
    path.parent.mkdir()
    path.write_bytes(b"profile")
    return path


def collected(file: Path, read: Path | None = None) -> dict[Path, KnownFile]:
    path = read or file
    return {file: KnownFile(Identity(path, 3, SEVERAL, stamps_of(file, path)), {3: "5a"})}


def test_what_is_known_of_an_unchanged_profile_is_found_again_from_any_working_directory(
    profile: Path, later: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = collected(profile)
    remember(known)
    assert unchanged_files([profile]) == known
    monkeypatch.chdir(profile.parent)
    assert unchanged_files([Path(profile.name)])[Path(profile.name)].identity.several == SEVERAL


def _rewrite(path: Path) -> None:
    path.write_bytes(b"PROFILE")


def _rewrite_as_old(path: Path) -> None:
    before = path.stat()
    path.write_bytes(b"PROFILE")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(b"PROFILE")
    new.replace(path)


@pytest.mark.parametrize("change", [_rewrite, _rewrite_as_old, _replace, Path.unlink])
def test_a_profile_that_was_changed_in_any_way_is_not_known(
    profile: Path, later: None, change: Callable[[Path], None]
) -> None:
    remember(collected(profile))
    clock = profile.stat().st_ctime_ns
    change(profile)
    # The clock of a file system may tick only every few milliseconds.
    while profile.exists() and profile.stat().st_ctime_ns == clock:
        change(profile)
    assert unchanged_files([profile]) == {}


def test_a_profile_that_changed_just_now_is_not_remembered(profile: Path) -> None:
    assert stamps_of(profile, profile) == ()
    remember(collected(profile))
    assert unchanged_files([profile]) == {}
    assert not user_cache().exists()


def test_a_report_is_known_only_with_the_file_that_is_read_for_it(profile: Path, later: None) -> None:
    report = profile.with_suffix(".nsys-rep")
    report.write_bytes(b"report")
    remember(collected(report, profile))
    assert unchanged_files([report])[report].identity.path == profile
    profile.unlink()
    assert unchanged_files([report]) == {}


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version": "0.0, 1", "files": {}}', b"\xff"])
def test_a_damaged_or_older_cache_is_ignored(profile: Path, later: None, content: bytes) -> None:
    remember(collected(profile))
    assert (user_cache() / "profiles").stat().st_mode & 0o777 == 0o700
    (cache,) = (user_cache() / "profiles").iterdir()
    cache.write_bytes(content)
    assert unchanged_files([profile]) == {}


def test_a_cache_that_cannot_be_written_is_left_alone(profile: Path, later: None) -> None:
    user_cache().mkdir(parents=True)
    (user_cache() / "profiles").write_text("no folder")
    remember(collected(profile))
    assert unchanged_files([profile]) == {}


def test_what_was_known_of_folders_long_ago_is_removed(profile: Path, later: None) -> None:
    old = user_cache() / "profiles" / "old.json"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    os.utime(old, (0, 0))
    remember(collected(profile))
    assert not old.exists()


@pytest.fixture
def store(profile: Path, tmp_path: Path) -> Store:
    """A store with a row of the profile."""
    store = open_store(str(tmp_path / "results.db"), tmp_path)
    store.prepare()
    row = ProfileRow(
        *("run", 3, profile.name, "5a", 7, "ncu", None, "", None, None), analysis_version=ANALYSIS_VERSION
    )
    store.put_profiles(RunRow("run", str(profile.parent)), [RankResults(row, {})])
    return store


def test_a_collect_reads_a_profile_only_if_it_changed(
    profile: Path, store: Store, later: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def rank(path: Path) -> int:
        opened.append(path)
        return 3

    def analyze(task: ProfileTask) -> RankOutcome:
        opened.append(task.path)
        return Unchanged() if profile.read_bytes() == b"profile" else DamagedInput(f"{profile} is damaged.")

    monkeypatch.setattr(profile_ranks, "identify_rank", rank)
    monkeypatch.setattr(profile_ranks, "several_ranks", lambda path: None)
    monkeypatch.setattr(collection, "analyze_profile", analyze)
    run = Run("run", profile.parent)
    assert collection.collect(run, store).unchanged == [profile]
    assert opened == [profile, profile]
    assert collection.collect(run, store).unchanged == [profile]
    assert opened == [profile, profile]
    profile.write_bytes(b"changed")
    assert collection.collect(run, store).skipped == [f"{profile} is damaged."]


def test_a_store_without_the_results_of_a_known_profile_gets_them(
    profile: Path, store: Store, later: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = KnownFile(Identity(profile, 3, None, stamps_of(profile, profile)), {3: "of another content"})
    remember({profile: known})
    damage = DamagedInput("It is damaged.")
    monkeypatch.setattr(collection, "analyze_profile", lambda task: damage)
    done = collection.collect(Run("run", profile.parent), store)
    assert (done.unchanged, done.skipped) == ([], ["It is damaged."])


@pytest.fixture
def database(profile: Path, store: Store, later: None) -> Path:
    """The file of the store, in which a collect of the profile has found nothing new."""
    database = Path(store.url.database or "")
    remember({profile: KnownFile(Identity(profile, 3, None, stamps_of(profile, profile)), {3: "5a"})})
    events = kept_events(database.parent, "run")
    remember_settled("run", [profile], database, [profile], ["rank 3 lacks kernels"], str(events))
    return database


def kept_events(folder: Path, run_id: str) -> Path:
    """Make the folder that a collect keeps the events of a run in."""
    origin_path(folder / EVENTS, run_id, 3).parent.mkdir(parents=True)
    return folder / EVENTS


def test_a_store_that_has_everything_is_known_until_the_store_or_the_profiles_change(
    profile: Path, store: Store, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = settled_state("run", [profile], database)
    assert found is not None and (found.read, found.losses) == ((profile.name,), ("rank 3 lacks kernels",))
    monkeypatch.chdir(tmp_path)
    assert settled_state("run", [profile], Path(database.name)) == found
    assert settled_state("other", [profile], database) is None
    assert settled_state("run", [profile], tmp_path / "other.db") is None
    added = profile.with_name("rank00004.sqlite")
    added.write_bytes(b"profile")
    assert settled_state("run", [profile, added], database) is None
    assert settled_state("run", [added], database) is None
    assert settled_state("run", [], database) is None
    journal = database.with_name("results.db-journal")
    journal.touch()
    assert settled_state("run", [profile], database) is None
    journal.unlink()
    assert settled_state("run", [profile], database) == found
    remove_run_events(Path(found.events), "run")
    assert settled_state("run", [profile], database) is None
    kept_events(tmp_path, "run")
    assert settled_state("run", [profile], database) == found
    store.describe_run(RunRow("run", str(profile.parent), program="train"))
    assert settled_state("run", [profile], database) is None


def test_a_store_with_a_write_ahead_log_is_not_known(profile: Path, database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        remember_settled("run", [profile], database, [profile], [], str(database.parent / EVENTS))
    assert settled_state("run", [profile], database) is None


def test_a_collect_that_finds_nothing_new_again_says_the_same_without_opening_the_store(
    profile: Path, store: Store, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--db", str(database), "--runs-dir", str(database.parent), str(profile.parent)]
    run = open_run(profile.parent)
    row = ProfileRow(
        *(run.id, 3, profile.name, "5a", 7, "ncu", None, "", None, None), analysis_version=ANALYSIS_VERSION
    )
    store.put_profiles(RunRow(run.id, str(profile.parent)), [RankResults(row, {})])
    store.put_run(run.id, {}, {3: "5a"})
    kept_events(database.parent, run.id)
    monkeypatch.setattr(collection, "update_run", lambda *_: None)
    opened = CliRunner().invoke(command, words)
    assert opened.output == f"{run.id}: 0 profiles collected, 1 unchanged, 0 skipped, into {database}\n"
    damaged = profile.parent.parent / "damaged/run.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    beside = CliRunner().invoke(command, [*words[:-1], str(profile.parent.parent)])
    assert (beside.exit_code, f"skipped: {damaged} cannot be read" in beside.output) == (1, True)
    monkeypatch.setattr("hpcprof.results.store.store.open_store", None)
    assert CliRunner().invoke(command, words).output == opened.output
    assert CliRunner().invoke(command, [*words, "--program", "train"]).exception is not None
    _rewrite(profile)
    assert CliRunner().invoke(command, words).exception is not None
