"""A run's state from the scheduler's record and its own state files."""

from __future__ import annotations

import os
import platform
import shutil
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest

from hpcprof.runs.directory import Run
from hpcprof.runs.intent import note_intent
from hpcprof.submit.runs.failures import describe_status
from hpcprof.submit.schedulers import run_state
from hpcprof.submit.schedulers.base import JobState, JobStatus, Record
from hpcprof.submit.schedulers.run_state import (
    GRACE_SECONDS,
    SUBMITTING_SECONDS,
    UNRECORDED_SECONDS,
    keep_verdict,
    read_final_status,
    read_verdict,
    status_from_record,
    status_now,
    status_of_submission,
)
from hpcprof.submit.waiting import describe_failure
from tests.submitted_run import MakeRun

ENDED = Record(JobState.COMPLETED, "", 0, ended_seconds=2.0)
LONG_AGO = Record(JobState.COMPLETED, "", 0, ended_seconds=GRACE_SECONDS + 1)


@pytest.mark.parametrize("record", [Record(JobState.FAILED, "could not start", 15), LONG_AGO])
def test_a_job_of_which_nothing_arrives_asks_whether_the_nodes_share_the_folder(
    make_run: MakeRun, record: Record
) -> None:
    run = make_run()
    (run.path / "state/unfinished").write_text("0\n")
    assert f"nothing of it is in {run.path}" in status_from_record(run, record).reason
    (run.path / "logs").mkdir()
    (run.path / "logs/job.err").write_text("bash: no such file\n")
    assert "nothing of it" not in status_from_record(run, record).reason


def test_a_finished_file_that_is_not_here_yet_is_waited_for_a_while(make_run: MakeRun) -> None:
    run = make_run(started="now")
    present = status_from_record(run, ENDED)
    assert (present.state, "finished file has not arrived yet" in present.reason) == (JobState.RUNNING, True)
    late = status_from_record(run, LONG_AGO)
    assert (late.state, late.reason) == (JobState.FAILED, "job.sh ended without its finished file")


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("#!/bin/sh\n# record finished\necho hello\n", JobState.COMPLETED),
        ('record finished "$status"\n', JobState.FAILED),
        ('echo 0 >"$run_dir/state/finished"\n', JobState.FAILED),
    ],
)
def test_a_plain_script_has_the_schedulers_exit_status(
    script: str, state: JobState, make_run: MakeRun
) -> None:
    run = make_run()
    (run.path / "job.sh").write_text(script)
    assert status_from_record(run, LONG_AGO).state is state
    assert status_from_record(run, Record(JobState.FAILED, "", 3)).reason == "exit code 3"


def test_a_finished_file_that_tells_of_a_failure_comes_before_the_schedulers_success(
    make_run: MakeRun,
) -> None:
    present = status_from_record(make_run(finished="3"), ENDED)
    assert (present.state, present.reason, present.exit_code) == (JobState.FAILED, "exit code 3", 3)


def test_a_job_has_failed_if_its_launcher_says_success_of_ranks_that_it_killed(make_run: MakeRun) -> None:
    run = make_run(started="now", finished="0")
    assert run.manifest is not None
    two_ranks = msgspec.structs.replace(run.manifest.job, ranks_per_node=2)
    run = Run(run.id, run.path, msgspec.structs.replace(run.manifest, job=two_ranks))
    (run.path / "logs").mkdir()
    (run.path / "logs/rank00000.out").touch()
    (run.path / "state/rank00001.exit").write_text("0\n")
    # Another machine may see the files of ranks late.
    assert status_from_record(run, ENDED).state is JobState.RUNNING
    status = status_from_record(run, LONG_AGO)
    assert (status.state, status.exit_code, status.provisional) == (JobState.FAILED, 0, True)
    keep_verdict(run, status)
    assert describe_status(run, status) == (
        "its launcher ended with 0, but not all ranks ended; rank 0: left no exit code, "
        "though its job ended with 0; rank 1 had ended before, with exit code 0"
    )
    (run.path / "state/rank00000.exit").write_text("0\n")
    assert status_from_record(run, ENDED).state is JobState.COMPLETED


