"""Ranks under a Python that is too old for the hook are named."""

from __future__ import annotations

from pathlib import Path

from hpcprof.runs.directory import Run
from hpcprof.runs.preparation import describe_old_pythons


def test_ranks_under_an_old_python_are_named_and_damaged_notes_are_not(tmp_path: Path) -> None:
    run = Run("a", tmp_path)
    assert describe_old_pythons(run) == ""
    (tmp_path / "state").mkdir()
    notes = {"00000": "2.7.18\n", "00001": "3.6.8\n", "00002": "3.6.8\n", "xx": "3.6.8\n", "00003": ""}
    for rank, text in notes.items():
        (tmp_path / f"state/rank{rank}.python").write_text(text)
    assert describe_old_pythons(run) == (
        "2.7.18 and 3.6.8 on ranks 0, 1, 2: steps and exceptions are noted from Python 3.8 on"
    )
