"""Jobs on this machine, through the command line: states, walltime, cancelling, crashes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcprof.runs.directory import all_runs
from hpcprof.submit.schedulers.local.supervisor import end_processes, processes_of
from tests.conftest import INTERRUPTED, Hpcprof
from tests.integration.mpi import forking_python
from tests.waiting import until

pytestmark = pytest.mark.slow

WAIT_FOR_GO = 'while [ ! -e "$HPCPROF_RUN_DIR/go" ]; do sleep 0.05; done'


def started(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start an hpcprof that the test goes on beside."""
    command = [sys.executable, "-m", "hpcprof", *arguments]
    return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_of(tmp_path: Path) -> Path:
    (run,) = all_runs(tmp_path / "runs")
    return run.path


def state(hpcprof: Hpcprof) -> str:
    return hpcprof("status", "last").stdout.splitlines()[1].split()[1]


def supervisor(run: Path) -> int:
    return int((run / "state/supervisor").read_text().split()[0])


@pytest.fixture
def run(hpcprof: Hpcprof, tmp_path: Path) -> Path:
    """A run that goes on for long."""
    hpcprof("submit", "--", "sleep", "300")
    until(lambda: state(hpcprof) == "running")
    return run_of(tmp_path)


def kill_supervisor(run: Path) -> None:
    os.kill(supervisor(run), signal.SIGKILL)
    until(lambda: not alive(supervisor(run)))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_job_that_succeeds_is_completed_and_leaves_a_whole_run_directory(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    done = hpcprof("submit", "--ranks-per-node", "2", "--wait", "--", "sh", "-c", "echo $HPCPROF_RANK")
    assert done.returncode == 0, done.stderr
    run = run_of(tmp_path)
    assert (run / "state/finished").read_text() == "0\n"
    assert (run / "logs/rank00001.out").read_text() == "1\n"
    assert json.loads((run / "run.json").read_text())["job"]["ranks_per_node"] == 2
    assert state(hpcprof) == "completed"


def test_a_rank_that_fails_fails_the_run_and_is_named_with_its_last_words(hpcprof: Hpcprof) -> None:
    script = '[ "$HPCPROF_RANK" = 1 ] && { echo out of cheese >&2; exit 3; }; exit 0'
    done = hpcprof("submit", "--ranks-per-node", "2", "--wait", "--", "sh", "-c", script)
    assert done.returncode == 1
    assert "rank 1 failed first: exit code 3\n  out of cheese" in done.stderr
    report = hpcprof("report")
    assert "rank 1 failed first: exit code 3" in report.stdout
    assert "out of cheese" in report.stdout


def test_a_job_over_its_walltime_is_ended_and_said_to_be(hpcprof: Hpcprof, tmp_path: Path) -> None:
    done = hpcprof("submit", "--walltime", "1s", "--wait", "--", "sleep", "300")
    assert done.returncode == 1
    assert "timeout: the walltime limit (00:00:01) was exceeded" in done.stderr
    assert state(hpcprof) == "timeout"
    assert not (run_of(tmp_path) / "state/finished").exists()


@pytest.mark.parametrize("stubborn", ["", "trap '' TERM; "], ids=["willing", "deaf to SIGTERM"])
def test_cancel_ends_every_process_of_a_job(stubborn: str, hpcprof: Hpcprof, tmp_path: Path) -> None:
    script = f'{stubborn}echo $$ >"$HPCPROF_RUN_DIR/$HPCPROF_RANK.pid"; sleep 300; sleep 300'
    assert hpcprof("submit", "--ranks-per-node", "2", "--", "sh", "-c", script).returncode == 0
    run = run_of(tmp_path)
    files = [run / "0.pid", run / "1.pid"]
    until(lambda: all(f.exists() and f.read_text().strip() for f in files))
    pids = [int(f.read_text()) for f in files]
    done = hpcprof("cancel", "last")
    assert done.stdout.endswith("cancelled\n"), done.stderr
    assert not any(alive(pid) for pid in pids)
    assert state(hpcprof) == "cancelled"


def test_a_job_survives_the_process_that_submitted_it(hpcprof: Hpcprof, tmp_path: Path) -> None:
    hpcprof("submit", "--", "sh", "-c", WAIT_FOR_GO)
    run = run_of(tmp_path)
    until(lambda: state(hpcprof) == "running")
    assert os.getsid(supervisor(run)) == supervisor(run)
    (run / "go").touch()
    until(lambda: state(hpcprof) == "completed")


def test_a_run_whose_processes_are_gone_without_a_finished_file_is_failed_with_that_reason(
    hpcprof: Hpcprof, run: Path
) -> None:
    kill_supervisor(run)
    end_processes(run)
    assert state(hpcprof) == "failed"
    assert "without a finished file: it was killed" in " ".join(hpcprof("status").stdout.split())
    (run / "logs/job.err").write_text("job.sh: line 8: state/.finished.7: No space left on device\n")
    assert "without a finished file: no space was left for one" in " ".join(hpcprof("status").stdout.split())


def test_a_job_whose_supervisor_was_killed_is_still_running_and_can_be_cancelled(
    hpcprof: Hpcprof, run: Path
) -> None:
    kill_supervisor(run)
    assert "its supervisor was killed" in " ".join(hpcprof("status").stdout.split())
    assert hpcprof("cancel", "last").stdout.endswith("cancelled\n")
    assert processes_of(run) == []


def test_a_process_id_that_came_back_after_a_reboot_is_not_the_supervisor(
    hpcprof: Hpcprof, run: Path
) -> None:
    record = run / "state/supervisor"
    real = record.read_text()
    pid, ticks, boot = real.split()
    record.write_text(f"{pid} {ticks} {'0' * len(boot)}\n")
    assert "its supervisor was killed" in " ".join(hpcprof("status").stdout.split())
    record.write_text(f"{pid} {int(ticks) + 1} {boot}\n")
    assert "its supervisor was killed" in " ".join(hpcprof("status").stdout.split())
    record.write_text(real)
    assert hpcprof("cancel", "last").stdout.endswith("cancelled\n")


def test_ctrl_c_while_waiting_leaves_the_job_running(hpcprof: Hpcprof, tmp_path: Path) -> None:
    waiting = started(tmp_path, "submit", "--wait", "--", "sleep", "300")
    assert waiting.stdout is not None
    assert any(line.startswith("running") for line in iter(waiting.stdout.readline, ""))
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=480)
    assert waiting.returncode in INTERRUPTED
    assert "running: hpcprof status" in said
    assert state(hpcprof) == "running"
    hpcprof("cancel", "last")


