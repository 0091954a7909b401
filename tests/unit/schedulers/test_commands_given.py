"""Which commands the schedulers run, with which arguments: seen by programs that stand for them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from hpcprof.errors import SchedulerError
from hpcprof.schedulers.base import JobState
from hpcprof.schedulers.pbs import PbsScheduler
from hpcprof.schedulers.slurm import SlurmScheduler
from tests.unit.schedulers.conftest import MakeRun

Fake = Callable[..., None]
Calls = Callable[[], list[list[str]]]


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    def read() -> list[list[str]]:
        path = tmp_path / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    return read


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put a program on the PATH that notes its arguments, prints a text and exits with a code."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, out: str = "", error: str = "", code: int = 0) -> None:
        (folder / name).write_text(
            f"#!{sys.executable}\n"
            "import json, sys\n"
            f"with open({str(tmp_path / 'calls')!r}, 'a') as file:\n"
            f"    print(json.dumps([{name!r}, *sys.argv[1:]]), file=file)\n"
            f"sys.stdout.write({out!r})\n"
            f"sys.stderr.write({error!r})\n"
            f"sys.exit({code})\n"
        )
        (folder / name).chmod(0o755)

    return make


def squeue_line(job_id: str, state: str, reason: str = "None") -> str:
    return f"{job_id:40}{state:24}{'0':12}{'N/A':24}{reason:200}\n"


def test_slurm_asks_once_for_the_queue_and_once_for_what_has_left_it(
    fake: Fake, calls: Calls, make_run: MakeRun
) -> None:
    fake("squeue", squeue_line("1", "RUNNING"))
    fake("sacct", "2|FAILED|3:0|2026-11-21T02:15:55\n3|COMPLETED|0:0|2026-11-21T02:15:55\n")
    runs = [make_run("1"), make_run("2"), make_run("3", finished="0"), make_run("4", finished="5")]
    states = SlurmScheduler().poll(runs)
    assert [states[run.id].state for run in runs] == [
        JobState.RUNNING,
        JobState.FAILED,
        JobState.COMPLETED,
        JobState.FAILED,
    ]
    squeue, sacct = calls()
    assert "--jobs=1,2,3,4" in squeue
    assert "--jobs=2,3,4" in sacct
    since = datetime(2026, 11, 21, 2, 15, 54, tzinfo=timezone.utc).astimezone()
    assert f"--starttime={since:%Y-%m-%dT%H:%M:%S}" in sacct


def test_slurm_without_accounting_judges_by_the_runs_own_files(fake: Fake, make_run: MakeRun) -> None:
    fake("squeue", error="slurm_load_jobs error: Invalid job id specified\n", code=1)
    fake("sacct", error="Slurm accounting storage is disabled\n", code=1)
    runs = [make_run("1", finished="0"), make_run("2", started="now", unfinished="0")]
    states = SlurmScheduler().poll(runs)
    assert [states[run.id].state for run in runs] == [JobState.COMPLETED, JobState.FAILED]


def test_slurm_asks_each_cluster_for_its_own_jobs(fake: Fake, calls: Calls, make_run: MakeRun) -> None:
    fake("squeue", "CLUSTER: any\n" + squeue_line("7", "RUNNING"))
    runs = [make_run("7;alps"), make_run("7;daint")]
    assert [s.state for s in SlurmScheduler().poll(runs).values()] == [JobState.RUNNING] * 2
    assert [[word for word in call if word.startswith(("--jobs", "--clusters"))] for call in calls()] == [
        ["--jobs=7", "--clusters=alps"],
        ["--jobs=7", "--clusters=daint"],
    ]


def test_a_job_with_a_dependency_is_killed_when_that_can_not_come_true(
    fake: Fake, calls: Calls, make_run: MakeRun
) -> None:
    fake("squeue", squeue_line("5", "RUNNING") + squeue_line("6", "PENDING", "Priority"))
    fake("sbatch", "8\n")
    run = make_run("")
    assert SlurmScheduler().submit(run, ["5", "6"]) == "8"
    script = str(run.path / "job.sh")
    assert calls()[-1] == [
        "sbatch",
        "--parsable",
        "--dependency=afterok:5:6",
        "--kill-on-invalid-dep=yes",
        script,
    ]


def test_slurm_runs_a_job_after_one_that_is_not_known_so_it_is_refused_before(
    fake: Fake, calls: Calls, make_run: MakeRun
) -> None:
    fake("squeue", error="slurm_load_jobs error: Invalid job id specified\n", code=1)
    fake("sacct")
    with pytest.raises(SchedulerError, match="job 999999, to run after, is not known to the scheduler"):
        SlurmScheduler().submit(make_run(""), ["999999"])
    assert "sbatch" not in [call[0] for call in calls()]


def test_a_job_that_has_succeeded_is_not_waited_for(fake: Fake, calls: Calls, make_run: MakeRun) -> None:
    fake("qstat", json.dumps({"Jobs": {"5.s": {"job_state": "F", "substate": 92, "Exit_status": 0}}}))
    fake("qsub", "8.s\n")
    run = make_run("")
    assert PbsScheduler().submit(run, ["5.s"]) == "8.s"
    assert calls()[-1] == ["qsub", str(run.path / "job.sh")]


def test_pbs_is_asked_for_one_id_a_question_and_an_unknown_one_does_not_lose_the_others(
    fake: Fake, calls: Calls, make_run: MakeRun
) -> None:
    fake("qstat", json.dumps({"Jobs": {"1.s": {"job_state": "R"}}}))
    runs = [make_run("1.s"), make_run("2.s", finished="0")]
    states = PbsScheduler().poll(runs)
    assert [states[run.id].state for run in runs] == [JobState.RUNNING, JobState.COMPLETED]
    assert calls() == [["qstat", "-x", "-f", "-F", "json", job_id] for job_id in ("1.s", "2.s")]


def test_a_job_whose_answer_cannot_be_read_is_unknown_with_the_reason(fake: Fake, make_run: MakeRun) -> None:
    fake("qstat", "PBS is being updated")
    run = make_run("1.s")
    present = PbsScheduler().poll([run])[run.id]
    assert (present.state, "not valid" in present.reason) == (JobState.UNKNOWN, True)


def test_a_machine_without_the_schedulers_commands_leaves_the_state_unknown(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run = make_run("1.s")
    present = PbsScheduler().poll([run])[run.id]
    assert present.state is JobState.UNKNOWN
    assert present.reason == "qstat is not on the PATH: is this a login node of the site?"
    with pytest.raises(SchedulerError, match="was not cancelled: qstat is not on the PATH"):
        PbsScheduler().cancel(run)
