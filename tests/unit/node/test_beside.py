"""The looks of the process beside the ranks: what they ask of the file system of a run with many ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcprof.node.beside import Leftovers, Signals
from hpcprof.node.failures import Failures
from hpcprof.node.stalls import Process, ended_ranks, waiting_ranks


def profiler(rank: int, scratch: Path) -> Process:
    """Return a profiler of a rank; it is this process."""
    marks = {"HPCPROF_RANK": str(rank), "HPCPROF_PROFILER": "nsys", "TMPDIR": str(scratch)}
    return Process(os.getpid(), {key.encode(): text.encode() for key, text in marks.items()})


def test_a_node_lists_no_folder_of_the_run_and_asks_for_its_own_ranks_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "started").write_text("now\n")
    for rank in range(0, 1000, 5):
        (state / f"rank{rank:05d}.exit").write_text("0\n")
    here = [profiler(rank, tmp_path / "hpcprof.x") for rank in range(4, 8)]
    asked: list[str] = []

    def noted(name: str) -> None:
        function = getattr(os, name)

        def call(path: str, *rest: object, **options: object) -> object:
            asked.append(f"{name} {path}")
            return function(path, *rest, **options)

        monkeypatch.setattr(os, name, call)

    lookers = [Signals(str(tmp_path)), Leftovers(str(tmp_path), 0), Failures(str(tmp_path), 30)]
    for name in ("listdir", "scandir", "stat"):
        noted(name)
    for looker in lookers:
        looker.look(here)  # type: ignore[attr-defined]
    in_state = [path for path in asked if f"{state}" in path]
    assert in_state == [f"stat {state}/failed.now"]
    (state / "failed.now").write_text("9 1\n")
    del asked[:]
    lookers[-1].look(here)  # type: ignore[attr-defined]
    in_state = [path for path in asked if f"{state}" in path]
    assert in_state == [f"stat {state}/failed.now", *(f"stat {state}/rank{r:05d}.exit" for r in range(4, 8))]
    assert ended_ranks(str(tmp_path), {4, 5, 6}) == {5}


def test_a_profiler_waits_if_its_program_has_left_a_code_in_its_scratch_folder(tmp_path: Path) -> None:
    scratch, other = tmp_path / "hpcprof.abc", tmp_path / "mine"
    for folder in (scratch, other):
        folder.mkdir()
    assert waiting_ranks([profiler(1, scratch)]) == set()
    for folder in (scratch, other):
        (folder / "code").write_text("0\n")
    # Another folder for temporary files has files of the user's.
    assert waiting_ranks([profiler(1, scratch), profiler(2, other)]) == {1}
