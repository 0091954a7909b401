"""A program runs as single ranks of a larger job."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from hpcprof.cli.study import command
from hpcprof.results.across import predictions
from hpcprof.study.runs import StudyRuns


def study(tmp_path: Path, *arguments: str) -> Any:
    return CliRunner().invoke(command, ["roles", "--runs-dir", str(tmp_path), *arguments])


def test_each_role_is_a_run_of_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = []

    def make(runs: StudyRuns, number: int, site: object, job: Any) -> Any:
        jobs.append(job)
        return SimpleNamespace(id=f"run-{number}", number=number)

    monkeypatch.setattr(StudyRuns, "make", make)
    monkeypatch.setattr(predictions, "measured_step", lambda run, store: (run.number * 10**6, 1))
    done = study(tmp_path, "--world-size", "8", "--roles", "6,0-1", "--", "python3", "-m", "train", "--big")
    assert done.exit_code == 0, done.output
    assert [job.profiler for job in jobs] == ["torch"] * 3
    assert [job.arguments[2:] for job in jobs] == [[rank, "8", "-m", "train", "--big"] for rank in "016"]
    assert (
        "Rank 6 takes longest: with communication a step of 8 ranks takes at least 3.000 ms." in done.output
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--roles", "1,9-12", "--", "python", "x.py"], "--roles 9: 8 ranks are numbered from 0 to 7."),
        (["--roles", "x", "--", "python", "x.py"], "--roles x: give ranks such as 0,4-7."),
        (["--roles", "0", "--", "./train.sh"], "needs a Python program after --, such as python train.py."),
        (["--roles", "0", "--workload", "ddp"], "needs a Python program after --"),
        (["--roles", "0", "--ranks-per-node", "2", "--", "python", "x.py"], "runs one rank at a time"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = study(tmp_path, "--world-size", "8", *arguments)
    assert said in f"{done.exception}{done.output}"
