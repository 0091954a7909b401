"""``hpcprof scrub`` takes files and runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.cli.scrub import _files_of
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.runs.directory import Run

_FIND = "hpcprof.results.collect.run_names.find_known_runs"


def test_a_run_means_its_profiles_and_a_file_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = tmp_path / "rank0.sqlite"
    profile.touch()
    runs = {"run": Run("run", tmp_path, files=(profile,)), "empty": Run("empty", tmp_path, files=())}
    monkeypatch.setattr(_FIND, lambda names, *_: [runs[names[0]]])
    assert _files_of("run") == _files_of(str(profile)) == [profile]
    with pytest.raises(HpcprofError, match="empty has no profiles to scrub"):
        _files_of("empty")


def test_a_report_of_a_run_means_the_export_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run("run", tmp_path, files=(tmp_path / "rank0.nsys-rep",))
    monkeypatch.setattr(_FIND, lambda *_: [run])
    monkeypatch.setattr(
        "hpcprof.profiles.readers.discovery.file_to_read", lambda path: path.with_suffix(".sqlite")
    )
    assert _files_of("run") == [tmp_path / "rank0.sqlite"]


def test_a_name_of_neither_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"nothing\.sqlite"):
        _files_of("nothing.sqlite")
