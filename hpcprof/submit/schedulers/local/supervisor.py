"""The supervisor of a local job: starts job.sh, enforces the walltime, ends every process.

It is started as ``python -m hpcprof.submit.schedulers.local.supervisor RUN_DIRECTORY WALLTIME_SECONDS`` in a
session of its own. It imports little more than the standard library, to start in a few milliseconds.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hpcprof.common.atomic import write_atomically
from hpcprof.common.process_identity import ProcessIdentity

SUPERVISOR = "supervisor"
ENDED = "ended"
RUN_AHEAD = "behind"
"""The state file with the path of the run that must end before this one starts."""
GRACE_SECONDS = 10.0
"""The seconds that a job has after SIGTERM to end by itself, before SIGKILL."""

_POLL_SECONDS = 0.2
"""The pause between two looks at the run ahead: short beside a measurement, and without load on it."""

_MARK = "HPCPROF_JOB_DIRECTORY"


class JobEnd(NamedTuple):
    """The end of a job (``exited``, ``cancelled`` or ``timeout``), and the exit code of job.sh."""

    how: str
    exit_code: int

    @staticmethod
    def parse(text: str | None) -> "JobEnd | None":
        """Read what `str` wrote."""
        how, _, code = (text or "").partition(" ")
        return JobEnd(how, int(code)) if code else None

    def __str__(self) -> str:
        return f"{self.how} {self.exit_code}"


class _Cancelled(Exception):
    pass


def supervise(run: Path, walltime: float) -> JobEnd:
    """Run job.sh, once the run ahead has ended, until it ends, its walltime is exceeded, or SIGTERM comes."""

    def cancelled(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Cancelled

    how = "exited"
    with (run / "logs" / "job.out").open("ab") as out, (run / "logs" / "job.err").open("ab") as err:
        signal.signal(signal.SIGTERM, cancelled)
        job = None
        try:
            note = run / "state" / RUN_AHEAD
            with suppress(FileNotFoundError):
                ahead = Path(note.read_text(encoding="utf-8").rstrip("\n"))
                while not _has_ended(ahead):
                    time.sleep(_POLL_SECONDS)
                note.unlink()
            job = subprocess.Popen(
                ["/bin/bash", str(run / "job.sh")],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env={**os.environ, _MARK: str(run)},
            )
            job.wait(timeout=walltime)
        except _Cancelled:
            how = "cancelled"
        except subprocess.TimeoutExpired:
            how = "timeout"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if job is None:
        return JobEnd(how, -signal.SIGTERM)
    if how != "exited":
        _signal(job.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            job.wait(timeout=GRACE_SECONDS)
    _signal(job.pid, signal.SIGKILL)
    end_processes(run)
    return JobEnd(how, job.wait())


def _has_ended(run: Path) -> bool:
    """Return whether no process of a local run is left; also if its folder was removed."""
    if (run / "state" / ENDED).exists():
        return True
    try:
        identity = ProcessIdentity.parse((run / "state" / SUPERVISOR).read_text(encoding="utf-8"))
    except OSError:
        identity = None
    return (identity is None or not identity.alive()) and not processes_of(run)


def processes_of(run: Path) -> list[int]:
    """Return a job's processes, marked by a variable: launchers give ranks sessions of their own."""
    mark = f"{_MARK}={run}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
    return pids


def end_processes(run: Path) -> None:
    """Kill every process of the run's job, including those that are started meanwhile."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (alive := processes_of(run)) and time.monotonic() < deadline:
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def main() -> None:
    """Write the identity of this process, run the job, and write how it ended."""
    run, walltime = Path(sys.argv[1]), float(sys.argv[2])
    write_atomically(run / "state" / SUPERVISOR, f"{ProcessIdentity.of(os.getpid())}\n")
    outcome = supervise(run, walltime)
    write_atomically(run / "state" / ENDED, f"{outcome}\n")


if __name__ == "__main__":
    main()
