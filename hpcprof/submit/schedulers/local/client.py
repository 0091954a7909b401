"""The local client: runs job.sh on this machine under a supervisor that outlives the terminal.

The supervisor (`hpcprof.submit.schedulers.local.supervisor`) keeps the scheduler's record: it writes its
identity to ``state/supervisor`` when it starts, and how the job ended to ``state/ended``. A process id alone
identifies no process, since ids are reused after a while and after a reboot; so the record also holds the
boot id and the start time of the process.
"""

import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import SchedulerError
from hpcprof.common.process_identity import ProcessIdentity
from hpcprof.common.processes import CommandNotStarted, start_in_background
from hpcprof.runs.directory import Run
from hpcprof.submit.runs.failures import disk_was_full
from hpcprof.submit.schedulers import run_state
from hpcprof.submit.schedulers.base import JobState, JobStatus, Record, SchedulerClient, mark_cancelled
from hpcprof.submit.schedulers.command import Refused
from hpcprof.submit.schedulers.local import supervisor
from hpcprof.submit.schedulers.local.supervisor import JobEnd

_START_SECONDS = 30.0


class LocalClient(SchedulerClient):
    """Starts jobs on this machine: at once, or when the run that they are queued behind has ended."""

    cannot_wait = "this machine has no queue to wait in: submit the job when the other run has ended."

    def queue_behind(self, run: Run, ahead: Run) -> None:
        """Note the run ahead for the supervisor, which waits for its end; the walltime begins afterwards."""
        write_atomically(run.path / "state" / supervisor.RUN_AHEAD, f"{ahead.path}\n")

    def submit(self, run: Run, after: Sequence[str] = ()) -> str:
        """Start the supervisor in its own session; the job id is its process id."""
        words = [
            "hpcprof.submit.schedulers.local.supervisor",
            str(run.path),
            str(run.submission.job.walltime),
        ]
        try:
            # python -m searches the working directory: the user's files must not be found.
            process = start_in_background([sys.executable, "-m", *words], Path("/"))
        except CommandNotStarted as error:
            raise Refused(f"cannot start the job: {error.reason}.") from None
        deadline = time.monotonic() + _START_SECONDS
        while run.state_file(supervisor.SUPERVISOR) is None:
            ended = process.poll() is not None and run.state_file(supervisor.SUPERVISOR) is None
            if ended or time.monotonic() > deadline:
                process.kill()
                raise Refused(f"the local supervisor of {run.id} did not start.")
            time.sleep(0.005)
        return str(process.pid)

    def poll(self, runs: Sequence[Run]) -> dict[str, JobStatus]:
        """Return each run's status, from its supervisor and its state files."""
        return {run.id: local_status(run) for run in runs}

    def cancel(self, *runs: Run) -> None:
        """Ask the supervisors to end the jobs, and wait until they have."""
        # All are signalled before the first wait, since the end of one job starts the next.
        supervisors = {run.id: _ask_to_end(run) for run in runs}
        for run_id, identity in supervisors.items():
            deadline = time.monotonic() + supervisor.GRACE_SECONDS + _START_SECONDS
            while identity is not None and identity.alive():
                if time.monotonic() > deadline:
                    raise SchedulerError(f"{run_id} did not end; its supervisor is process {identity.pid}.")
                time.sleep(0.02)


def _ask_to_end(run: Run) -> ProcessIdentity | None:
    """Signal the supervisor of a run and return it; None if the run has no supervisor and has ended."""
    if local_status(run).state.ended:
        return None
    mark_cancelled(run)
    identity = ProcessIdentity.parse(run.state_file(supervisor.SUPERVISOR))
    if identity is None or not identity.alive():
        supervisor.end_processes(run.path)
        write_atomically(run.path / "state" / supervisor.ENDED, f"{JobEnd('cancelled', -signal.SIGKILL)}\n")
        return None
    os.kill(identity.pid, signal.SIGTERM)
    return identity


def local_status(run: Run) -> JobStatus:
    """Return the state of a local run."""
    identity = ProcessIdentity.parse(run.state_file(supervisor.SUPERVISOR))
    if identity is None:
        return run_state.status_of_submission(run)
    # This precedes reading the record, which a supervisor that ends in between has then written.
    alive = identity.alive()
    outcome = JobEnd.parse(run.state_file(supervisor.ENDED))
    if outcome is not None:
        return _ended_status(outcome, run)
    if alive and (ahead := run.state_file(supervisor.RUN_AHEAD)) is not None:
        return JobStatus(JobState.QUEUED, f"waits for the end of {Path(ahead).name}")
    if alive:
        started = run.state_file("started") is not None or not run_state.records(run, "started")
        state = JobState.RUNNING if started else JobState.QUEUED
        return JobStatus(state, run_state.capture_note(run) if started else "")
    finished = run.state_file("finished")
    if finished is not None:
        return _ended_status(JobEnd("exited", int(finished)), run)
    if supervisor.processes_of(run.path):
        return JobStatus(JobState.RUNNING, "its supervisor was killed, so nothing enforces the walltime")
    if not run_state.records(run, "finished"):
        return run_state.unknown_result("its supervisor has disappeared")
    why = "no space was left for one" if disk_was_full(run) else "it was killed, or the machine restarted"
    reason = f"its process has disappeared without a finished file: {why}"
    return JobStatus(JobState.FAILED, reason, provisional=True)


def _ended_status(outcome: JobEnd, run: Run) -> JobStatus:
    states = {"cancelled": JobState.CANCELLED, "timeout": JobState.TIMEOUT}
    succeeded = JobState.COMPLETED if outcome.exit_code == 0 else JobState.FAILED
    # Without waiting: files on a local disk appear at once.
    record = Record(states.get(outcome.how, succeeded), "", outcome.exit_code, math.inf)
    return run_state.status_from_record(run, record)
