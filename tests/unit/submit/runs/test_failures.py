"""Causes of failed runs."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcprof.runs.directory import Manifest, Run, site_keys
from hpcprof.runs.job import Job
from hpcprof.submit.mpi_types import ranks_apart
from hpcprof.submit.runs import failures
from hpcprof.submit.runs.failures import (
    describe_status,
    failed_ranks,
    first_failed_rank,
    full_disk,
    profiler_complaint,
    tail,
)
from hpcprof.submit.schedulers.base import NODE_LOST, JobState, JobStatus
from hpcprof.submit.schedulers.run_state import keep_verdict
from hpcprof.submit.sites.files import load_site
from hpcprof.submit.waiting import describe_failure

RECORDED = Path(__file__).parents[3] / "data/failures"


def make_run(path: Path, ranks: int, profiler: str = "none") -> Run:
    for folder in ("state", "logs"):
        (path / folder).mkdir()
    job = Job(
        name="job",
        site="local",
        workload=None,
        arguments=["true"],
        directory=str(path),
        walltime=60,
        ranks_per_node=ranks,
        profiler=profiler,
    )
    (path / "state/started").touch()
    return Run(
        "run",
        path,
        Manifest("run", "2026-11-21T02:15:54+00:00", ["hpcprof"], job, site_keys(load_site("local"))),
    )


@pytest.mark.parametrize(
    ("ranks", "notes", "sentence"),
    [
        (
            1,
            {"rank00000.launcher": "srun"},
            "rank 0 has started srun, which starts ranks within this one: name",
        ),
        (
            1,
            {"rank00000.mpi": "2"},
            "a launcher in the program has started 2 ranks within one of the job's: name",
        ),
        (
            2,
            {"rank00000.mpi": "1"},
            "each rank is an MPI job of its own, rank 0 of 1 instead of 2: start them",
        ),
        (2, {"rank00000.mpi": "2", "rank00001.mpi": "0"}, ""),
        (1, {"rank00000.mpi": "1"}, ""),
    ],
)
def test_ranks_that_are_not_those_of_one_mpi_job_are_told(
    tmp_path: Path, ranks: int, notes: dict[str, str], sentence: str
) -> None:
    run = make_run(tmp_path, ranks)
    for name, text in notes.items():
        (tmp_path / "state" / name).write_text(f"{text}\n")
    told = ranks_apart(run)
    assert told.startswith(sentence)
    assert bool(told) == bool(sentence)


def test_a_rank_with_an_exit_code_of_its_own_is_blamed_before_those_that_were_ended(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=5)
    for rank, code in {0: 0, 1: 143, 3: 2, 4: 1}.items():
        (tmp_path / f"state/rank{rank:05d}.exit").write_text(f"{code}\n")
    (tmp_path / "logs/rank00003.err").write_text("".join(f"line {number}\n" for number in range(40)))
    (tmp_path / "logs/rank00002.out").touch()
    failures = failed_ranks(run)
    assert [str(failure) for failure in failures] == [
        "rank 3: exit code 2",
        "rank 4: exit code 1",
        "rank 1: exit code 143 (SIGTERM, terminated)",
        "rank 2: left no exit code (it was killed)",
    ]
    assert failures[0].last_lines == [f"line {number}" for number in range(20, 40)]


def test_the_rank_that_noted_its_failure_first_is_blamed_first(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=3)
    for rank, code in {0: 1, 1: 143, 2: 139}.items():
        (tmp_path / f"state/rank{rank:05d}.exit").write_text(f"{code}\n")
    (tmp_path / "state/started").write_text("2026-11-21T02:16:00Z\n")
    note = tmp_path / "state/failed.2026-11-21T02:16:00Z"
    note.write_text("2 139\n")
    named = "rank 2 failed first: exit code 139 (SIGSEGV, segmentation fault)"
    assert [str(failure) for failure in failed_ranks(run)] == [
        named,
        "rank 0: exit code 1",
        "rank 1: exit code 143 (SIGTERM, terminated)",
    ]
    assert describe_status(run, JobStatus(JobState.FAILED, "exit code 139")) == f"exit code 139; {named}"
    assert describe_status(run, JobStatus(JobState.RUNNING)) == named
    assert describe_status(run, JobStatus(JobState.COMPLETED)) == ""


def note_exception(run: Run, rank: int, kind: str, message: str, seconds: float = 0.0) -> None:
    values = {
        "type": kind,
        "message": message,
        "where": {"file": "/home/ada/train.py", "line": 10 + rank, "function": "step"},
        "time": seconds,
        "started_as": rank,
    }
    (run.path / f"state/rank{rank:05d}.exception").write_text(json.dumps(values))


def test_a_program_that_failed_before_a_pipe_is_told_though_its_rank_did_not_fail(tmp_path: Path) -> None:
    run, completed = make_run(tmp_path, ranks=2), JobStatus(JobState.COMPLETED)
    note_exception(run, 1, "ValueError", "no such batch")
    (tmp_path / "state/rank00001.exit").write_text("0\n")
    assert describe_status(run, completed) == (
        "a Python program in rank 1 failed (ValueError: no such batch, at train.py:11 in step), but the rank "
        "ended with exit code 0 (set -o pipefail keeps the code before a pipe)"
    )
    note = tmp_path / "state/rank00001.exception"
    note.write_text(
        note.read_text().replace("/home/ada/train.py", "<string>")
    )  # python -c, as in a test of a package
    assert describe_status(run, completed) == ""


def test_the_error_of_another_process_is_told_in_place_of_the_words_around_its_traceback(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, ranks=2)
    trace = (
        'Traceback (most recent call last):\n  File "/lib/worker.py", line 7, in f\n    g()\n    ^^^\n'
        '  File "/lib/worker.py", line 9, in g\n'
    )
    around = "Caught ValueError in DataLoader worker process 0.\nOriginal "
    note_exception(run, 0, "ValueError", f"{around}{trace}ValueError: no such batch\nof 7")
    note_exception(run, 1, "torch.ProcessRaisedException", f"\n\n-- Process 0\n{trace}KeyError: 'x'")
    (tmp_path / "state/rank00000.exit").write_text("1\n")
    (tmp_path / "state/rank00001.exit").write_text("1\n")
    assert [str(failure) for failure in failed_ranks(run)] == [
        "rank 0: exit code 1 (ValueError: no such batch, at train.py:10 in step)",
        "rank 1: exit code 1 (torch.ProcessRaisedException: KeyError: 'x', at train.py:11 in step)",
    ]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("KeyError: 'x'", "KeyError: 'x'"),
        ("OSError: AF_UNIX path too long", "a socket's path, which begins with TMPDIR, is too long .*"),
    ],
)
def test_the_error_of_a_process_whose_end_the_program_noticed_is_told(
    error: str, said: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path, ranks=1)
    note_exception(run, 0, "EOFError", "")
    frame = 'Traceback (most recent call last):\n  File "/a/b.py", line 7, in f\n    g()\n'
    (tmp_path / "logs/rank00000.err").write_text(f"{frame}{error}\n{frame}EOFError\n")
    (tmp_path / "state/rank00000.exit").write_text("1\n")
    told = r"rank 0: exit code 1 \(EOFError, at train.py:10 in step: a process of the program had failed: "
    assert re.fullmatch(rf"{told}{said}\)", str(failed_ranks(run)[0]))
    note_exception(run, 0, "ValueError", "no such batch")
    assert failed_ranks(run)[0].cause is None


def test_timeout_in_the_command_is_the_reason_of_its_exit_code(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=1)
    (tmp_path / "state/rank00000.exit").write_text("124\n")
    assert str(failed_ranks(run)[0]) == "rank 0: exit code 124"
    assert run.manifest is not None
    run.manifest.job.arguments[:] = ["/usr/bin/timeout", "2h", "./solver"]
    assert str(failed_ranks(run)[0]) == "rank 0: exit code 124 (timeout, in the command, ended the program)"


def test_a_rank_that_only_noticed_the_end_of_another_one_is_not_to_blame(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=3)
    for rank, code in {0: 1, 1: 1, 2: 1}.items():
        (tmp_path / f"state/rank{rank:05d}.exit").write_text(f"{code}\n")
    lost = (RECORDED / "gloo_peer.txt").read_text().removeprefix("RuntimeError: ")
    note_exception(run, 0, "RuntimeError", lost, 4.0)
    note_exception(run, 1, "ValueError", "no such batch\nof 7", 3.0)
    note_exception(run, 2, "KeyError", "'x'", 3.5)
    (tmp_path / "state/started").write_text("now\n")
    (tmp_path / "state/failed.now").write_text("0 1\n")
    failures = failed_ranks(run)
    assert [str(failure) for failure in failures] == [
        "rank 1 failed first: exit code 1 (ValueError: no such batch, at train.py:11 in step)",
        "rank 0: exit code 1 (RuntimeError, at train.py:10 in step: another rank had closed its connections)",
        "rank 2: exit code 1 (KeyError: 'x', at train.py:12 in step)",
    ]
    told = failures[0].as_json()
    assert told["exception"] == {"type": "ValueError", "message": "no such batch\nof 7"}
    assert told["where"] == {"file": "/home/ada/train.py", "line": 11, "function": "step"}
    assert describe_status(run, JobStatus(JobState.RUNNING)) == str(failures[0])
    assert "no such" not in str(failures[0].without_message())


def test_a_rank_that_ended_early_as_if_all_were_well_is_named_by_the_one_that_noticed(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=3)
    lost = (RECORDED / "gloo_peer.txt").read_text().removeprefix("RuntimeError: ")
    note_exception(run, 1, "RuntimeError", lost)
    for rank, (code, seconds) in {0: (0, 9), 1: (1, 8), 2: (0, 5)}.items():
        path = tmp_path / f"state/rank{rank:05d}.exit"
        path.write_text(f"{code}\n")
        os.utime(path, (seconds, seconds))
    os.utime(tmp_path / "state/rank00001.exception", (7, 7))
    assert str(failed_ranks(run)[0]) == (
        "rank 1: exit code 1 (RuntimeError, at train.py:11 in step: "
        "another rank had closed its connections); rank 2 had ended before, with exit code 0"
    )


def test_a_rank_that_did_not_wait_is_named_where_the_others_timed_out(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=3)
    waited = (RECORDED / "gloo_timeout.txt").read_text().removeprefix("RuntimeError: ")
    for rank, code in enumerate((143, 1, 1)):
        (tmp_path / f"state/rank{rank:05d}.exit").write_text(f"{code}\n")
    note_exception(run, 1, "RuntimeError", waited)
    assert "reported no such wait" not in str(failed_ranks(run)[0])
    note_exception(run, 2, "RuntimeError", waited)
    assert str(failed_ranks(run)[0]).endswith("in a collective); rank 0 reported no such wait")
    note_exception(run, 0, "RuntimeError", waited)
    assert str(failed_ranks(run)[0]).endswith("for another rank in a collective)")


def test_a_rank_that_left_mpi_early_is_named_beside_those_that_the_launcher_killed(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=3)
    for rank in (0, 1):
        (tmp_path / f"logs/rank{rank:05d}.out").touch()
    (tmp_path / "state/rank00002.exit").write_text("0\n")
    assert [str(failure) for failure in failed_ranks(run)] == [
        "rank 0: left no exit code (it was killed); rank 2 had ended before, with exit code 0",
        "rank 1: left no exit code (it was killed)",
    ]
    # Open MPI ends them by SIGTERM.
    (tmp_path / "state/rank00000.exit").write_text("143\n")
    os.utime(tmp_path / "state/rank00002.exit", (5, 5))
    assert str(failed_ranks(run)[0]).endswith("terminated); rank 2 had ended before, with exit code 0")


def test_a_rank_that_was_lost_with_its_node_failed_before_those_that_noticed_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=3)
    for rank in (0, 1):
        (tmp_path / f"state/rank{rank:05d}.exit").write_text("1\n")
        lost = (RECORDED / "gloo_peer.txt").read_text().removeprefix("RuntimeError: ")
        note_exception(run, rank, "RuntimeError", lost, 4.0)
    (tmp_path / "logs").mkdir(exist_ok=True)
    (tmp_path / "logs/rank00002.err").touch()
    (tmp_path / "logs/job.err").write_text("srun: error: Node failure on n3\n")
    (tmp_path / "state/started").write_text("now\n")
    (tmp_path / "state/failed.now").write_text("0 1\n")
    assert str(failed_ranks(run)[0]) == "rank 2 failed first: was lost with node n3"


def test_a_worker_of_torchrun_is_named_with_its_own_number(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=1)
    (tmp_path / "state/rank00000.exit").write_text("1\n")
    note_exception(run, 0, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError", "", 5.0)
    values = {"type": "ValueError", "message": "no", "time": 4.0, "started_as": 0}
    (tmp_path / "state/rank00003.exception").write_text(json.dumps(values))
    assert str(failed_ranks(run)[0]) == "rank 3 failed first: exit code 1 (ValueError: no)"


def test_the_kernel_that_kills_for_lack_of_memory_is_the_reason(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2)
    for rank, code in {0: 143, 1: 137}.items():
        (tmp_path / f"state/rank{rank:05d}.exit").write_text(f"{code}\n")
        (tmp_path / f"state/rank{rank:05d}.oom").write_text("1 64000000\n")
    killed = "out of memory: the kernel killed a process of its control group, whose limit is 64.00 MB"
    assert str(failed_ranks(run)[0]) == f"rank 1: exit code 137 (SIGKILL: {killed})"
    (tmp_path / "state/rank00001.oom").write_text("2 9223372036854771712\n")
    assert "killed 2 processes of its control group)" in str(failed_ranks(run)[0])
    (tmp_path / "state/rank00001.oom").write_text("1 node\n")
    assert "the kernel killed a process on its node)" in str(failed_ranks(run)[0])


def test_a_process_that_the_kernel_killed_is_told_of_a_program_that_ended_well(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2)
    (tmp_path / "state/rank00001.exit").write_text("0\n")
    assert describe_status(run, JobStatus(JobState.COMPLETED, "")) == ""
    (tmp_path / "state/rank00001.oom").write_text("1 64000000\n")
    assert describe_status(run, JobStatus(JobState.COMPLETED, "")) == (
        "out of memory: the kernel killed a process of its control group, whose limit is 64.00 MB; "
        "rank 1 ended with exit code 0"
    )


def test_a_rank_that_could_not_write_its_exit_code_was_not_killed(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=1)
    (tmp_path / "logs/rank00000.out").touch()
    assert str(failed_ranks(run)[0]) == "rank 0: left no exit code (it was killed)"
    (tmp_path / "state/job_id").write_text("7.pbshost\n")
    keep_verdict(run, JobStatus(JobState.FAILED, "job.sh ended without its finished file", 0))
    assert str(failed_ranks(run)[0]) == "rank 0: left no exit code, though its job ended with 0"


def test_ranks_that_all_wait_in_nccl_point_at_the_stall(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2)
    for rank in range(2):
        (tmp_path / f"state/rank{rank:05d}.exit").write_text("134\n")
        (tmp_path / f"logs/rank{rank:05d}.err").write_text((RECORDED / "nccl_watchdog.txt").read_text())
    (tmp_path / "state/stall.json").write_text('{"kind": "never_came", "ranks": [1], "waiting": [0]}')
    said = describe_status(run, JobStatus(JobState.FAILED, "exit code 134"))
    assert said.endswith("; the run had stalled: rank 1 held the others up")
    assert "(SIGABRT: NCCL timed out in collective 4, ALLREDUCE, which other ranks had not ended)" in said


def test_ranks_on_a_lost_node_are_said_to_be_lost_with_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2)
    (tmp_path / "state/rank00000.exit").write_text("143\n")
    (tmp_path / "logs/rank00001.out").touch()
    (tmp_path / "logs/job.err").write_text((RECORDED / "slurm_node.txt").read_text())
    assert [str(failure) for failure in failed_ranks(run)] == [
        "rank 1: was lost with node worker-1",
        "rank 0: exit code 143 (SIGTERM, terminated)",
    ]


def test_a_launcher_that_a_signal_ended_is_told_unless_its_job_was_cancelled(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2)
    for rank in range(2):
        (tmp_path / f"logs/rank{rank:05d}.out").touch()
    (tmp_path / "logs/job.err").write_text((RECORDED / "launcher_killed.txt").read_text())
    killed = "was ended with the launcher, which a signal had ended (Killed)"
    assert [str(failure) for failure in failed_ranks(run)] == [f"rank 0: {killed}", f"rank 1: {killed}"]
    # A rank that failed by itself comes first.
    (tmp_path / "state/rank00001.exit").write_text("3\n")
    assert str(failed_ranks(run)[0]) == "rank 1: exit code 3"
    (tmp_path / "state/terminated").touch()
    assert not [failure for failure in failed_ranks(run) if killed in str(failure)]


def test_ranks_of_a_job_of_pbs_whose_node_was_lost_are_not_called_killed(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=1)
    (tmp_path / "logs/rank00000.out").touch()
    (tmp_path / "state/job_id").write_text("7.pbshost\n")
    keep_verdict(run, JobStatus(JobState.FAILED, NODE_LOST))
    assert [str(failure) for failure in failed_ranks(run)] == [
        "rank 0: left no exit code, as a node was lost"
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"type": 3}', "[" * 100_000, "\x00"])
def test_a_damaged_note_of_an_exception_says_nothing(text: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=1)
    (tmp_path / "state/rank00000.exit").write_text("1\n")
    (tmp_path / "state/rank00000.exception").write_text(text)
    assert str(failed_ranks(run)[0]).startswith("rank 0: exit code 1")


@pytest.mark.parametrize("note", [None, "", "2", "two 139"])
def test_a_note_that_is_missing_or_was_not_written_names_no_rank(note: str | None, tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=3)
    (tmp_path / "state/started").write_text("2026-11-21T02:16:00Z\n")
    (tmp_path / "state/failed.2026-11-21T02:15:00Z").write_text("1 3\n")  # of an earlier start
    if note is not None:
        (tmp_path / "state/failed.2026-11-21T02:16:00Z").write_text(note)
    assert first_failed_rank(run) is None


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "hpcprof: no space left on /local/tmp while the profile was exported.",
            "no space left on /local/tmp while the profile was exported",
        ),
        ("OSError: [Errno 28] No space left on device: '/runs/a/x.json'", "no space left on device"),
        ("cp: error writing 'x': Disk quota exceeded", "disk quota exceeded"),
    ],
)
def test_a_full_disk_is_the_reason_of_a_failure(line: str, cause: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=1)
    (tmp_path / "state/rank00000.exit").write_text("1\n")
    (tmp_path / "logs/rank00000.err").write_text(f"starting\n{line}\n")
    assert [str(failure) for failure in failed_ranks(run)] == [f"rank 0: exit code 1 ({cause})"]


def test_a_full_disk_under_the_run_is_said_where_no_rank_could_say_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, ranks=1)
    assert full_disk(run) == ""
    (tmp_path / "logs/rank00000.out").touch()
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=0))
    assert describe_status(run, JobStatus(JobState.FAILED, "exit code 1")) == (
        f"exit code 1; rank 0: left no exit code, as no space was left for it; no space is left on {tmp_path}"
    )


FAILED = JobStatus(JobState.FAILED, "exit code 255", 255)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "srun: unrecognized option '--foo'\nTry \"srun --help\" for more information\n",
            "the launcher refused an option (srun: unrecognized option '--foo')",
        ),
        (
            "[mpiexec@vm] match_arg (args.c:166): unrecognized argument foo\n[mpiexec@vm] main: error\n",
            "the launcher refused an option ([mpiexec@vm] match_arg (args.c:166): unrecognized argument foo)",
        ),
        (
            "ssh: connect to host n2 port 22: Connection refused\n[mpiexec@vm] main: error\n",
            "ssh to another node failed (ssh: connect to host n2 port 22: Connection refused)",
        ),
        (
            "Host key verification failed.\nORTE was unable to reliably start one or more daemons.\n",
            "ssh to another node failed (Host key verification failed)",
        ),
        (
            "mkdir: cannot create: No space left on device\n",
            "a disk is full (mkdir: cannot create: No space left on device)",
        ),
        ("srun: error: Unable to create step\n", "srun: error: Unable to create step"),
        (
            "srun: Warning: can't honor --ntasks\nsrun: job 7 queued\nsrun: error: Unable to create step\n",
            "srun: error: Unable to create step",
        ),
        (f"{'-' * 60}\nThere are not enough slots.\n{'-' * 60}\n", "There are not enough slots"),
    ],
)
def test_a_launcher_that_starts_no_rank_is_said_to_have_failed_and_no_rank_was_killed(
    said: str, reason: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path, ranks=4)
    (tmp_path / "logs/job.err").write_text(said)
    assert describe_status(run, FAILED) == f"exit code 255; no rank was started: {reason}"
    assert describe_failure(run, FAILED)[1] == f"no rank was started: {reason}"


def test_a_launcher_that_waits_for_a_rank_it_cannot_start_is_told_while_it_waits(tmp_path: Path) -> None:
    run, running = make_run(tmp_path, ranks=4), JobStatus(JobState.RUNNING, "")
    errors = tmp_path / "logs/job.err"
    errors.write_text("srun: error: a warning\n")
    assert not describe_status(run, running)
    errors.write_text("ssh: Could not resolve hostname n2: Name or service not known\n")
    says = "ssh to another node failed (ssh: Could not resolve hostname n2: Name or service not known)"
    assert describe_status(run, running) == f"no rank was started: {says}"
    for rank in range(4):
        (tmp_path / f"logs/rank0000{rank}.out").touch()
        missing = f"{3 - rank} of 4 ranks were not started: {says}" if rank < 3 else ""
        assert describe_status(run, running) == missing


def test_the_first_line_of_a_launcher_that_fails_is_quoted_and_its_path_told(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2)
    before = "job.sh: line 9: module: command not found\n"
    said = "[mpiexec@n1] parse_hostfile: unable to open host file: /hosts\n[mpiexec@n1] main: error\n"
    (tmp_path / "logs/job.err").write_text(before + said)
    (tmp_path / "state/errors_before").write_text(f"{len(before)}\n")
    (tmp_path / "state/launcher").write_text("/opt/pbs/bin/mpiexec\n")
    (tmp_path / "state/setup_failed").write_text("module load mpich failed: module: command not found\n")
    prepared = "module load mpich failed: module: command not found"
    unstarted = (
        "no rank was started by /opt/pbs/bin/mpiexec: [mpiexec@n1] parse_hostfile: unable to open host file: "
        "/hosts"
    )
    assert describe_status(run, FAILED) == f"exit code 255; {prepared}; {unstarted}"
    assert describe_failure(run, FAILED)[1:3] == [prepared, unstarted]
    completed = JobStatus(JobState.COMPLETED, "")
    assert describe_status(run, completed) == prepared


def test_logs_of_an_older_attempt_prove_nothing_for_a_new_one(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=1)
    (tmp_path / "logs/rank00000.out").touch()
    (tmp_path / "state/attempt").write_text("2\n")
    before = "slurmstepd: error: task 0: Out Of Memory\n"
    (tmp_path / "logs/job.err").write_text(f"{before}unable to open host file: /hosts\n")
    (tmp_path / "state/errors_before").write_text(f"{len(before)}\n")
    says = "no rank was started: unable to open host file: /hosts"
    assert describe_status(run, FAILED) == f"exit code 255; {says}"


def test_a_profiler_that_waits_for_what_its_program_left_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=1)
    (tmp_path / "state/rank00000.code").write_text("0\n")
    (tmp_path / "state/rank00000.left").write_text("sleep (12)\n")
    says = "rank 0 has ended (exit code 0); its profiler waits for what it left: sleep (12)"
    running = JobStatus(JobState.RUNNING, "")
    assert describe_status(run, running) == says
    (tmp_path / "state/rank00000.exit").write_text("0\n")
    assert describe_status(run, running) == ""


MPICH_ABORT = (
    "Abort(5) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 5) - process 1\n"
)
OPEN_MPI_ABORT = """\
--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
{}

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("rank00001.err", MPICH_ABORT),
        ("job.err", OPEN_MPI_ABORT.format("with errorcode 5.")),
        ("job.err", OPEN_MPI_ABORT.format("  Proc: [[61445,1],1]\n  Errorcode: 5")),
    ],
)
def test_ranks_that_another_one_aborted_were_ended_with_it(log: str, said: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=3)
    for rank in range(2):
        (tmp_path / f"logs/rank{rank:05d}.out").touch()
    (tmp_path / "logs" / log).write_text(said)
    assert [str(failure) for failure in failed_ranks(run)] == [
        "rank 1: called MPI_Abort with code 5",
        "rank 0: was ended with rank 1",
        "rank 2: was not started",
    ]
    (tmp_path / "state/started").write_text("now\n")
    (tmp_path / "state/failed.now").write_text("1 5\n")
    assert str(failed_ranks(run)[0]) == "rank 1 failed first: called MPI_Abort with code 5"
    # The start-up hook aborts the others for a rank that an exception has ended: the program never did.
    note_exception(run, 1, "ValueError", "no such batch")
    assert str(failed_ranks(run)[0]).startswith("rank 1 failed first: exit code 5 (ValueError: no such batch")


