"""What every scheduler does for hpcprof, and the states a job can be in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from hpcprof.submit.runs.directory import Run


class JobState(Enum):
    """The state of a job. ``UNKNOWN`` means that the scheduler could not be asked."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"

    @property
    def ended(self) -> bool:
        """Whether the job will not change its state any more."""
        return self not in (JobState.QUEUED, JobState.RUNNING, JobState.UNKNOWN)


@dataclass(frozen=True)
class JobStatus:
    """A job's state, why it is in it, and its exit code once it has one."""

    state: JobState
    reason: str = ""
    exit_code: int | None = None


class Scheduler(Protocol):
    """A batch system. Every method raises `hpcprof.common.errors.SchedulerError` where its command fails."""

    def waits_for(self, job_ids: Sequence[str]) -> list[str]:
        """Return which jobs one that is to run after ``job_ids`` has to wait for: those that are not over.

        It is refused where it could never run, or the scheduler cannot wait. Asked before anything is made.
        """

    def submit(self, run: Run, after: Sequence[str] = ()) -> str:
        """Hand over the run's ``job.sh`` and return the scheduler's job id.

        It starts once the jobs ``after``, which `waits_for` returned, have succeeded.
        """

    def poll(self, runs: Sequence[Run]) -> dict[str, JobStatus]:
        """Return the status of each run by run id, asking for all of them at once where possible."""

    def cancel(self, *runs: Run) -> None:
        """End the runs' jobs with all their processes; a job that has ended is left as it is."""