def test_a_finished_file_does_not_make_a_failure_a_success(make_run: MakeRun) -> None:
    present = status_from_record(make_run(finished="0"), Record(JobState.FAILED, "a node of the job failed"))
    assert (present.state, present.reason) == (JobState.FAILED, "a node of the job failed")


def test_the_exit_code_is_job_shs_own_where_accounting_changes_it(make_run: MakeRun) -> None:
    assert (
        status_from_record(make_run(finished="139"), Record(JobState.FAILED, "", 11)).reason
        == "exit code 139"
    )


def test_absence_from_the_queue_alone_is_first_waited_for_and_then_a_failure(make_run: MakeRun) -> None:
    run = make_run(started="now")
    assert status_from_record(run, None).state is JobState.RUNNING
    (run.path / "state/unfinished").write_text(f"{time.time() - UNRECORDED_SECONDS - 1:.0f}\n")
    gone = status_from_record(run, None)
    assert gone.state is JobState.FAILED
    assert (
        gone.reason == "ended without a record: the scheduler does not list it, and it left no finished file"
    )


PLAIN = "#!/bin/sh\necho hello\n"


def plain_run(make_run: MakeRun, seconds_ago: float = 3600) -> Run:
    """Return a run with a script of the user's, submitted some time ago."""
    run = make_run()
    assert run.manifest is not None
    (run.path / "job.sh").write_text(PLAIN)
    (run.path / "logs").mkdir()
    created = datetime.now(timezone.utc) - timedelta(seconds=seconds_ago)
    return replace(run, manifest=msgspec.structs.replace(run.manifest, created=created.isoformat()))


def grow_old(run: Run, *names: str) -> None:
    for name in names:
        os.utime(run.path / name, (1, 1))


def test_a_plain_script_that_the_scheduler_has_forgotten_has_ended_with_an_unknown_result(
    make_run: MakeRun,
) -> None:
    run = plain_run(make_run)
    status = status_from_record(run, None)
    assert (status.state, status.provisional) == (JobState.ENDED, True)
    assert status.reason == (
        "result unknown: the scheduler no longer lists it, and its script records no exit code"
    )
    assert describe_status(run, status) == f"{status.reason}; it left no output"
    (run.path / "logs/job.out").write_text("epoch 1\nall done\n")
    assert describe_status(run, status) == f"{status.reason}; it last printed 'all done'"
    assert describe_failure(run, status)[1:] == ["job.out:", "  epoch 1", "  all done"]


def test_a_plain_script_does_not_go_back_from_running_to_queued(make_run: MakeRun) -> None:
    run = plain_run(make_run)
    assert status_from_record(run, Record(JobState.QUEUED, "Priority")).state is JobState.QUEUED
    assert status_from_record(run, None).state is JobState.QUEUED
    assert status_from_record(run, Record(JobState.RUNNING)).state is JobState.RUNNING
    assert status_from_record(run, None).state is JobState.RUNNING
    grow_old(run, "state/seen")
    assert status_from_record(run, None).state is JobState.ENDED


def test_the_output_of_a_plain_script_shows_that_it_has_started(make_run: MakeRun) -> None:
    run = plain_run(make_run, seconds_ago=1)
    assert status_from_record(run, None).state is JobState.QUEUED
    (run.path / "logs/job.out").touch()
    assert status_from_record(run, None).state is JobState.RUNNING


def test_a_script_that_records_only_its_end_is_not_said_to_have_never_started(make_run: MakeRun) -> None:
    run = make_run(unfinished="1")
    (run.path / "job.sh").write_text('echo "$?" >"$run_dir/state/finished"\n')
    status = status_from_record(run, None)
    assert (status.state, "left no finished file" in status.reason) == (JobState.FAILED, True)