def test_nothing_is_said_of_ranks_that_a_script_of_the_users_starts_in_its_own_way(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2)
    (tmp_path / "job.sh").write_text("record started now\nmpiexec ./program\nrecord finished $?\n")
    assert describe_status(run, FAILED) == "exit code 255"


def test_a_run_that_has_not_started_has_no_failed_ranks(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2)
    (tmp_path / "state/started").unlink()
    assert failed_ranks(run) == []


@pytest.mark.parametrize(
    ("profiler", "line", "complaint"),
    [
        ("ncu", "==ERROR== No metrics to collect.", ": ncu says 'No metrics to collect'"),
        ("ncu", "==PROF== Connected", ""),
        ("torch", "==ERROR== No metrics to collect.", ""),
    ],
)
def test_only_the_profiler_of_the_run_recognizes_its_complaints(
    profiler: str, line: str, complaint: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path, ranks=2, profiler=profiler)
    (tmp_path / "logs/rank00000.out").write_text("fine\n")
    (tmp_path / "logs/rank00001.err").write_text(f"starting\n{line}\n")
    assert profiler_complaint(run) == complaint


@pytest.mark.parametrize("log", ["rank00001.profiler", "rank00001.err", "rank00001.out"])
def test_a_complaint_is_found_in_the_profilers_log_and_in_the_logs_of_older_runs(
    log: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path, ranks=2, profiler="ncu")
    (tmp_path / "logs" / log).write_text("==ERROR== No metrics to collect.\n")
    assert profiler_complaint(run) == ": ncu says 'No metrics to collect'"


