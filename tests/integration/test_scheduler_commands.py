"""The commands that the schedulers run and their arguments, as programs that stand for them see them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest

from hpcprof.common.errors import SchedulerError
from hpcprof.submit.schedulers.base import JobState
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.sites.files import load_site
from hpcprof.submit.submission import submit_array
from tests.jobs import make_job
from tests.submitted_run import MakeRun

SLURM, PBS = (find_scheduler(name).client() for name in ("slurm", "pbs"))
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
    states = SLURM.poll(runs)
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


def test_slurm_asks_each_cluster_for_its_own_jobs(fake: Fake, calls: Calls, make_run: MakeRun) -> None:
    fake("squeue", "CLUSTER: any\n" + squeue_line("7", "RUNNING"))
    runs = [make_run("7;alps"), make_run("7;daint")]
    assert [s.state for s in SLURM.poll(runs).values()] == [JobState.RUNNING] * 2
    assert [[word for word in call if word.startswith(("--jobs", "--clusters"))] for call in calls()] == [
        ["--jobs=7", "--clusters=alps"],
        ["--jobs=7", "--clusters=daint"],
    ]


def test_a_job_with_a_dependency_is_killed_when_that_can_not_come_true(
    fake: Fake, calls: Calls, make_run: MakeRun
) -> None:
    fake("sbatch", "8\n")
    run = make_run("")
    assert SLURM.submit(run, ["5", "6"]) == "8"
    script = str(run.path / "job.sh")
    assert calls()[-1] == [
        "sbatch",
        "--parsable",
        "--dependency=afterok:5:6",
        "--kill-on-invalid-dep=yes",
        script,
    ]
    (run.path / "job.sh").write_text("#!/bin/sh\n#SBATCH --kill-on-invalid-dep=no\n")
    SLURM.submit(run, ["5"])
    assert calls()[-1][2] == "--dependency=afterok:5" and "--kill-on-invalid-dep=yes" not in calls()[-1]


def test_the_logs_of_a_plain_script_are_those_of_the_run(fake: Fake, calls: Calls, make_run: MakeRun) -> None:
    fake("sbatch", "8\n")
    fake("qsub", "8.server\n")
    run = make_run("")
    script, logs = run.path / "job.sh", run.path / "logs"
    script.write_text("#!/bin/sh\ntrue\n")
    SLURM.submit(run)
    PBS.submit(run)
    out, err = str(logs / "job.out"), str(logs / "job.err")
    assert calls() == [
        ["sbatch", "--parsable", "--output", out, "--error", err, str(script)],
        ["qsub", "-o", out, "-e", err, str(script)],
    ]
    script.write_text(f"#!/bin/sh\n#SBATCH --output={out}\n")
    SLURM.submit(run)
    assert calls()[-1] == ["sbatch", "--parsable", str(script)]


def test_pbs_is_asked_for_one_id_a_question_and_an_unknown_one_does_not_lose_the_others(
    fake: Fake, calls: Calls, make_run: MakeRun
) -> None:
    fake("qstat", json.dumps({"Jobs": {"1.s": {"job_state": "R"}}}))
    runs = [make_run("1.s"), make_run("2.s", finished="0")]
    states = PBS.poll(runs)
    assert [states[run.id].state for run in runs] == [JobState.RUNNING, JobState.COMPLETED]
    assert calls() == [["qstat", "-x", "-f", "-F", "json", job_id] for job_id in ("1.s", "2.s")]


def test_pbs_many_jobs_are_asked_for_by_id_and_those_that_take_too_long_in_the_next_poll(
    fake: Fake, calls: Calls, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake("qstat", json.dumps({"Jobs": {"1.s": {"job_state": "R"}}}))
    runs = [make_run(f"{number}.s", finished="0") for number in range(1, 21)]
    PBS.poll(runs)
    assert [call[-1] for call in calls()] == [f"{number}.s" for number in range(1, 21)]
    monkeypatch.setattr("hpcprof.submit.schedulers.pbs.POLL_SECONDS", -1.0)
    late = PBS.poll(runs)[runs[0].id]
    assert (late.state, late.reason.partition(":")[0]) == (JobState.UNKNOWN, "not asked for")


def test_slurm_is_asked_for_an_array_once_and_not_for_each_member(
    fake: Fake, calls: Calls, make_run: MakeRun
) -> None:
    fake("squeue", squeue_line("7_0", "RUNNING") + squeue_line("7_[1-98%1]", "PENDING", "Priority"))
    fake("sacct", "7_99|FAILED|3:0|2026-11-21T02:15:55\n")
    runs = [make_run(f"7_{index}") for index in range(100)]
    states = SLURM.poll(runs)
    assert [states[runs[index].id].state for index in (0, 1, 98, 99)] == [
        JobState.RUNNING,
        JobState.QUEUED,
        JobState.QUEUED,
        JobState.FAILED,
    ]
    squeue, sacct = calls()
    assert {"--jobs=7", "--array"} <= set(squeue)
    assert "--jobs=7" in sacct


def test_slurm_an_array_under_its_plain_id_stands_for_members_without_a_record(
    fake: Fake, make_run: MakeRun
) -> None:
    fake("squeue", squeue_line("11", "CANCELLED") + squeue_line("11_0", "RUNNING"))
    runs = [make_run("11_0"), make_run("11_5")]
    states = SLURM.poll(runs)
    assert [states[run.id].state for run in runs] == [JobState.RUNNING, JobState.CANCELLED]


def test_slurm_a_member_that_no_command_knows_is_judged_by_its_own_files(
    fake: Fake, make_run: MakeRun
) -> None:
    fake("squeue", squeue_line("7_0", "RUNNING"))
    fake("sacct", error="Slurm accounting storage is disabled\n", code=1)
    runs = [make_run("7_1", finished="0"), make_run("7_2", cancelled="by hpcprof cancel")]
    states = SLURM.poll(runs)
    assert [states[run.id].state for run in runs] == [JobState.COMPLETED, JobState.CANCELLED]


def test_slurm_members_are_held_before_they_are_cancelled_and_all_by_one_command(
    fake: Fake, calls: Calls, make_run: MakeRun
) -> None:
    fake(
        "squeue", squeue_line("7_0", "RUNNING") + squeue_line("7_1", "PENDING") + squeue_line("8", "RUNNING")
    )
    fake("scontrol", error="Job is no longer pending execution\n", code=1)
    fake("scancel")
    runs = [make_run("7_0"), make_run("7_1"), make_run("8")]
    SLURM.cancel(*runs)
    assert calls()[1:] == [["scontrol", "hold", "7_0,7_1"], ["scancel", "7_0", "7_1", "8"]]
    assert all(run.state_file("cancelled") for run in runs)


@pytest.mark.parametrize(
    ("printed", "ids"), [("8", ["8_0", "8_1", "8_2"]), ("8;alps", ["8_0;alps", "8_1;alps", "8_2;alps"])]
)
def test_slurm_an_array_is_one_sbatch_and_each_member_has_an_id(
    printed: str, ids: list[str], fake: Fake, calls: Calls, make_run: MakeRun, tmp_path: Path
) -> None:
    fake("sbatch", f"{printed}\n")
    members = [make_run(f"new{index}") for index in range(3)]
    assert SLURM.submit_array(tmp_path / "array.sh", members, "%a") == ids
    assert calls() == [["sbatch", "--parsable", str(tmp_path / "array.sh")]]


def test_an_array_that_is_refused_leaves_no_run(fake: Fake, calls: Calls, tmp_path: Path) -> None:
    fake("scontrol", "MaxArraySize            = 1001\n")
    site = load_site("generic-slurm")
    jobs = [make_job(site, arguments=["echo", text], walltime="5m") for text in ("plain", "no UTF-8: \udcff")]
    with pytest.raises(UnicodeEncodeError):
        submit_array(site, jobs, tmp_path / "runs", ["hpcprof"])
    assert list((tmp_path / "runs").iterdir()) == []
    assert [call[:2] for call in calls()] == [["scontrol", "ping"], ["scontrol", "show"]]


def test_pbs_an_array_is_one_qsub_and_one_question_for_all_its_members(
    fake: Fake, calls: Calls, make_run: MakeRun, tmp_path: Path
) -> None:
    fake("qsub", "8[].s\n")
    array = {"job_state": "B", "array_indices_submitted": "0-99", "array_indices_remaining": "1-99"}
    member = {"job_state": "R", "array_index": 0}
    fake("qstat", json.dumps({"Jobs": {"8[].s": array, "8[0].s": member}}))
    members = [make_run(f"new{index}") for index in range(100)]
    ids = PBS.submit_array(tmp_path / "array.sh", members, "^array_index^")
    assert (ids[0], ids[99]) == ("8[0].s", "8[99].s")
    runs = [make_run(job_id) for job_id in ids]
    states = PBS.poll(runs)
    assert [states[runs[index].id].state for index in (0, 99)] == [JobState.RUNNING, JobState.QUEUED]
    qsub, qstat = calls()
    assert qsub == ["qsub", str(tmp_path / "array.sh")]
    assert qstat == ["qstat", "-x", "-f", "-F", "json", "-t", "8[].s"]


def test_pbs_members_are_deleted_by_one_command(fake: Fake, calls: Calls, make_run: MakeRun) -> None:
    array = {"job_state": "B", "array_indices_submitted": "0-1", "array_indices_remaining": "0-1"}
    fake("qstat", json.dumps({"Jobs": {"8[].s": array}}))
    fake("qdel")
    PBS.cancel(make_run("8[0].s"), make_run("8[1].s"))
    assert calls()[-1] == ["qdel", "8[0].s", "8[1].s"]


def test_pbs_can_not_wait_for_the_success_of_a_member_so_that_is_refused(fake: Fake) -> None:
    array = {"job_state": "B", "array_indices_submitted": "0-1", "array_indices_remaining": "0-1"}
    fake("qstat", json.dumps({"Jobs": {"8[].s": array}}))
    with pytest.raises(SchedulerError, match=r"job 8\[1\]\.s, .*, is a member of an array"):
        PBS.unfinished(["8[1].s"])


def test_a_job_whose_answer_cannot_be_read_is_unknown_with_the_reason(fake: Fake, make_run: MakeRun) -> None:
    fake("qstat", "PBS is being updated")
    run = make_run("1.s")
    present = PBS.poll([run])[run.id]
    assert (present.state, "not valid" in present.reason) == (JobState.UNKNOWN, True)