def test_waiting_shows_what_the_first_rank_prints_as_it_comes(tmp_path: Path) -> None:
    program = f"echo first; {WAIT_FOR_GO}; echo second"
    waiting = started(tmp_path, "submit", "--wait", "--", "sh", "-c", program)
    assert waiting.stdout is not None
    assert "first\n" in iter(waiting.stdout.readline, "")
    (run_of(tmp_path) / "go").touch()
    printed, _ = waiting.communicate(timeout=480)
    assert [line for line in printed.splitlines() if not line.startswith("running")] == [
        "second",
        "completed",
    ]


def test_watching_ends_when_the_run_has(hpcprof: Hpcprof, tmp_path: Path) -> None:
    hpcprof("submit", "--", "sh", "-c", WAIT_FOR_GO)
    until(lambda: state(hpcprof) == "running")
    watching = started(tmp_path, "status", "--watch")
    assert watching.stdout is not None
    assert any(" running" in line for line in iter(watching.stdout.readline, ""))
    (run_of(tmp_path) / "go").touch()
    printed, _ = watching.communicate(timeout=480)
    assert [line.split()[1] for line in printed.splitlines() if "state" not in line] == ["completed"]


def test_chosen_steps_of_a_chosen_rank_are_profiled_while_the_other_ranks_run_along(
    hpcprof: Hpcprof, tmp_path: Path
) -> None:
    options = [
        "--ranks-per-node",
        "2",
        "--profiler",
        "torch",
        "--profile-ranks",
        "1",
        "--capture-steps",
        "2-4",
        "-o",
        f"python={forking_python(tmp_path)}",
    ]
    small = ["--", "-s", "64", "--hidden-size", "32", "--warmup", "0", "--steps", "6"]
    done = hpcprof("submit", *options, "--wait", "--workload", "sequence-parallel", *small)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in (run_of(tmp_path) / "profiles").iterdir()] == ["rank00001.trace.json.gz"]
    hpcprof("collect")
    steps = json.loads(hpcprof("report", "--analysis", "step_times", "--format", "json").stdout)
    assert [(row["rank"], row["step"]) for row in steps] == [(1, 2), (1, 3), (1, 4)]
