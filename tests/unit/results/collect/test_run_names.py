"""Names by which users refer to runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.results.across.listing import list_runs
from hpcprof.results.collect.run_names import (
    command_line,
    find_known_run,
    find_known_runs,
    stored_run,
    typed_run,
)
from hpcprof.results.collect.run_profiles import runs_in, runs_of_files, runs_to_collect
from hpcprof.results.store.database import store_url
from hpcprof.results.store.store import RankResults, Store
from hpcprof.results.store.tables import ProfileRow, RunRow
from hpcprof.runs.directory import MANIFEST, Run, open_run, typed_name

PATHS = {"fast-1111aaaa": "/gone/fast", "fast-2222bbbb": "/gone/fast2", "slow-33333333": "/gone/slow"}


def profile_in(folder: Path) -> Run:
    folder.mkdir(parents=True)
    (folder / "rank0.sqlite").touch()
    return open_run(folder)


def store_with(path: Path, *runs: Run) -> Store:
    store = Store(store_url(str(path), Path()))
    store.prepare()
    for run in runs:
        profile = ProfileRow(run.id, 0, "rank0.sqlite", "0" * 64, 1, "nsys", "node", "", "", None, 1)
        store.put_profiles(RunRow(run.id, str(run.path), None, None, None), [RankResults(profile, {})])
    return store


@pytest.mark.parametrize("name", ["slow-33333333", "slow", "s"])
def test_a_collected_run_is_found_by_its_id_or_a_prefix_of_it(name: str) -> None:
    assert stored_run(name, Path("runs"), PATHS) == Run("slow-33333333", Path("/gone/slow"))


@pytest.mark.parametrize("name", ["", "other"])
def test_a_name_that_no_collected_run_has_finds_none(name: str) -> None:
    assert stored_run(name, Path("runs"), PATHS) is None


def test_a_prefix_of_several_collected_runs_is_refused_with_their_ids() -> None:
    with pytest.raises(UsageError, match=r"ambiguous .* it matches fast-1111aaaa, fast-2222bbbb"):
        stored_run("fast", Path("runs"), PATHS)


def test_an_imported_run_keeps_its_name_when_its_folder_is_gone(tmp_path: Path) -> None:
    run = profile_in(tmp_path / "other_tool")
    store = store_with(tmp_path / "hpcprof.db", run)
    assert find_known_run(run.id, tmp_path / "runs", store) == run
    shutil.rmtree(run.path)
    assert find_known_run(run.id, tmp_path / "runs", store) == run
    assert find_known_runs([run.id, "other"], tmp_path / "runs", store) == [run, run]
    for find in (
        lambda: find_known_run("x", tmp_path, store),
        lambda: find_known_runs(["x"], tmp_path, store),
    ):
        with pytest.raises(UsageError, match="unknown run 'x'"):
            find()


def test_a_run_is_found_by_its_name_beside_a_program_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = profile_in(tmp_path / "ring")
    store = store_with(tmp_path / "hpcprof.db", run)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for program in ("ring", "solver"):
        Path(program).write_bytes(b"\x7fELF")
    assert find_known_run("ring", tmp_path / "runs", store) == run
    for reference in ("solver", "./ring"):
        with pytest.raises(UsageError, match="is not a profile that hpcprof reads"):
            find_known_run(reference, tmp_path / "runs", store)


def test_a_folder_without_profiles_stands_for_those_below_it(tmp_path: Path) -> None:
    one, deep = profile_in(tmp_path / "a"), profile_in(tmp_path / "b" / "c")
    profile_in(one.path / "inside")  # a folder inside a folder of profiles is part of neither
    profile_in(tmp_path / ".hidden")
    inside = profile_in(tmp_path / "d" / "profiles")
    (tmp_path / "empty").mkdir()
    assert runs_to_collect(open_run(tmp_path)) == [one, deep, open_run(inside.path.parent)]
    assert runs_to_collect(one) == [one]
    empty = open_run(tmp_path / "empty")
    assert runs_to_collect(empty) == [empty]


def test_a_command_names_the_database_unless_it_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCPROF_DB", raising=False)
    monkeypatch.delenv("HPCPROF_RUNS", raising=False)
    words = ("report", "one run", "--analysis", "api")
    plain = "hpcprof report 'one run' --analysis api"
    assert command_line(Store(store_url(None, Path("runs"))), *words) == plain
    assert command_line(Store(store_url("my db", Path("runs"))), *words) == f"{plain} --db 'my db'"
    monkeypatch.setenv("HPCPROF_DB", "my db")
    assert command_line(Store(store_url("my db", Path("runs"))), *words) == plain


def test_a_command_shows_no_secret_of_the_database() -> None:
    url = "postgresql+psycopg://me:hush@db/results?host=/run/pg&password=hush&sslpassword=hush"
    assert command_line(Store(store_url(url, Path())), "collect") == (
        "hpcprof collect --db 'postgresql+psycopg://me@db/results?host=%2Frun%2Fpg'"
    )


def test_a_run_outside_the_default_folder_is_named_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPCPROF_RUNS", raising=False)
    assert typed_name(tmp_path / "runs" / "r") == "r"
    assert typed_name(tmp_path / "my runs" / "r") == "'my runs/r'"
    assert typed_run(profile_in(tmp_path / "runs" / "r")) == "r"
    assert typed_run(profile_in(tmp_path / "my runs" / "r")) == str(tmp_path / "my runs" / "r")


def test_the_folder_of_another_user_is_named_and_hides_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = profile_in(tmp_path / "private")
    store_with(tmp_path / "hpcprof.db", private)
    stat = Path.stat

    def refuse(path: Path, **options: bool) -> object:
        if path.name == MANIFEST:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(Path, "lstat", refuse)
    monkeypatch.setattr("hpcprof.runs.directory.read_file", refuse)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(HpcprofError, match=rf"^{private.path} cannot be read: Permission denied"):
        runs_in(private.path)
    assert [row.run for row in list_runs(tmp_path / "runs", str(tmp_path / "hpcprof.db"))] == [private.id]


def test_the_name_of_its_only_profile_finds_a_run(tmp_path: Path) -> None:
    one, other, two = (profile_in(tmp_path / name) for name in ("one", "other", "two"))
    store = Store(store_url(str(tmp_path / "hpcprof.db"), Path()))
    store.prepare()
    for run, files in (
        (one, ["train.sqlite"]),
        (other, ["train_b.sqlite"]),
        (two, ["data.json", "eval.json"]),
    ):
        results = [
            RankResults(ProfileRow(run.id, rank, file, "0" * 64, 1, "nsys", "node", "", "", None, 1), {})
            for rank, file in enumerate(files)
        ]
        store.put_profiles(RunRow(run.id, str(run.path), None, None, None), results)
    for name, run in (("train", one), ("train.sqlite", one), ("train_b", other)):
        assert find_known_run(name, tmp_path / "runs", store).id == run.id
    for name in ("trai", "eval", "%"):
        with pytest.raises(UsageError, match="unknown run"):
            find_known_run(name, tmp_path / "runs", store)


def test_a_folder_above_has_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = profile_in(tmp_path / "traces")
    (run.path / "inside").mkdir()
    monkeypatch.chdir(run.path / "inside")
    store = store_with(tmp_path / "hpcprof.db")
    for name in ("..", "../../traces"):
        assert find_known_run(name, tmp_path / "runs", store) == run
    (found,) = runs_of_files([Path("../rank0.sqlite")])
    assert (found.id, found.path) == (run.id, run.path)
