"""The machine, the argument of a check, and the finding, its result; tests make up machines.

A trial is a small job at the site, for checks that this machine cannot make.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import msgspec

from hpcprof.common.errors import HpcprofError
from hpcprof.common.processes import CommandNotStarted, CommandTimedOut, run_command
from hpcprof.runs.directory import Run
from hpcprof.submit.jobs.job import JobSpec
from hpcprof.submit.jobs.request import make_job
from hpcprof.submit.launchers import find_mpiexec
from hpcprof.submit.schedulers.base import JobStatus
from hpcprof.submit.schedulers.registry import find_scheduler
from hpcprof.submit.schedulers.scheduler import Scheduler
from hpcprof.submit.sites.model import Site

COMMAND_SECONDS = 30.0


class Status(Enum):
    """The result of a check. ``ABSENT`` is not a fault by itself: not every machine has GPUs."""

    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"
    ABSENT = "absent"


@dataclass(frozen=True)
class CheckResult:
    """The finding of a check: what it saw, and a remedy if there is one; `examine` adds the name."""

    status: Status
    observation: str
    remedy: str = ""
    name: str = ""


ok, warning, broken, absent = (partial(CheckResult, status) for status in Status)
"""A finding of each status, from its observation and its remedy."""


class Answer(msgspec.Struct, frozen=True):
    """The answer of a command; ``exit_code`` is None if the command did not start or timed out."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""

    @property
    def ok(self) -> bool:
        """True if the command succeeded."""
        return self.exit_code == 0

    @property
    def why(self) -> str:
        """The last line that the command printed, or its exit code: why it failed."""
        lines = [line.strip() for line in f"{self.stdout}\n{self.stderr}".splitlines() if line.strip()]
        return lines[-1].rstrip(".") if lines else f"exit code {self.exit_code}"


def ask(
    command: Sequence[str], environment: Mapping[str, str] | None = None, seconds: float | None = None
) -> Answer:
    """Run a command with additional environment variables; a command that cannot run gives an answer too."""
    limit = COMMAND_SECONDS if seconds is None else seconds
    try:
        result = run_command(command, timeout=limit, environment={**os.environ, **(environment or {})})
    except (CommandNotStarted, CommandTimedOut) as error:
        return Answer(None, stderr=str(error))
    return Answer(result.exit_code, result.stdout, result.stderr)


def read_text(path: Path) -> str | None:
    """Return the text of a file, None if it cannot be read."""
    with suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8")
    return None


def free_bytes(path: Path) -> int:
    """Return the bytes that this user can still write at ``path``, which need not exist yet."""
    return shutil.disk_usage(nearest_folder(path)).free


def nearest_folder(path: Path) -> Path:
    """Return the folder at a path, or the nearest one above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.is_dir())


class Inspected(msgspec.Struct, frozen=True):
    """Everything that a check looks at; ``probe`` lets checks start ranks on a batch system."""

    site: Site
    runs: Path
    python: str = sys.executable
    probe: bool = False
    run: Callable[..., Answer] = ask
    which: Callable[[str], str | None] = shutil.which
    read: Callable[[Path], str | None] = read_text
    free: Callable[[Path], int] = free_bytes
    mpiexec: Callable[[], str | None] = find_mpiexec
    environment: Mapping[str, str] = msgspec.field(default_factory=lambda: os.environ)
    user: int = msgspec.field(default_factory=os.getuid)

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the site."""
        return find_scheduler(self.site.scheduler)

    @property
    def in_job(self) -> bool:
        """True if this process runs inside a job of the scheduler."""
        return bool(self.environment.get(self.scheduler.job_id_variable))

    @property
    def starts_ranks(self) -> bool:
        """True if checks may start ranks here."""
        return self.probe or self.in_job or self.scheduler.runs_here


TRIAL_QUEUE_SECONDS = 120
"""Maximum seconds that the job of a check waits for a node."""
TRIAL_MINUTES = 5
"""The walltime of the job of a check, which ends it if hpcprof is killed."""


class NotGranted(HpcprofError):
    """The scheduler gave no node; the message is the end of a sentence."""


@contextmanager
def trial_job(
    machine: Inspected, program: Sequence[str], ranks: int, option: str
) -> Iterator[tuple[Run, JobStatus, str]]:
    """Run a job for ``option``; yield run, status and its ranks' output, or raise `NotGranted` if late."""
    # Submitting needs modules that no other check needs.
    from hpcprof.submit.submission import submit
    from hpcprof.submit.waiting import cancel_and_wait, poll_until

    folder = Path(tempfile.mkdtemp(prefix=".hpcprof-probe-", dir=nearest_folder(machine.runs)))
    try:
        spec = JobSpec(tuple(program), ranks_per_node=ranks, walltime=f"{TRIAL_MINUTES}m")
        run = submit(machine.site, make_job(machine.site, spec), folder, ["hpcprof", "doctor", option])
        status = poll_until(run, TRIAL_QUEUE_SECONDS)
        if not status.state.ended:
            cancel_and_wait([run])
            raise NotGranted(f"the job is {status} after {TRIAL_QUEUE_SECONDS} s.")
        outputs = sorted(run.path.glob("logs/rank*.out"))
        yield run, status, "".join(path.read_text(errors="replace") for path in outputs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
