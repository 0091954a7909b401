"""The final status of a run, kept in its directory so that no scheduler is asked about an ended run again."""

from __future__ import annotations

import json
from contextlib import suppress

from hpcprof.common.atomic import write_atomically
from hpcprof.submit.runs.directory import Run
from hpcprof.submit.schedulers.base import JobState, JobStatus

_FILE = "verdict"
_FINISHED = "finished"


def read_final_status(run: Run) -> JobStatus | None:
    """Return the status that a run ended with; None if it is open, or if its end must be judged again.

    A run that was judged to have failed because its ``finished`` file was missing is judged again once the
    file has arrived.
    """
    try:
        kept = json.loads(run.state_file(_FILE) or "")
        status = JobStatus(JobState(kept["state"]), str(kept["reason"]), kept["exit_code"])
        finished = kept[_FINISHED]
    except (ValueError, KeyError, TypeError):
        return None
    guessed = status.state is JobState.FAILED and status.exit_code is None and finished is None
    return None if guessed and run.state_file(_FINISHED) is not None else status


def keep_final_status(run: Run, status: JobStatus) -> None:
    """Write the status of an ended run to ``state/verdict``, if its directory can be written.

    A run without a job id is left open: it may be being submitted at this moment.
    """
    if not status.state.ended or run.manifest is None or not run.manifest.scheduler_job_id:
        return
    kept = {
        "state": status.state.value,
        "reason": status.reason,
        "exit_code": status.exit_code,
        _FINISHED: run.state_file(_FINISHED),
    }
    with suppress(OSError):
        write_atomically(run.path / "state" / _FILE, json.dumps(kept) + "\n")


def status_by_finished_file(run: Run) -> JobStatus | None:
    """Return the status of a run by the exit code in its ``finished`` file; None if it has none."""
    text = run.state_file(_FINISHED) or ""
    if not text.isdigit():
        return None
    code = int(text)
    return (
        JobStatus(JobState.FAILED, f"exit code {code}", code)
        if code
        else JobStatus(JobState.COMPLETED, "", 0)
    )
