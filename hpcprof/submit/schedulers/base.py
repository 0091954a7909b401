"""The states of a job, and the interface of the clients by which runs are submitted, polled and cancelled."""

import os
import pwd
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar

from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import SchedulerError
from hpcprof.runs.directory import Run

CANCELLED_FILE = "cancelled"
"""The state file with who cancels a job by hpcprof, for when the scheduler has forgotten it."""

NODE_LOST = "the node that ran it was lost"
"""The reason for the end of a job that was not queued again."""


class JobState(Enum):
    """The state of a job: ``ENDED`` has an unknown result, ``UNKNOWN`` is one without an answer."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    ENDED = "ended"
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        """True if the job will not change its state any more."""
        return self not in (JobState.QUEUED, JobState.RUNNING, JobState.UNKNOWN)


@dataclass(frozen=True)
class JobStatus:
    """A job's state with its reason and exit code; a provisional one may change by a later answer or file."""

    state: JobState
    reason: str = ""
    exit_code: int | None = None
    provisional: bool = False
    listed: bool = field(default=False, compare=False)
    """True if the scheduler lists the job and says since when, even where it does not know its state."""

    def __str__(self) -> str:
        return f"{self.state.value}: {self.reason}" if self.reason else self.state.value


@dataclass(frozen=True)
class Record:
    """A scheduler's report about one job."""

    state: JobState
    """``COMPLETED`` means only that the scheduler saw no failure."""
    reason: str = ""
    """The reason in words; empty if the state says enough."""
    exit_code: int | None = None
    """The exit code of job.sh if the scheduler knows it; negative for a signal."""
    ended_seconds: float | None = None
    """The time since the job ended; None if that is not known."""
    preempted: bool = False
    """True if another job took its nodes and it waits to run again, though its state is one of ended jobs."""
    node_lost: bool = False
    """True if it waits because a node that ran it was lost."""
    nodes: frozenset[str] = frozenset()
    """The nodes of the job, for schedulers that must be asked whether one is down."""
    script: str = ""
    """Words of the submission, if known: those of a run have a path with its folder. A scheduler that never
    resets the time of submission may give the job's name."""
    submitted_seconds: float | None = None
    """The time since it was submitted; None if that is not known."""


class SchedulerClient(ABC):
    """Speaks to a scheduler by its commands; every method raises `SchedulerError` if one fails."""

    cannot_wait: ClassVar[str] = "this scheduler cannot wait for another job: submit it once that has ended."
    """The sentence by which `unfinished` refuses to wait, unless it is overridden."""

    @abstractmethod
    def submit(self, run: Run, after: Sequence[str] = ()) -> str:
        """Hand over a run and return the scheduler's job id.

        The job starts once the jobs ``after``, which `unfinished` returned, have succeeded.
        """

    @abstractmethod
    def poll(self, runs: Sequence[Run]) -> dict[str, JobStatus]:
        """Return the status of each run by run id, asking for all of them at once if possible."""

    @abstractmethod
    def cancel(self, *runs: Run) -> None:
        """End the runs' jobs with all their processes; a job that has ended is left as it is."""

    def unfinished(self, job_ids: Sequence[str]) -> list[str]:
        """Return the subset of ``job_ids`` that a dependent job must still wait for.

        Called before a run directory is made, so that a dependency which can never be met is an error and
        leaves nothing behind. By default the scheduler cannot wait for a job: SchedulerError.
        """
        if job_ids:
            raise SchedulerError(self.cannot_wait)
        return []

    def queue_behind(self, run: Run, ahead: Run) -> None:
        """Start a run that is not submitted yet after the end of another run, whatever its result.

        By default SchedulerError: only schedulers with a queue of hpcprof's own start runs themselves.
        """
        raise SchedulerError("this scheduler has no queue of hpcprof's own.")

    def submit_array(
        self, script: Path, members: Sequence[Run], index_in_path: str, after: Sequence[str] = ()
    ) -> list[str]:
        """Hand over the script of a job array of runs, and return the job id of each.

        In the path of a log the scheduler replaces ``index_in_path`` by the index of a member.
        By default SchedulerError: the scheduler has no job arrays.
        """
        raise SchedulerError("this scheduler has no job arrays.")

    def largest_array(self) -> int | None:
        """Return the maximum number of members of a job array, None if the scheduler does not say."""
        return None


def mark_cancelled(run: Run) -> Path:
    """Write, before the deletion of a job, the file that shows who cancels it, and return its path."""
    mark = run.path / "state" / CANCELLED_FILE
    write_atomically(mark, f"by {user_name(os.getuid())}, with hpcprof cancel\n")
    return mark


def user_name(uid: int) -> str:
    """Return the name of a user of this host, or the number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
