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
    """Return the status that a run ended with; None if it is open, or if its end must be judged again."""
    try:
        kept = json.loads(run.state_file(_FILE) or "")
        return JobStatus(JobState(kept["state"]), str(kept["reason"]), kept["exit_code"])
    except (ValueError, KeyError, TypeError):
        return None


def keep_final_status(run: Run, status: JobStatus) -> None:
    """Write the status of an ended run to ``state/verdict``, if its directory can be written.

    Two kinds of runs are left open. A run without a job id may be being submitted at this moment. A run that
    was judged to have failed only because its ``finished`` file is missing may still get the file, and a run
    of this machine looks like that from every other machine.
    """
    if not status.state.ended or run.manifest is None or not run.job_id:
        return
    if status.state is JobState.FAILED and status.exit_code is None and run.state_file(_FINISHED) is None:
        return
    kept = {"state": status.state.value, "reason": status.reason, "exit_code": status.exit_code}
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