def test_a_job_that_never_started_and_is_not_known_is_a_failure_in_the_end(make_run: MakeRun) -> None:
    run = make_run()
    assert status_from_record(run, None).state is JobState.QUEUED
    (run.path / "state/unfinished").write_text("1\n")
    assert (
        status_from_record(run, None).reason
        == "ended without a record: the scheduler does not list it, and it never started"
    )


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_a_forgotten_job_whose_output_tells_of_its_walltime_limit_has_exceeded_it(
    make_run: MakeRun, scheduler: str
) -> None:
    run = make_run(started="now")
    (run.path / "logs").mkdir(exist_ok=True)
    said = (Path(__file__).parents[3] / f"data/failures/{scheduler}_walltime.txt").read_text()
    (run.path / "logs/job.err").write_text("a program printed: DUE TO TIME LIMIT\n")
    assert status_from_record(run, None).state is JobState.RUNNING
    (run.path / "logs/job.err").write_text(said)
    status = status_from_record(run, None)
    assert status.state is JobState.TIMEOUT
    assert status.reason.startswith("the walltime limit (")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pbs_memory", (JobState.FAILED, "it used more memory than it asked for", 143)),
        ("pbs_walltime", (JobState.TIMEOUT, "the walltime limit (00:00:10) was exceeded", 143)),
        ("slurm_launch_after_limit", (JobState.TIMEOUT, "the walltime limit (00:01:00) was exceeded", 143)),
        ("flux_walltime", (JobState.TIMEOUT, "the walltime limit (00:01:00) was exceeded", 143)),
        ("slurm_memory_of_job", (JobState.FAILED, "it used more memory than it asked for", 143)),
        ("slurm_prolog", (JobState.FAILED, "the prologue of its nodes failed", 143)),
        ("slurm_preemption", (JobState.CANCELLED, "preempted by another job", 143)),
    ],
)
@pytest.mark.parametrize("record", [None, Record(JobState.FAILED, "", 143)])
def test_what_the_scheduler_wrote_into_the_output_is_the_reason_with_a_record_and_without(
    make_run: MakeRun, name: str, expected: tuple[JobState, str, int], record: Record | None
) -> None:
    run = make_run(started="now", finished="143")
    (run.path / "logs").mkdir(exist_ok=True)
    assert status_from_record(run, record) == JobStatus(JobState.FAILED, "exit code 143", 143)
    said = (Path(__file__).parents[3] / f"data/failures/{name}.txt").read_text()
    (run.path / "logs/job.err").write_text(said)
    assert status_from_record(run, record) == JobStatus(*expected)
    # A program that saves and ends well before it is killed has completed; the kernel lets no process save.
    (run.path / "state/finished").write_text("0\n")
    kept = JobState.FAILED if expected[0] is JobState.FAILED else JobState.COMPLETED
    assert status_from_record(run, None).state is kept
    assert status_from_record(run, ENDED) == status_from_record(run, None)
    assert status_from_record(run, None).reason == expected[1]


def test_a_job_that_saved_in_the_grace_time_of_a_preemption_says_so(make_run: MakeRun) -> None:
    run = make_run(started="now", finished="0")
    (run.path / "logs").mkdir(exist_ok=True)
    said = (Path(__file__).parents[3] / "data/failures/slurm_step.txt").read_text()
    (run.path / "logs/job.err").write_text(said)
    ended = "its program ended on SIGTERM of Slurm, as before a preemption"
    assert status_from_record(run, ENDED) == JobStatus(JobState.COMPLETED, ended, 0)
    # It is the signal of job.sh ahead of the limit, after which Slurm did not take the job back.
    (run.path / "state/warned").write_text("now\n")
    (run.path / "state/not_requeued").write_text("scontrol: command not found\n")
    limited = (
        "it ended on the signal ahead of its time limit; it was not queued again: scontrol: command not found"
    )
    assert status_from_record(run, ENDED) == JobStatus(JobState.COMPLETED, limited, 0)
    (run.path / "state/not_requeued").unlink()
    # srun ends the other ranks of one that fails in this way.
    (run.path / "state/finished").write_text("3\n")
    assert status_from_record(run, Record(JobState.FAILED, "", 3)).reason == "exit code 3"


