"""Batch systems: the methods of each scheduler, and the client that they share."""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import ClassVar

from hpcprof.common.atomic import write_atomically
from hpcprof.common.errors import SchedulerError, UsageError
from hpcprof.common.paths import modification_time
from hpcprof.runs.directory import ARRAY_SCRIPT, JOB_ID_FILE, SUBMISSION_FILE, Run, sweep_of
from hpcprof.runs.intent import note_job_id, read_intent
from hpcprof.runs.job import Job
from hpcprof.submit.jobs.walltime import format_walltime
from hpcprof.submit.schedulers.base import JobState, JobStatus, Record, SchedulerClient, mark_cancelled
from hpcprof.submit.schedulers.command import ask_again_while_silent, ids_by_place, submission_message
from hpcprof.submit.schedulers.scheduler import JOB_SCRIPT, Scheduler
from hpcprof.submit.sites.model import Site

_DEPENDENCY_AGE = timedelta(days=31)

_SUBMISSION_SECONDS = 600.0
"""Maximum time between the making of a run and the submission of its job (s), with clocks that differ."""

_LOST_ID = "result unknown: its id is another job's now, and it left no record of its end"

_JOB_NAME_LENGTH = 15
"""Maximum length of a job's name in old PBS; other schedulers allow more."""


class BatchScheduler(Scheduler, ABC):
    """A batch system. A subclass writes `directives`, `submit`, `states` and `cancel`; the rest is optional.

    Each method runs commands by `hpcprof.submit.schedulers.command.run_scheduler_command`, and raises
    `SchedulerError` if one fails: `Refused` if the scheduler has not taken a job, `Unreachable` if it did not
    answer. hpcprof does the rest: it makes the run's folder, notes the job's id, judges the state of a run by
    the job's record and the files that job.sh leaves, and finds jobs whose id was never noted.
    """

    log_flags: ClassVar = ("--output", "--error")

    @abstractmethod
    def directives(self, site: Site, job: Job) -> list[str]:
        """Return the directives that the template does not write itself: ``directives`` in templates.

        They request the `resources` of a job. `site_directives` and `own_directives` return the site's
        and the user's directives.
        """
        return [*self.site_directives(site, job), *self.own_directives(job)]

    @abstractmethod
    def submit(
        self, script: Path, directory: Path, after: Sequence[str] = (), options: Sequence[str] = ()
    ) -> str:
        """Submit a script from a directory, to start once the jobs ``after`` have succeeded; return its id.

        ``options`` are further options of the command that submits; they replace directives.
        """

    @abstractmethod
    def states(self, job_ids: Sequence[str], since: datetime) -> Mapping[str, Record]:
        """Return the records by id of jobs submitted after ``since``; unknown jobs are left out."""

    @abstractmethod
    def cancel(self, job_ids: Sequence[str]) -> None:
        """End jobs with all their processes; those that have ended or are unknown are left as they are."""

    def log_options(self, out: Path, err: Path) -> list[str]:
        """Return the options of the command that submits for the files of a job's output and errors."""
        return [self.log_flags[0], str(out), self.log_flags[1], str(err)]

    def submitted_from(self, script: Path, owner: str) -> str:
        """Return the id of the newest job that a user submitted from a script; empty without one."""
        return ""

    def check_awaited(self, job_ids: Sequence[str]) -> None:
        """Check that a job can wait for the success of other jobs."""

    def member_id(self, array_id: str, index: int) -> str:
        """Return the job id of one member of a job array."""
        return f"{array_id}_{index}"

    def largest_array(self) -> int | None:
        """Return the maximum number of members of a job array, None if the scheduler does not say."""
        return None

    def client(self) -> SchedulerClient:
        """Return the client of runs, which calls the methods above."""
        return BatchClient(self)

    def job_name(self, name: str) -> str:
        """Return a job's name as every batch system accepts it: without spaces, and short."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:_JOB_NAME_LENGTH] or "job"


def check_whole_minutes(job: Job, title: str) -> None:
    """Check that the walltime of a job is a whole number of minutes; a scheduler would round it up."""
    if job.walltime % 60:
        longer = job.walltime + 60 - job.walltime % 60
        nearest = " or ".join(format_walltime(seconds) for seconds in (longer - 60, longer) if seconds)
        reason = f"{title} counts in minutes and would round it up"
        raise UsageError(f"walltime {format_walltime(job.walltime)}: {reason}; write {nearest}.", "walltime")


class BatchClient(SchedulerClient):
    """Submits, polls and cancels runs by the methods of a `BatchScheduler`."""

    def __init__(self, scheduler: BatchScheduler) -> None:
        self.scheduler = scheduler

    def unfinished(self, job_ids: Sequence[str]) -> list[str]:
        """Return the ids of ``job_ids`` to wait for; schedulers start or drop jobs with unknown ones."""
        if not job_ids:
            return []
        since = datetime.now(timezone.utc) - _DEPENDENCY_AGE
        records = ask_again_while_silent(lambda: self.scheduler.states(job_ids, since))
        for job_id in job_ids:
            record = records.get(job_id)
            job = f"job {job_id}, which this one must wait for"
            if record is None:
                raise SchedulerError(f"{job}, is unknown to the scheduler.")
            if record.state is JobState.UNKNOWN and record.submitted_seconds is None:
                raise SchedulerError(f"{job}: {record.reason}")
            if record.state.ended and record.state is not JobState.COMPLETED and not record.preempted:
                how = f"{record.state.value} {record.reason}".strip()
                raise SchedulerError(f"{job}, has not succeeded: {how}.")
        awaited = [
            job_id for job_id in job_ids if not records[job_id].state.ended or records[job_id].preempted
        ]
        self.scheduler.check_awaited(awaited)
        return awaited

    def largest_array(self) -> int | None:
        """Ask for the maximum number of members of a job array, None if the scheduler does not say."""
        return ask_again_while_silent(self.scheduler.largest_array)

    def submit(self, run: Run, after: Sequence[str] = ()) -> str:
        """Submit the run's ``job.sh`` from the working directory of its program."""
        directory, options = Path(run.submission.job.directory), self._log_options(run)
        job_id = self.scheduler.submit(run.path / JOB_SCRIPT, directory, after, options)
        _save_message(run)
        return job_id

    def submit_array(
        self, script: Path, members: Sequence[Run], index_in_path: str, after: Sequence[str] = ()
    ) -> list[str]:
        """Submit the script of a job array, and return the job id of each member."""
        first = members[0]
        first_logs, member_logs = (f"{sweep_of(first.id)}.{index}/logs/" for index in (0, index_in_path))
        options = [option.replace(first_logs, member_logs) for option in self._log_options(first)]
        array_id = self.scheduler.submit(script, Path(first.submission.job.directory), after, options)
        _save_message(first)
        return [self.scheduler.member_id(array_id, index) for index in range(len(members))]

    def _log_options(self, run: Run) -> list[str]:
        """Return the options for the run's logs; none if its script names them, as those of hpcprof do."""
        logs, script = run.path / "logs", run.script
        is_plain = script is not None and f"{logs}/" not in script
        return self.scheduler.log_options(logs / "job.out", logs / "job.err") if is_plain else []

    def poll(self, runs: Sequence[Run]) -> dict[str, JobStatus]:
        """Return each run's status by run id; those that the scheduler does not answer about are unknown."""
        # Imported here: a dry run does not need the reasons of failures.
        from hpcprof.submit.schedulers.run_state import status_from_record

        unknown = self._find_interrupted(runs)
        ids = {run.id: run.job_id for run in runs}
        job_ids = [job_id for job_id in ids.values() if job_id]
        records: Mapping[str, Record] = {}
        if job_ids:
            submitted = [run.submission.created for run in runs if run.manifest is not None]
            since = min(map(datetime.fromisoformat, submitted))
            try:
                records = ask_again_while_silent(lambda: self.scheduler.states(job_ids, since))
            except SchedulerError as error:
                return {run.id: JobStatus(JobState.UNKNOWN, str(error)) for run in runs}
        judged = {}
        for run in runs:
            record = records.get(ids[run.id])
            if record is None or not _is_reused_id(record, run):
                listed = record is not None and record.submitted_seconds is not None
                judged[run.id] = replace(status_from_record(run, record), listed=listed)
            else:
                lost = JobStatus(JobState.ENDED, _LOST_ID, provisional=True)
                by_files = status_from_record(run, None)
                judged[run.id] = by_files if by_files.state.ended else lost
        return judged | unknown

    def _find_interrupted(self, runs: Sequence[Run]) -> dict[str, JobStatus]:
        """Note ids of jobs whose clients ended before; return the status of runs without an answer."""
        unknown = {}
        ids_of_scripts: dict[Path, str] = {}
        for run in runs:
            intent = read_intent(run)
            if intent is None:
                continue
            script, index = run.path / JOB_SCRIPT, ""
            if sweep := sweep_of(run.id):
                script, index = run.path.with_name(sweep) / ARRAY_SCRIPT, run.id.rpartition(".")[2]
            try:
                if script not in ids_of_scripts:
                    ids_of_scripts[script] = ask_again_while_silent(
                        partial(self.scheduler.submitted_from, script, intent.owner)
                    )
            except SchedulerError as error:
                unknown[run.id] = JobStatus(JobState.UNKNOWN, str(error))
                continue
            if job_id := ids_of_scripts[script]:
                note_job_id(run, self.scheduler.member_id(job_id, int(index)) if index else job_id)
        return unknown

    def cancel(self, *runs: Run) -> None:
        """Delete the runs' jobs; they may remain listed as running for seconds while their processes end."""
        states = self.poll(runs)
        still_open = [run for run in runs if not states[run.id].state.ended]
        for run in still_open:
            if states[run.id].state is JobState.UNKNOWN and not states[run.id].listed:
                raise SchedulerError(f"{run.id} was not cancelled: {states[run.id].reason}")
        # A job that is being submitted at this moment has no id yet: whoever waits for the end cancels again.
        alive = [run for run in still_open if run.job_id]
        if not alive:
            return
        marks = [mark_cancelled(run) for run in alive]
        try:
            self.scheduler.cancel([run.job_id for run in alive])
        except SchedulerError:
            for mark in marks:
                mark.unlink(missing_ok=True)
            raise