def test_a_profiler_that_never_started_the_program_has_the_last_words(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=1, profiler="nsys")
    (tmp_path / "state/rank00000.exit").write_text("127\n")
    (tmp_path / "logs/rank00000.profiler").write_text("nsys: not found\n")
    assert failed_ranks(run)[0].last_lines == ["nsys: not found"]
    (tmp_path / "logs/rank00000.err").write_text("out of memory\n")
    assert failed_ranks(run)[0].last_lines == ["out of memory"]


def test_secrets_are_looked_for_in_the_shown_lines_alone_since_thousands_of_ranks_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, ranks=1, profiler="scorep")
    (tmp_path / "state/rank00000.exit").write_text("1\n")
    lines = [f"step {number}" for number in range(9_000)]
    (tmp_path / "logs/rank00000.err").write_text("\n".join([*lines, *["[Score-P] warning"] * 99]))
    sizes: list[int] = []

    def count_lines(text: str) -> str:
        sizes.append(text.count("\n"))
        return text

    monkeypatch.setattr(failures, "masked", count_lines)
    assert failed_ranks(run)[0].last_lines == lines[-20:]
    assert max(sizes) < 200


def test_a_missing_ncu_permission_names_its_remedy(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=1, profiler="ncu")
    (tmp_path / "logs/rank00000.out").write_text("==ERROR== ERR_NVGPUCTRPERM - no permission\n")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in profiler_complaint(run)


