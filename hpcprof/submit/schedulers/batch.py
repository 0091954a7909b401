"""What Slurm and PBS have in common: submit, poll and cancel around the commands of each."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import SchedulerError
from hpcprof.submit.runs.directory import Run
from hpcprof.submit.schedulers.base import JobState, JobStatus, SchedulerClient
from hpcprof.submit.schedulers.command import ask_again_while_silent
from hpcprof.submit.schedulers.run_state import CANCELLED_FILE, Record, status_from_record
from hpcprof.submit.schedulers.scheduler import JOB_SCRIPT

_DEPENDENCY_AGE = timedelta(days=31)
_RANGE = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+)(?::(?P<step>\d+))?)?")


class BatchClient(SchedulerClient):
    """A scheduler that is spoken to by commands; each has its own hand-over, question and deletion."""

    @abstractmethod
    def hand_over(self, script: Path, directory: Path, after: Sequence[str]) -> str:
        """Submit ``script`` from ``directory`` to run after jobs that are not over; return its job id."""

    @abstractmethod
    def records(self, job_ids: Sequence[str], since: datetime) -> Mapping[str, Record]:
        """Return what is known of jobs, all submitted after ``since``; one not known is left out.

        Raises
        ------
        SchedulerError
            If the scheduler gave no answer.
        """

    @abstractmethod
    def delete(self, job_ids: Sequence[str]) -> None:
        """End jobs; one that is over or not known is left as it is."""

    @abstractmethod
    def member_id(self, array_id: str, index: int) -> str:
        """Return the job id of one member of a job array."""

    @abstractmethod
    def largest_array(self) -> int | None:
        """Return how many members a job array may have, None where the scheduler does not tell."""

    def unfinished(self, job_ids: Sequence[str]) -> list[str]:
        """Return the jobs that are still to be waited for.

        Slurm runs a job after one that it does not know, and PBS drops it without a word; so both are
        asked before. A job that has succeeded needs no waiting.
        """
        if not job_ids:
            return []
        since = datetime.now(timezone.utc) - _DEPENDENCY_AGE
        records = ask_again_while_silent(lambda: self.records(job_ids, since))
        for job_id in job_ids:
            record = records.get(job_id)
            if record is None:
                raise SchedulerError(f"job {job_id}, to run after, is not known to the scheduler.")
            if record.state.ended and record.state is not JobState.COMPLETED and not record.preempted:
                how = f"{record.state.value} {record.reason}".strip()
                raise SchedulerError(f"job {job_id}, to run after, has not succeeded: {how}.")
        return [job_id for job_id in job_ids if not records[job_id].state.ended or records[job_id].preempted]

    def submit(self, run: Run, after: Sequence[str] = ()) -> str:
        """Hand over the run's ``job.sh``; it is submitted from the directory where its program runs."""
        assert run.manifest is not None
        return self.hand_over(run.path / JOB_SCRIPT, Path(run.manifest.job.directory), after)

    def submit_array(self, script: Path, members: Sequence[Run], after: Sequence[str] = ()) -> list[str]:
        """Hand over the script of a job array of runs, and return the job id of each."""
        assert members[0].manifest is not None
        array_id = self.hand_over(script, Path(members[0].manifest.job.directory), after)
        return [self.member_id(array_id, index) for index in range(len(members))]

    def poll(self, runs: Sequence[Run]) -> dict[str, JobStatus]:
        """Return each run's status by run id; all are unknown where the scheduler gives no answer."""
        ids = {run.id: run.manifest.scheduler_job_id for run in runs if run.manifest is not None}
        known = [job_id for job_id in ids.values() if job_id]
        records: Mapping[str, Record] = {}
        if known:
            try:
                records = ask_again_while_silent(lambda: self.records(known, _oldest(runs)))
            except SchedulerError as error:
                return {run.id: JobStatus(JobState.UNKNOWN, str(error)) for run in runs}
        return {run.id: status_from_record(run, records.get(ids[run.id])) for run in runs}

    def cancel(self, *runs: Run) -> None:
        """Delete the runs' jobs; they may show as running for seconds more while their processes end."""
        states = self.poll(runs)
        alive = [run for run in runs if not states[run.id].state.ended]
        for run in alive:
            if states[run.id].state is JobState.UNKNOWN:
                raise SchedulerError(f"{run.id} was not cancelled: {states[run.id].reason}")
        if not alive:
            return
        # Before the deletion: once the scheduler forgets a job, nothing else tells that it was no failure.
        marks = [run.path / "state" / CANCELLED_FILE for run in alive]
        for mark in marks:
            write_atomically(mark, "by hpcprof cancel\n")
        try:
            self.delete([run.manifest.scheduler_job_id for run in alive if run.manifest])
        except SchedulerError:
            for mark in marks:
                mark.unlink(missing_ok=True)
            raise


def _oldest(runs: Sequence[Run]) -> datetime:
    return min(datetime.fromisoformat(run.manifest.created) for run in runs if run.manifest is not None)


def parse_array_indices(text: str) -> list[int]:
    """Return the indices in a text such as ``0-3,7,8-12:2%4``, as both Slurm and PBS print it.

    ``%4`` is how many members run at once. Parts that are not indices are passed over: the ``-`` that PBS
    prints for none, and the ``...`` at the end of a text that Slurm has cut.
    """
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(part)
        if match:
            first = int(match["first"])
            found += range(first, int(match["last"] or first) + 1, int(match["step"] or 1))
    return found