def test_the_walltime_limit_is_the_one_that_held_when_it_was_changed_meanwhile(make_run: MakeRun) -> None:
    run = make_run(started="now")
    (run.path / "logs").mkdir(exist_ok=True)
    (run.path / "logs/job.err").write_text("=>> PBS: job killed: walltime 26 exceeded limit 10\n")
    assert status_from_record(run, Record(JobState.TIMEOUT)).reason.startswith(
        "the walltime limit (00:00:10)"
    )


def test_a_job_that_is_listed_again_is_waited_for_anew_when_it_is_absent(make_run: MakeRun) -> None:
    run = make_run(started="now", unfinished="1")
    assert status_from_record(run, Record(JobState.RUNNING)).state is JobState.RUNNING
    assert status_from_record(run, None).state is JobState.RUNNING


def test_a_run_whose_submission_failed_says_so(make_run: MakeRun) -> None:
    run = make_run(job_id="")
    status = status_from_record(run, None)
    assert (status.state, status.reason) == (JobState.FAILED, "it was not submitted")
    shutil.rmtree(run.path)
    assert status_of_submission(run).reason == "result unknown: its folder was removed"


ENDED_CLIENT = "process 4711 on {} ended while it submitted the run, and the scheduler has no job of it"


def test_a_run_whose_client_ended_while_it_submitted_has_failed(make_run: MakeRun) -> None:
    run = make_run(job_id="")
    note_intent(run)
    status = status_from_record(run, None)
    assert status.state is JobState.QUEUED
    assert status.reason.startswith(f"being submitted by process {os.getpid()} on ")
    note = run.path / "state/submitting"
    note.write_text(note.read_text().replace(f" {os.getpid()} ", " 4711 "))
    status = status_from_record(run, None)
    assert (status.state, status.reason) == (JobState.FAILED, ENDED_CLIENT.format(platform.node()))


def test_a_client_on_another_machine_is_waited_for_a_while(make_run: MakeRun) -> None:
    run = make_run(job_id="")
    for seconds, state in ((5, JobState.QUEUED), (SUBMITTING_SECONDS + 1, JobState.FAILED)):
        began = datetime.now(timezone.utc) - timedelta(seconds=seconds)
        (run.path / "state/submitting").write_text(f"{began.isoformat()} login1 4711 1 boot\n")
        status = status_from_record(run, None)
        assert status.state is state
    assert status.reason == ENDED_CLIENT.format("login1")


def test_a_submission_that_failed_is_not_queued_while_its_process_lives_on(make_run: MakeRun) -> None:
    run = make_run(job_id="")
    note_intent(run, "sbatch did not answer within 120 s.")
    status = status_from_record(run, None)
    assert (status.state, status.reason) == (
        JobState.FAILED,
        "it was not submitted: sbatch did not answer within 120 s.",
    )


def test_a_preempted_job_of_a_plug_in_waits_to_run_again(make_run: MakeRun) -> None:
    record = Record(JobState.CANCELLED, preempted=True)
    status = status_from_record(make_run(started="now"), record)
    assert status == JobStatus(JobState.QUEUED, "preempted by another job; it will run again")


def test_a_failure_without_exit_code_and_reason_says_so(make_run: MakeRun) -> None:
    status = status_from_record(make_run(started="now"), Record(JobState.FAILED))
    assert status == JobStatus(JobState.FAILED, "it left no exit code")