def test_a_log_that_is_missing_has_no_last_lines(tmp_path: Path) -> None:
    assert tail(tmp_path / "gone.err") == []


def test_of_millions_of_ranks_that_left_nothing_some_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, ranks=10_000_000)
    (tmp_path / "state/rank9000000.exit").write_text("3\n")
    (tmp_path / "logs/rank9000000.err").write_text("gone wrong\n")
    opened: list[str] = []
    really = os.open

    def counted(path: str, flags: int) -> int:
        opened.append(path)
        return really(path, flags)

    monkeypatch.setattr(os, "open", counted)
    failures = failed_ranks(run)
    assert len(failures) == 1001 and str(failures[0]) == "rank 9000000: exit code 3"
    assert str(failures[1]) == "rank 0: was not started"
    assert describe_status(run, JobStatus(JobState.FAILED, "")) == "rank 9000000: exit code 3"
    assert len(opened) < 100


def test_colours_are_no_part_of_the_last_lines_and_hide_no_cause(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=1)
    (tmp_path / "state/rank00000.exit").write_text("1\n")
    lines = "\x1b]0;a window\x07started\n\x1b[1;31mdisk:\x1b[0m \x1b[31mNo space left\x1b[39m on device\n"
    (tmp_path / "logs/rank00000.err").write_text(lines)
    (failure,) = failed_ranks(run)
    assert failure.last_lines == ["started", "disk: No space left on device"]
    assert str(failure) == "rank 0: exit code 1 (no space left on device)"


