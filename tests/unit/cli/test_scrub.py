"""``hpcprof scrub`` takes files and runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcprof.cli.scrub import _files_of
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.runs.directory import Run


def test_a_run_means_its_profiles_and_a_file_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = tmp_path / "rank0.sqlite"
    profile.touch()
    runs = {"run": Run("run", tmp_path, files=(profile,)), "empty": Run("empty", tmp_path, files=())}
    monkeypatch.setattr("hpcprof.runs.directory.find_runs", lambda name, _: [runs[name]])
    assert _files_of("run") == _files_of(str(profile)) == [profile]
    with pytest.raises(HpcprofError, match="empty has no profiles to scrub"):
        _files_of("empty")


def test_a_name_of_neither_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"nothing\.sqlite"):
        _files_of("nothing.sqlite")
