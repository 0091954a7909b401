"""``hpcprof export`` tells a run from a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcprof.cli.export import command as export
from hpcprof.runs.directory import Run


def test_a_run_in_place_of_the_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "hpcprof.runs.directory.find_runs", lambda name, runs: [Run("20261129-cg-79d1", tmp_path)]
    )
    done = CliRunner().invoke(export, ["--to", "csv", "cg"])
    assert done.exit_code == 2
    assert "cg is the run 20261129-cg-79d1: give the folder to write to after it" in done.stderr
