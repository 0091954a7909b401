"""A collect submitted as a job on the site of its run; on other schedulers in ``test_schedulers.py``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcprof.runs.directory import all_runs
from hpcprof.submit.launchers import find_mpiexec
from tests.conftest import Hpcprof
from tests.data.many_ranks import write_all
from tests.integration.conftest import Database
from tests.waiting import until

RANKS = 4


@pytest.fixture
def run(hpcprof: Hpcprof, tmp_path: Path) -> Path:
    """A run on this machine, with profiles of some ranks."""
    assert hpcprof("submit", "--ranks-per-node", "3", "--wait", "--", "true").returncode == 0
    (found,) = all_runs(tmp_path / "runs")
    write_all(found.path / "profiles", RANKS, 200)
    return found.path


@pytest.mark.parametrize(
    "executor",
    [
        ["--jobs", "2"],
        pytest.param(
            ["--executor", "mpi", "--jobs", "2"],
            marks=pytest.mark.skipif(find_mpiexec() is None, reason="there is no mpiexec"),
        ),
    ],
    ids=["two processes", "mpi"],
)
def test_a_submitted_collect_makes_the_store_that_a_collect_makes(
    executor: list[str], hpcprof: Hpcprof, run: Path, tmp_path: Path
) -> None:
    hpcprof("collect", "--db", "reference.db", run.name)
    done = hpcprof("collect", "--submit", *executor, "--db", "job.db", run.name)
    assert done.returncode == 0, done.stderr
    (job,) = all_runs(run / "collect")
    assert done.stdout.endswith(f"hpcprof status {job.path.relative_to(tmp_path)}\n")
    until(lambda: job.state_file("finished") is not None)
    assert job.state_file("finished") == "0", (job.path / "logs/rank00000.err").read_text()
    assert f"{RANKS} profiles collected" in (job.path / "logs/rank00000.out").read_text()
    assert Database(str(tmp_path / "job.db")).dump() == Database(str(tmp_path / "reference.db")).dump()
    until(lambda: "completed" in hpcprof("status", str(job.path)).stdout)


def test_the_job_of_a_collect_is_no_run_of_the_folder(hpcprof: Hpcprof, run: Path, tmp_path: Path) -> None:
    hpcprof("collect", "--submit")
    assert [found.path for found in all_runs(tmp_path / "runs")] == [run]
    (job,) = all_runs(run / "collect")
    until(lambda: job.state_file("finished") is not None)
    assert hpcprof("report", "--analysis", "breakdown", "--format", "json", "last").returncode == 0


def test_over_mpi_the_job_has_the_ranks_of_the_run_or_those_asked_for(hpcprof: Hpcprof, run: Path) -> None:
    for jobs in (None, 2):
        hpcprof("collect", "--submit", "--executor", "mpi", *(["--jobs", str(jobs)] if jobs else []))
    manifests = [json.loads((job.path / "run.json").read_text()) for job in all_runs(run / "collect")]
    assert [manifest["job"]["ranks_per_node"] for manifest in manifests] == [3, 2]
    for job in all_runs(run / "collect"):
        hpcprof("cancel", str(job.path))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--queue", "debug"], "--queue is for --submit"),
        (["--submit", "--nodes", "2"], "--nodes 2: processes run on one node; give --executor mpi"),
        (["--submit", "--executor", "mpi", "--jobs", "1"], "needs at least two ranks"),
        (["--submit", "--walltime", "soon"], "soon"),
        (["--submit", "--db", "postgresql+psycopg://me:hush@host/results"], "holds a password"),
        (["--submit", "--db", "postgresql+psycopg://me@host/results?password=hush"], "holds a password"),
        (["--submit", "profiles"], "did not submit, so its site is unknown"),
    ],
)
def test_what_can_be_no_job_is_one_sentence_and_nothing_is_submitted(
    words: list[str], says: str, hpcprof: Hpcprof, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "profiles").mkdir()
    done = hpcprof("collect", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert "hush" not in done.stderr + done.stdout
    assert not (run / "collect").exists()


def test_a_run_that_has_not_ended_is_waited_for_or_refused(hpcprof: Hpcprof, tmp_path: Path) -> None:
    hpcprof("submit", "--", "sleep", "300")
    done = hpcprof("collect", "--submit")
    hpcprof("cancel", "last")
    assert done.returncode == 1
    assert "this machine has no queue to wait in: submit the job when the other run has ended" in done.stderr
    assert not list(tmp_path.glob("runs/*/collect/2*"))
