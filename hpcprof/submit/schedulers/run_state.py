"""A run's state, from the scheduler's record of the job and the run's own state files."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from hpcprof.common.atomic import write_atomically
from hpcprof.submit.runs.directory import Run
from hpcprof.submit.schedulers.base import JobState, JobStatus
from hpcprof.submit.sites.model import Preemption

CANCELLED_FILE = "cancelled"
"""The state file by which a cancelled job is known once the scheduler has forgotten it."""

GRACE_SECONDS = 30.0
"""How long after a job's end its ``finished`` file may still be on its way: NFS shows new names late."""

_UNFINISHED_FILE = "unfinished"


@dataclass(frozen=True)
class Record:
    """What a scheduler says of one job.

    Attributes
    ----------
    state : JobState
        ``COMPLETED`` only says that the scheduler saw no failure.
    reason : str
        Why, in words; empty where the state says it all.
    exit_code : int or None
        The exit code of job.sh where the scheduler knows it, negative for a signal.
    ended_seconds : float or None
        How long ago the job ended.
    preempted : bool
        Whether another job took its nodes; what that means is the site's policy.
    """

    state: JobState
    reason: str = ""
    exit_code: int | None = None
    ended_seconds: float | None = None
    preempted: bool = False


def status_from_record(run: Run, record: Record | None) -> JobStatus:
    """Return a run's status from its record and its state files.

    Parameters
    ----------
    run : Run
        A submitted run.
    record : Record or None
        None if the scheduler does not know the job, which by itself is neither success nor failure.
    """
    assert run.manifest is not None
    if record is None:
        return _without_record(run)
    if record.preempted and run.manifest.site.preemption is Preemption.REQUEUE:
        return JobStatus(JobState.QUEUED, "preempted by another job; it will run again")
    if record.state is JobState.COMPLETED:
        return _completed(run, record)
    if record.state is JobState.FAILED:
        return _failed(run, record)
    if record.state is JobState.TIMEOUT:
        reason = record.reason or f"the walltime of {run.manifest.job.walltime} s was over"
        return JobStatus(JobState.TIMEOUT, reason, record.exit_code)
    if record.state is JobState.CANCELLED:
        return JobStatus(JobState.CANCELLED, record.reason or "cancelled by the user", record.exit_code)
    if record.state is not JobState.UNKNOWN and run.state_file(CANCELLED_FILE) is not None:
        return JobStatus(record.state, "being cancelled")
    return JobStatus(record.state, record.reason, record.exit_code)


def _completed(run: Run, record: Record) -> JobStatus:
    finished = _finished(run)
    if finished == 0:
        return JobStatus(JobState.COMPLETED, record.reason, 0)
    if finished is not None:
        return JobStatus(JobState.FAILED, f"exit code {finished}", finished)
    if _still_awaited(run, record.ended_seconds):
        return JobStatus(JobState.RUNNING, "the job has ended; its finished file is not here yet")
    return JobStatus(JobState.FAILED, "job.sh ended without its finished file", record.exit_code)


def _failed(run: Run, record: Record) -> JobStatus:
    # job.sh's own word comes first: sacct subtracts 128 from exit codes above it.
    code = _finished(run) or record.exit_code
    generic = "failed" if code is None else f"exit code {code}"
    return JobStatus(JobState.FAILED, record.reason or generic, code)


def _without_record(run: Run) -> JobStatus:
    """Judge a job that the scheduler has forgotten, or will list in a moment, by its files alone."""
    assert run.manifest is not None
    if not run.manifest.scheduler_job_id:
        return JobStatus(JobState.FAILED, "the scheduler did not take it")
    finished = _finished(run)
    if finished == 0:
        return JobStatus(JobState.COMPLETED, "", 0)
    if finished is not None:
        return JobStatus(JobState.FAILED, f"exit code {finished}", finished)
    if run.state_file(CANCELLED_FILE) is not None:
        return JobStatus(JobState.CANCELLED, "cancelled by the user")
    started = run.state_file("started") is not None
    if _still_awaited(run, None):
        state = JobState.RUNNING if started else JobState.QUEUED
        return JobStatus(state, "the scheduler does not list it; its finished file is not here yet")
    how = "left no finished file" if started else "never started"
    return JobStatus(JobState.FAILED, f"the scheduler no longer knows it, and it {how}")


def _finished(run: Run) -> int | None:
    text = run.state_file("finished") or ""
    return int(text) if text.isdigit() else None


def _still_awaited(run: Run, ended_seconds: float | None) -> bool:
    """Whether the grace still lasts; where the end is not known it starts with the first question."""
    if ended_seconds is not None:
        return ended_seconds < GRACE_SECONDS
    noted = run.state_file(_UNFINISHED_FILE)
    if noted is None:
        with suppress(OSError):
            write_atomically(run.path / "state" / _UNFINISHED_FILE, f"{time.time():.0f}\n")
            return True
        return False  # someone else's run: there is nowhere to note the time
    return time.time() - float(noted) < GRACE_SECONDS