def test_a_job_that_was_cancelled_and_still_runs_says_so(make_run: MakeRun) -> None:
    assert (
        status_from_record(make_run(cancelled="by hpcprof"), Record(JobState.RUNNING)).reason
        == "being cancelled"
    )


def test_a_stale_finished_file_does_not_end_a_job_that_runs_again(make_run: MakeRun) -> None:
    assert status_from_record(make_run(finished="0"), Record(JobState.RUNNING)).state is JobState.RUNNING


def test_a_job_that_waits_again_after_it_started_says_that_its_node_was_lost(make_run: MakeRun) -> None:
    waits = Record(JobState.QUEUED, "its start time has not been reached (BeginTime)")
    assert status_from_record(make_run("1"), waits).reason == waits.reason
    assert status_from_record(make_run("2", started="now"), waits).reason == (
        "queued again after its node was lost, or after a requeue; "
        "its start time has not been reached (BeginTime)"
    )
    for state, end in (("resubmitted", "a stall"), ("warned", "the signal ahead of its time limit")):
        own = make_run(state, started="now", **{state: "now"})
        assert status_from_record(own, waits).reason == f"queued again after {end}; {waits.reason}"
    run = make_run("4", started="now")
    (run.path / "logs").mkdir()
    (run.path / "logs/job.err").write_text(
        "slurmstepd: error: *** JOB 4 ON n1 CANCELLED AT x DUE TO PREEMPTION ***\n"
    )
    assert status_from_record(run, waits).reason == f"queued again: preempted by another job; {waits.reason}"
    lost = Record(JobState.QUEUED, node_lost=True)
    assert status_from_record(make_run("3"), lost).reason == "queued again after its node was lost"


def test_what_the_scheduler_wrote_about_an_earlier_start_says_nothing_of_the_last_one(
    make_run: MakeRun,
) -> None:
    earlier = {
        "job.err": "slurmstepd: error: *** JOB 4 ON n1 CANCELLED AT x DUE TO PREEMPTION ***\n",
        "job.out": "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\n",
    }
    before = {"errors_before": str(len(earlier["job.err"])), "output_before": str(len(earlier["job.out"]))}
    run = make_run(started="now", finished="0", **before)
    (run.path / "logs").mkdir()
    for name, text in earlier.items():
        (run.path / "logs" / name).write_text(text)
    assert status_from_record(run, ENDED) == JobStatus(JobState.COMPLETED, "", 0)
    (run.path / "state/finished").write_text("3\n")
    assert status_from_record(run, Record(JobState.FAILED, "", 3)) == JobStatus(
        JobState.FAILED, "exit code 3", 3
    )
    with (run.path / "logs/job.out").open("a") as output:
        output.write(earlier["job.out"])
    assert status_from_record(run, None).reason == "it used more memory than it asked for"
    # Slurm empties the logs of a job that starts again, unless the site has them appended.
    (run.path / "logs/job.out").write_text("")
    (run.path / "state/errors_before").write_text("9999\n")
    (run.path / "logs/job.err").write_text(earlier["job.err"])
    assert status_from_record(run, None).reason == "preempted by another job"


STOPPED = "the capture was stopped after 12 steps and written"
NEAR = f"the walltime limit was near: {STOPPED}"
TIMEOUT = Record(JobState.TIMEOUT)


def profiled(run: Run, *written: str) -> Run:
    """Return the run as one of two ranks under the PyTorch profiler, which has written some profiles."""
    assert run.manifest is not None
    (run.path / "profiles").mkdir()
    for name in written:
        (run.path / "profiles" / name).touch()
    job = msgspec.structs.replace(run.manifest.job, profiler="torch", ranks_per_node=2)
    return replace(run, manifest=msgspec.structs.replace(run.manifest, job=job))


