"""The final status that a run keeps."""

from __future__ import annotations

import msgspec

from hpcprof.submit.runs.directory import Run
from hpcprof.submit.schedulers.base import JobState, JobStatus
from hpcprof.submit.schedulers.run_state import keep_verdict, read_final_status, read_verdict, status_now
from tests.submitted_run import MakeRun

LOST = JobStatus(JobState.FAILED, "it left no finished file", provisional=True)
AWAY = JobStatus(JobState.UNKNOWN, "Slurm did not answer.")
RUNNING = JobStatus(JobState.RUNNING)


def test_an_ended_run_keeps_its_state_reason_and_exit_code(make_run: MakeRun) -> None:
    run = make_run(finished="3")
    status = JobStatus(JobState.FAILED, "exit code 3", 3)
    keep_verdict(run, status)
    assert read_final_status(run) == status


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
