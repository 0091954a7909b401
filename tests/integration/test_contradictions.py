"""No two places contradict each other about a run: every figure that several of them show is one."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks.contradictions import compared, compared_notes
from hpcprof.results.api import Results
from hpcprof.results.collect.run_names import find_known_run
from hpcprof.results.store.store import open_store
from hpcprof.runs.directory import save
from tests.conftest import Hpcprof
from tests.data.many_ranks import write_program
from tests.data.parallel_program import Program
from tests.integration.conftest import unpack, unpack_mpi
from tests.submitted_run import MakeRun

RUNS: dict[str, Callable[[Path], object]] = {
    "imported": unpack,
    "mpi": unpack_mpi,
    "partial": partial(write_program, program=Program(4, 300, missing=frozenset({3}))),
    "late": partial(write_program, program=Program(4, 300, stalled={1: 6.0})),
}


def printed(hpcprof: Hpcprof, *words: str) -> str:
    """Return what a command prints."""
    done = hpcprof(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", RUNS)
def test_every_place_says_the_same_of_a_run(
    kind: str, hpcprof: Hpcprof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    RUNS[kind](tmp_path / kind)
    command = partial(printed, hpcprof)
    command("collect", kind)
    store = open_store(None, tmp_path / "runs")
    run = Results(find_known_run(kind, tmp_path / "runs", store), store)
    every = [*compared(run, command)]
    assert len(every) > 100
    assert [one for one in every if one.differs] == []


def test_every_place_says_the_same_of_steps_that_only_the_program_noted(
    hpcprof: Hpcprof, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    run = save(make_run(finished="0", started="2026-11-21T02:16:00Z"))
    ms, since = 1_000_000, 1795227360
    lines = [{"time": since + at, "step": at, "steps": 1, "wall_ns": 400 * ms} for at in range(12)]
    lines += [
        {"time": since + 12 + at, "step": 111 + 100 * at, "steps": 100, "wall_ns": 10 * ms} for at in (0, 1)
    ]
    (run.path / "state/steps").mkdir()
    text = "".join(f"{json.dumps(one | {'max_ns': one['wall_ns']})}\n" for one in lines)
    (run.path / "state/steps/rank00000.jsonl").write_text(text)
    command = partial(printed, hpcprof)
    explained = " ".join(command("explain", run.id, "--runs-dir", str(tmp_path)).split())
    assert "of 212 steps that the program noted on 1 rank" in explained
    every = [*compared_notes(run, command)]
    assert [one for one in every if one.differs] == []