@pytest.mark.parametrize(
    "record",
    [Record(JobState.CANCELLED, "a job did not succeed"), Record(JobState.QUEUED, "a job did not succeed")],
)
def test_a_job_whose_dependency_failed_names_the_run_that_failed(make_run: MakeRun, record: Record) -> None:
    dependencies = [make_run("1", finished="0"), make_run("2", finished="3"), make_run("3", started="now")]
    run = make_run("4")
    job = msgspec.structs.replace(run.submission.job, after=[other.id for other in dependencies])
    run = replace(run, manifest=msgspec.structs.replace(run.submission, job=job))
    assert status_from_record(run, record).reason == "a job did not succeed; run-2 is failed: exit code 3"
    (run.path / "state/started").write_text("now\n")
    assert status_from_record(run, record).reason.endswith("a job did not succeed")


def stop_capture(run: Run, rank: int) -> None:
    (run.path / f"state/rank{rank:05d}.stopped").write_text("after 12 steps and written\n")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (Record(JobState.RUNNING), NEAR),
        (LONG_AGO, NEAR),
        (TIMEOUT, f"the walltime limit (00:01:00) was exceeded; before that {STOPPED}"),
        (Record(JobState.FAILED, "", 3), f"exit code 3; {NEAR}"),
        (Record(JobState.QUEUED, "Priority"), "Priority"),
    ],
)
def test_a_capture_that_stopped_ahead_of_the_walltime_limit_is_said(
    record: Record, reason: str, make_run: MakeRun
) -> None:
    finished = {"finished": "0"} if record is LONG_AGO else {}
    run = profiled(make_run(attempt="1", **finished), "rank00000.trace.json.gz", "rank00001.trace.json.gz")
    stop_capture(run, 1)
    assert status_from_record(run, record).reason == reason


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (("rank00000.trace.json.gz", "rank00001.trace.json.gz"), ""),
        (("rank00000.trace.json.gz",), "; rank 1 left no profile"),
        ((), "; 2 of 2 profiled ranks left no profile"),
    ],
)
def test_profiles_that_are_lost_at_the_walltime_limit_are_said(
    written: tuple[str, ...], says: str, make_run: MakeRun
) -> None:
    run = profiled(make_run(), *written)
    assert status_from_record(run, TIMEOUT).reason == f"the walltime limit (00:01:00) was exceeded{says}"


LOST = JobStatus(JobState.FAILED, "it left no finished file", provisional=True)
AWAY = JobStatus(JobState.UNKNOWN, "Slurm did not answer.")
RUNNING = JobStatus(JobState.RUNNING)


def test_an_ended_run_keeps_its_state_reason_and_exit_code(make_run: MakeRun) -> None:
    run = make_run(finished="3")
    status = JobStatus(JobState.FAILED, "exit code 3", 3)
    keep_verdict(run, status)
    assert read_final_status(run) == status