def test_a_log_is_read_from_its_end_and_never_waited_for(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2)
    long, pipe = tmp_path / "logs/rank00000.err", tmp_path / "logs/rank00001.err"
    long.write_text("end\r\nlast\n")
    assert tail(long) == ["end", "last"]
    with long.open("r+b") as file:  # a line of 1 TB that takes no space
        file.seek(1 << 40)
        file.write(b"\nlast\n")
    os.mkfifo(pipe)
    os.mkfifo(tmp_path / "logs/job.err")
    assert tail(long, 1) == ["last"]
    assert tail(pipe) == []
    assert len(failed_ranks(run)) == 2


def test_a_secret_of_several_lines_is_masked_in_what_a_launcher_said(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2)
    key = "-----BEGIN PRIVATE KEY-----\nMIIE/cannot/be/read\n-----END PRIVATE KEY-----\n"
    (tmp_path / "logs/job.err").write_text(f"{key}srun: fatal: no nodes\n")
    lines = describe_failure(run, JobStatus(JobState.FAILED, "exit code 1", 1))
    assert "fatal: no nodes" in lines[1]
    assert "cannot" not in "".join(lines)


def test_ranks_that_end_with_their_job_have_not_failed(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=3)
    for rank, code in {0: 143, 2: 1}.items():
        (tmp_path / f"state/rank{rank:05d}.exit").write_text(f"{code}\n")
    (tmp_path / "logs/rank00001.out").touch()
    (tmp_path / "state/terminated").write_text("TERM\n")
    assert [str(failure) for failure in failed_ranks(run)] == ["rank 2: exit code 1"]


