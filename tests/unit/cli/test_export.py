"""``hpcprof export`` tells a run from a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcprof.cli.export import command as export
from hpcprof.common.errors import UsageError
from hpcprof.runs.directory import Run


def test_a_run_in_place_of_the_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "hpcprof.runs.directory.find_runs", lambda name, runs: [Run("20261129-cg-79d1", tmp_path)]
    )
    done = CliRunner().invoke(export, ["--to", "csv", "cg"])
    assert done.exit_code == 2
    assert "cg is the run 20261129-cg-79d1: give the folder to write to after it" in done.stderr


def test_the_name_of_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(export, ["--to", "perfetto", "cg", str(tmp_path / "cg.json")])
    assert isinstance(done.exception, UsageError)
    assert f"cg.json is the name of a file: give a folder, such as {tmp_path / 'cg'}" in str(done.exception)