def test_the_group_that_may_read_a_run_reads_its_state(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(finished="0")
    for may_read, mode in ((True, 0o640), (False, 0o600)):
        monkeypatch.setattr(run_state, "group_may_read", lambda may_read=may_read: may_read)
        keep_verdict(run, JobStatus(JobState.COMPLETED))
        assert (run.path / "state/verdict").stat().st_mode & 0o777 == mode


def test_an_open_run_keeps_nothing(make_run: MakeRun) -> None:
    run = make_run()
    for state in (JobState.QUEUED, JobState.RUNNING, JobState.UNKNOWN):
        keep_verdict(run, JobStatus(state))
    assert read_final_status(run) is None


def test_a_run_without_a_job_id_keeps_nothing_since_it_may_be_being_submitted(make_run: MakeRun) -> None:
    run = make_run()
    assert run.manifest is not None
    new = Run(run.id, run.path, msgspec.structs.replace(run.manifest, scheduler_job_id=""))
    keep_verdict(new, LOST)
    assert read_final_status(new) is None


def test_a_failure_for_want_of_a_finished_file_is_not_final(make_run: MakeRun) -> None:
    run = make_run()
    keep_verdict(run, LOST)
    assert (read_final_status(run), read_verdict(run)) == (None, LOST)


def test_a_failure_that_the_scheduler_reports_without_an_exit_code_is_final(make_run: MakeRun) -> None:
    run = make_run()
    status = JobStatus(JobState.FAILED, "a node of the job failed")
    assert status_now(run, status) == read_final_status(run) == status


def test_a_result_that_is_seen_while_the_scheduler_is_away_stays_when_it_is_back(make_run: MakeRun) -> None:
    run = make_run(finished="0")
    assert status_now(run, AWAY).state is JobState.COMPLETED
    assert status_now(run, RUNNING).state is JobState.COMPLETED
    (run.path / "state/finished").unlink()
    assert status_now(run, AWAY).state is JobState.COMPLETED
    timeout = JobStatus(JobState.TIMEOUT, "the walltime limit (00:01:00) was exceeded")
    assert status_now(run, timeout) == read_final_status(run) == timeout


def test_an_end_that_was_only_inferred_stays_while_the_scheduler_is_away(make_run: MakeRun) -> None:
    run = make_run()
    for status in (LOST, AWAY):
        assert status_now(run, status) == LOST
    # The scheduler lists the job after all.
    assert status_now(run, RUNNING) == RUNNING
    assert status_now(run, AWAY) == AWAY


def test_a_finished_file_that_arrives_late_does_not_reopen_a_timeout(make_run: MakeRun) -> None:
    run = make_run()
    keep_verdict(run, JobStatus(JobState.TIMEOUT, "the walltime limit was exceeded"))
    (run.path / "state/finished").write_text("143\n")
    assert read_final_status(run) is not None


def test_a_directory_that_cannot_be_written_is_no_error(make_run: MakeRun) -> None:
    run = make_run()
    (run.path / "state").rmdir()
    keep_verdict(run, LOST)
    assert read_final_status(run) is None


def test_a_damaged_verdict_is_judged_again(make_run: MakeRun) -> None:
    assert read_final_status(make_run(verdict="{")) is None
    assert read_final_status(make_run("8", verdict='["failed"]')) is None


def test_a_job_without_a_record_that_a_signal_ended_was_cancelled(make_run: MakeRun) -> None:
    run = make_run(started="now", terminated="TERM", unfinished="0")
    status = status_from_record(run, None)
    assert (status.state, status.reason) == (JobState.CANCELLED, "by SIGTERM; the scheduler does not list it")
    (run.path / "logs").mkdir(exist_ok=True)
    (run.path / "logs/job.err").write_text("=>> PBS: job killed: mem 2kb exceeded limit 1kb\n")
    assert status_from_record(run, None).reason == "it used more memory than it asked for"


def test_a_signal_decides_as_soon_as_the_output_of_the_job_has_arrived(make_run: MakeRun) -> None:
    run = make_run(started="now", terminated="TERM")
    assert status_from_record(run, None).state is JobState.RUNNING
    (run.path / "logs").mkdir(exist_ok=True)
    (run.path / "logs/job.err").touch()
    assert status_from_record(run, None).state is JobState.CANCELLED


def test_output_that_is_on_the_screen_is_not_repeated(make_run: MakeRun) -> None:
    run = make_run(finished="1", started="now")
    (run.path / "logs").mkdir(exist_ok=True)
    for rank in (0, 1):
        (run.path / f"logs/rank{rank:05d}.err").write_text("ValueError: x\n")
    (run.path / "state/rank00000.exit").write_text("1\n")
    status = JobStatus(JobState.FAILED, "exit code 1")
    assert describe_failure(run, status, shown_rank=0)[1:] == ["rank 0: exit code 1"]
    assert describe_failure(run, status, shown_rank=1)[1:] == ["rank 0: exit code 1", "  ValueError: x"]
    assert describe_failure(run, status) == describe_failure(run, status, shown_rank=1)