def test_a_worker_that_failed_before_its_job_was_ended_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path, ranks=2)
    for rank in (0, 1):
        (tmp_path / f"state/rank{rank:05d}.exit").write_text("143\n")
    note_exception(run, 5, "ValueError", "no such batch")
    note = tmp_path / "state/rank00005.exception"
    note.write_text(note.read_text().replace('"started_as": 5', '"started_as": 1'))
    (tmp_path / "state/terminated").write_text("TERM\n")
    # The other one may have failed since its job was ended.
    note_exception(run, 0, "SignalException", "got signal 15", time.time() - 1)
    told = "rank 5: exit code 143 (ValueError: no such batch, at train.py:15 in step)"
    assert [str(failure) for failure in failed_ranks(run)] == [told]
    for state in (JobState.TIMEOUT, JobState.CANCELLED):
        assert describe_status(run, JobStatus(state, "too long")) == f"too long; {told}"
    # When the job began to end is unknown: both may be due to that.
    (tmp_path / "state/terminated").unlink()
    assert describe_status(run, JobStatus(JobState.TIMEOUT, "too long")) == "too long"


def test_ranks_without_an_exception_are_not_looked_at_after_a_cancelled_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, ranks=2)
    (tmp_path / "state/terminated").write_text("TERM\n")
    monkeypatch.setattr("hpcprof.submit.runs.failures.failed_ranks", None)
    assert describe_status(run, JobStatus(JobState.CANCELLED, "by you")) == "by you"
