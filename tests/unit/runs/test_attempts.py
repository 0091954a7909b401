"""Attempts of a run: the folders of a job that was started more than once."""

from __future__ import annotations

from pathlib import Path

from hpcprof.runs.directory import Run


def test_profiles_are_those_of_the_last_attempt_that_has_any(tmp_path: Path) -> None:
    run = Run("run", tmp_path)
    assert (run.attempt, run.outputs(), run.profiled_attempt()) == (1, tmp_path, 1)
    (tmp_path / "state").mkdir()
    (tmp_path / "state/attempt").write_text("3\n")
    assert run.outputs() == tmp_path / "attempts/3"
    assert run.profiled_attempt() == 3
    profiles = tmp_path / "attempts/2/profiles"
    profiles.mkdir(parents=True)
    (profiles / ".hidden").touch()
    assert run.profiled_attempt() == 3
    (profiles / "rank00000.sqlite").touch()
    assert run.profiled_attempt() == 2
