"""The command that submits a run for every combination of parameters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcprof.runs.directory import all_runs, sweep_of
from tests.conftest import Hpcprof
from tests.waiting import until


def test_a_sweep_submits_a_run_for_every_combination(hpcprof: Hpcprof, tmp_path: Path) -> None:
    done = hpcprof("sweep", "-P", "a=1,2", "-P", "b=x,y", "--", "echo", "{a}{b}")
    assert done.returncode == 0, done.stderr
    submitted = [line for line in done.stdout.splitlines() if line.startswith("submitted")]
    assert len(submitted) == 4
    assert len(list((tmp_path / "runs").iterdir())) == 4


def test_nothing_is_submitted_when_one_combination_is_wrong(hpcprof: Hpcprof, tmp_path: Path) -> None:
    done = hpcprof(
        "sweep", "--ranks-per-node", "2", "--workload", "sequence-parallel", "-P", "sequence-length=256,255"
    )
    assert done.returncode == 2
    assert "255 is not divisible" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_an_array_is_shown_and_nothing_is_submitted(hpcprof: Hpcprof, tmp_path: Path) -> None:
    sweep = ("sweep", "--site", "generic-slurm", "--walltime", "5m", "--array", "--at-once", "3")
    done = hpcprof(*sweep, "-P", "n=1,2,3,4", "--dry-run", "--", "echo", "{n}")
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()[:5]] == [
        ["run", "arguments"],
        *[[str(n - 1), "echo", str(n)] for n in (1, 2, 3, 4)],
    ]
    assert "#SBATCH --array=0-3%3" in done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--array", "-P", "n=1,2", "--", "echo", "{n}"], "site local has no job arrays; leave --array out"),
        (
            ["--site", "generic-slurm", "--at-once", "2", "-P", "n=1,2", "--", "echo", "{n}"],
            "--at-once needs --array",
        ),
        (
            ["--site", "generic-pbs", "--array", "-P", "n=1", "--", "echo", "{n}"],
            "an array of PBS has at least 2 members",
        ),
        (
            ["--site", "generic-slurm", "--array", "-P", "n=1,2", "--", "{n}"],
            "the runs differ in #SBATCH --job-name=1 and #SBATCH --job-name=2",
        ),
    ],
)
def test_what_can_be_no_array_is_one_sentence(
    arguments: list[str], words: str, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    done = hpcprof("sweep", "--dry-run", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    # The first of a day notes that nodes may not share /tmp.
    lines = [line for line in done.stderr.splitlines() if not line.startswith("hpcprof: note: ")]
    assert len(lines) == 1
    assert not (tmp_path / "runs").exists()


def test_a_sweep_that_waits_tells_whether_all_runs_succeeded(hpcprof: Hpcprof) -> None:
    done = hpcprof("sweep", "--wait", "-P", "n=0,3", "--", "sh", "-c", "exit {n}")
    assert done.returncode == 1
    last = done.stdout.splitlines()[-2:]
    assert [line.split()[1] for line in last] == ["completed", "failed"], done.stdout
    assert hpcprof("sweep", "--wait", "-P", "n=0", "--", "sh", "-c", "exit {n}").returncode == 0
    sweep = sweep_of(done.stdout.split("submitted ")[1].split()[0])
    (named,) = [
        line.split()[-1] for line in done.stdout.splitlines() if line.startswith("the runs are one sweep")
    ]
    assert sweep is not None and named.endswith(sweep)
    states = hpcprof("status", named).stdout
    assert f"{sweep}.0" in states and f"{sweep}.1" in states
    rows = json.loads(hpcprof("report", sweep, "--format", "json").stdout)
    assert [(row["run"], row["parameters"]) for row in rows] == [
        (f"{sweep}.0", "c=exit 0"),
        (f"{sweep}.1", "c=exit 3"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "most"), [((), 1), (("--at-once", "2"), 2)], ids=["default", "2"])
def test_on_this_machine_so_many_runs_go_at_once(
    options: Sequence[str], most: int, hpcprof: Hpcprof, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    wait = f'while [ ! -e "{go}" ]; do sleep 0.05; done'
    program = f'date +%s%N >"$HPCPROF_RUN_DIR/begin"; {wait}; date +%s%N >"$HPCPROF_RUN_DIR/end"; exit {{n}}'
    done = hpcprof("sweep", *options, "-P", "n=0,3,4,5", "--", "sh", "-c", program)
    assert done.returncode == 0, done.stderr
    queued = hpcprof("status").stdout
    assert "queued" in queued
    assert "waits for the end of" in " ".join(queued.split())
    until(lambda: len(list(tmp_path.glob("runs/*/begin"))) == most)
    go.touch()
    hpcprof("status", "--watch", *[run.id for run in all_runs(tmp_path / "runs")])
    spans = [
        tuple(int((run.path / name).read_text()) for name in ("begin", "end"))
        for run in all_runs(tmp_path / "runs")
    ]
    # The runs start in the order of the sweep, those that start together in any.
    assert all(before < begin for (before, _), (begin, _) in zip(spans, spans[most:], strict=False))
    together = [sum(begin <= other[0] < end for other in spans) for begin, end in spans]
    assert (len(spans), max(together)) == (4, most)


@pytest.mark.slow
def test_cancelling_the_runs_of_a_sweep_starts_none_of_those_that_wait(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    hpcprof("sweep", "-P", "n=300,301,302", "--", "sleep", "{n}")
    runs = all_runs(tmp_path / "runs")
    done = hpcprof("cancel", *[run.id for run in runs])
    assert done.stdout.count("cancelled") == 3, done.stderr
    assert [run.state_file("started") is not None for run in runs][1:] == [False, False]
