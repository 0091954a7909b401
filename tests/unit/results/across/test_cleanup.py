"""Removing the directory of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.results.across.cleanup import check_in_runs_dir, remove_directory, size_of
from hpcprof.runs.directory import Run, open_run, save
from tests.submitted_run import MakeRun
from tests.submitted_run import make_run as make_run


def test_a_removed_run_leaves_what_its_links_point_to(make_run: MakeRun, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "precious").write_text("x")
    run = save(make_run(started="now"))
    (run.path / "profiles").symlink_to(data)
    (run.path / "state" / "link").symlink_to(data / "precious")
    remove_directory(run)
    assert not run.path.exists()
    assert (data / "precious").read_text() == "x"


def test_the_manifest_goes_last_so_that_a_removal_can_be_repeated(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = save(make_run(started="now"))
    (run.path / "job.sh").write_text("")

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(HpcprofError, match=r"cannot remove .*job.sh: Permission denied"):
            remove_directory(run)
    remove_directory(open_run(run.path))
    assert not run.path.exists()


def test_a_run_elsewhere_or_behind_a_link_is_refused(make_run: MakeRun, tmp_path: Path) -> None:
    run = save(make_run())
    check_in_runs_dir(run, tmp_path)
    runs = tmp_path / "runs"
    runs.mkdir()
    with pytest.raises(UsageError, match=f"is not in {runs}: give --runs-dir {tmp_path}"):
        check_in_runs_dir(run, runs)
    (runs / "linked").symlink_to(run.path)
    with pytest.raises(UsageError, match="is a link to"):
        check_in_runs_dir(open_run(runs / "linked"), runs)


def test_the_directory_of_an_array_goes_with_its_last_member(make_run: MakeRun, tmp_path: Path) -> None:
    sweep = tmp_path / "20261121-021554-job-3fa9"
    sweep.mkdir()
    (sweep / "array.sh").write_text("")
    members = []
    for index in (0, 1):
        made = make_run(str(index))
        path = made.path.rename(sweep.with_name(f"{sweep.name}.{index}"))
        members.append(save(Run(path.name, path, made.manifest)))
    remove_directory(members[0])
    assert sweep.is_dir()
    remove_directory(members[1])
    assert not list(tmp_path.iterdir())


def test_the_size_of_a_folder_counts_files_and_not_what_links_point_to(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one").write_bytes(bytes(1000))
    (tmp_path / "a/two").write_bytes(bytes(24))
    big = tmp_path / "big"
    big.write_bytes(bytes(10**6))
    (tmp_path / "a/link").symlink_to(big)
    assert size_of(tmp_path / "a") == 1024 + len(str(big))