def records_by_place(
    job_ids: Sequence[str], ask: Callable[[str, Mapping[str, str]], Mapping[str, Record]]
) -> dict[str, Record]:
    """Ask each cluster or instance for its jobs, given as ids by number, and return the records by id.

    The jobs of a place that is silent are unknown; if all are silent, `ask`'s error is raised.
    """
    records: dict[str, Record] = {}
    places, errors = ids_by_place(job_ids), []
    for place, ids in places.items():
        try:
            answer = ask(place, ids)
        except SchedulerError as error:
            errors.append(error)
            answer = dict.fromkeys(ids, Record(JobState.UNKNOWN, str(error)))
        records |= {ids[number]: record for number, record in answer.items() if number in ids}
    if errors and len(errors) == len(places):
        raise errors[0]
    return records


def _is_reused_id(record: Record, run: Run) -> bool:
    """Return whether another job has a run's id: a scheduler that was set up anew counts from 1 again."""
    if record.submitted_seconds is None or run.manifest is None:
        return False
    if f"/{sweep_of(run.id) or run.id}/" in record.script:
        return False
    # The folder of the run may have been moved since. Options may come before the path.
    words, *_ = re.split(rf"/(?:{JOB_SCRIPT}|logs/)", record.script)
    if any(Path(words[at.start() :], JOB_SCRIPT).is_file() for at in re.finditer(r"(?<!\S)(?=/)", words)):
        return True
    submitted = time.time() - record.submitted_seconds
    created = datetime.fromisoformat(run.manifest.created).timestamp()
    # A job that is queued again counts as submitted then; it keeps its script. One that was submitted by hand
    # has noted its id since.
    noted = max(created, modification_time(run.path / "state" / JOB_ID_FILE))
    is_later = submitted - noted > _SUBMISSION_SECONDS
    return submitted - created < -_SUBMISSION_SECONDS or (record.script != "" and is_later)


def _save_message(run: Run) -> None:
    if text := submission_message.get():
        write_atomically(run.path / "state" / SUBMISSION_FILE, f"{text}\n")
