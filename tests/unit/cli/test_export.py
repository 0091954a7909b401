"""``hpcprof export`` tells a run from a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from hpcprof.cli.export import command as export
from hpcprof.common.errors import UsageError
from hpcprof.report.trace_events import Exported
from hpcprof.runs.directory import Run


def test_a_run_in_place_of_the_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "hpcprof.runs.directory.find_runs", lambda name, runs: [Run("20261129-cg-79d1", tmp_path)]
    )
    done = CliRunner().invoke(export, ["--to", "csv", "cg"])
    assert done.exit_code == 2
    assert "cg is the run 20261129-cg-79d1: give the folder to write to after it" in done.stderr
    done = CliRunner().invoke(export, ["--to", "csv", "20261129-cg-79d1"])
    assert "20261129-cg-79d1 is a run: give the folder to write to after it" in done.stderr


def test_the_name_of_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    for name in ("cg.json", "cg.json.gz"):
        done = CliRunner().invoke(export, ["--to", "perfetto", "cg", str(tmp_path / name)])
        assert isinstance(done.exception, UsageError)
        sentence = f"{name} is the name of a file: give a folder, such as {tmp_path / 'cg'}."
        assert str(done.exception).endswith(sentence)


def test_the_folder_may_be_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Path]] = []

    def export_run(run: str, _: object, folder: Path, **options: object) -> tuple[str, Exported]:
        calls.append((run, folder))
        return run, Exported([folder / "kernels.csv"], [])

    monkeypatch.setattr("hpcprof.report.exports.export_run", export_run)
    for words, run in (([], "last"), (["cg"], "cg")):
        done = CliRunner().invoke(export, ["--to", "csv", *words, "-o", str(tmp_path / "tables")])
        assert (done.exit_code, calls.pop()) == (0, (run, tmp_path / "tables"))
    done = CliRunner().invoke(export, ["--to", "csv", "cg", "tables", "--output", "other"])
    assert (
        str(done.exception)
        == "give the folder to write to, once, preceded by a run if it is not the last one."
    )
