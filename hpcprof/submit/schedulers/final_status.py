"""The status that a run ended with, kept in its directory so that no scheduler is asked about it again."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

from hpcprof.common.atomic import write_atomically
from hpcprof.submit.runs.directory import Run
from hpcprof.submit.schedulers.base import JobState, JobStatus

_FILE = "verdict"
_FINISHED = "finished"


def read_verdict(run: Run) -> JobStatus | None:
    """Return the status that a run ended with, which may be provisional; None if none was kept."""
    try:
        kept = json.loads(run.state_file(_FILE) or "")
        state, reason, provisional = JobState(kept["state"]), str(kept["reason"]), "provisional" in kept
        return JobStatus(state, reason, kept["exit_code"], provisional)
    except (ValueError, KeyError, TypeError):
        return None


def read_final_status(run: Run) -> JobStatus | None:
    """Return the status that a run ended with; None if it is open, or if its end must be judged again."""
    verdict = read_verdict(run)
    return None if verdict is None or verdict.provisional else verdict


def keep_verdict(run: Run, status: JobStatus) -> None:
    """Write the status of an ended run to ``state/verdict``, if its directory can be written.

    A run without a job id is left open: it may be being submitted at this moment.
    """
    if run.manifest is None or not run.job_id:
        return
    with suppress(OSError):
        if not status.state.ended:
            (run.path / "state" / _FILE).unlink(missing_ok=True)
            return
        kept = {"state": status.state.value, "reason": status.reason, "exit_code": status.exit_code}
        kept |= {"provisional": True} if status.provisional else {}
        write_atomically(run.path / "state" / _FILE, json.dumps(kept) + "\n")


def status_now(run: Run, answer: JobStatus) -> JobStatus:
    """Return the status of an open run from the scheduler's answer, and keep it if the run has ended.

    While the scheduler does not answer, the run has the status that its ``finished`` file gives, or that it
    had. A run that has ended with an exit code does not go back: a scheduler that was away may still call it
    running.
    """
    verdict = read_verdict(run)
    status = answer
    if answer.state is JobState.UNKNOWN:
        finished = status_by_finished_file(run)
        status = replace(finished, provisional=True) if finished is not None else verdict or answer
    elif not answer.state.ended and verdict is not None and verdict.exit_code is not None:
        status = verdict
    if status != verdict and (status.state.ended or verdict is not None):
        keep_verdict(run, status)
    return status


def status_by_finished_file(run: Run) -> JobStatus | None:
    """Return the status of a run by the exit code in its ``finished`` file; None if it has none."""
    text = run.state_file(_FINISHED) or ""
    if not text.isdigit():
        return None
    code = int(text)
    state, reason = (JobState.FAILED, f"exit code {code}") if code else (JobState.COMPLETED, "")
    return JobStatus(state, reason, code)
