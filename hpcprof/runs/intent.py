"""The intent to submit: the record of a run's job until the scheduler returns its id.

A client that is killed between ``sbatch`` and writing the id leaves a job that runs. So it notes its intent
first, and removes the note when ``run.json`` has the id; and the job notes its own id when it starts.
"""

import os
import platform
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from hpcprof.common.atomic import write_atomically
from hpcprof.common.process_identity import ProcessIdentity
from hpcprof.runs.directory import JOB_ID_FILE, Run

_INTENT_FILE = "submitting"


class Intent(msgspec.Struct, frozen=True):
    """The process that submits a run, its ``owner`` by name or number, and the ``error`` if that failed."""

    owner: str
    since: datetime
    host: str
    process: ProcessIdentity
    error: str = ""

    def age_seconds(self) -> float:
        """Return the seconds since the submission began."""
        return (datetime.now(timezone.utc) - self.since).total_seconds()

    def alive(self) -> bool | None:
        """Return whether the process still runs; None if it is on another machine."""
        return self.process.alive() if self.host == platform.node() else None


def note_intent(run: Run, error: str = "") -> None:
    """Note that this process is about to hand a run to the scheduler, or why that has failed."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    line = f"{now} {platform.node()} {ProcessIdentity.of(os.getpid())}"
    write_atomically(run.path / "state" / _INTENT_FILE, f"{line}\n{error}\n")


def read_intent(run: Run) -> Intent | None:
    """Return the intent of a run that is being submitted; None if it has a job id, or no submission began."""
    if run.job_id:
        return None
    path = run.path / "state" / _INTENT_FILE
    try:
        line, _, error = (run.state_file(_INTENT_FILE) or "").partition("\n")
        since, host, *process = line.split()
        identity = ProcessIdentity.parse(" ".join(process))
        if identity is None:
            return None
        # The account on a host.
        user = run.manifest.site.user if run.manifest and run.manifest.site.host else ""
        return Intent(user or _owner(path), datetime.fromisoformat(since), host, identity, error)
    except (ValueError, OSError):
        return None


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except KeyError:
        return str(path.stat().st_uid)


def remove_intent(run: Run) -> None:
    """Remove the note once ``run.json`` has the job id."""
    with suppress(OSError):  # the id counts all the same
        (run.path / "state" / _INTENT_FILE).unlink(missing_ok=True)


def note_job_id(run: Run, job_id: str) -> None:
    """Write the id that the scheduler gave for a run's job, as the job itself does when it starts."""
    with suppress(OSError):  # another user's run
        write_atomically(run.path / "state" / JOB_ID_FILE, f"{job_id}\n")
