"""Polling and cancelling runs, whichever schedulers they were submitted to."""

from __future__ import annotations

from collections.abc import Sequence

from hpcprof.common.errors import UsageError
from hpcprof.submit.runs.directory import Run
from hpcprof.submit.schedulers.base import JobStatus, SchedulerClient
from hpcprof.submit.schedulers.command import all_answers_within
from hpcprof.submit.schedulers.final_status import read_final_status, status_now
from hpcprof.submit.schedulers.registry import find_scheduler


def client_of(run: Run) -> SchedulerClient:
    """Return the client of the scheduler that a run was submitted to.

    Raises
    ------
    UsageError
        If the scheduler came from another package that is no longer installed.
    """
    assert run.manifest is not None
    return find_scheduler(run.manifest.site.scheduler).client()


def _by_scheduler(runs: Sequence[Run]) -> list[list[Run]]:
    """Return submitted runs in groups that share a scheduler; adopted folders are left out."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.manifest is not None:
            groups.setdefault(run.manifest.site.scheduler, []).append(run)
    return list(groups.values())


LISTING_SECONDS = 4.0
"""How long a command that shows states waits for all schedulers together: it answers within 5 s."""


def poll(runs: Sequence[Run], seconds: float | None = None) -> dict[str, JobStatus]:
    """Return the status of each submitted run by run id; adopted folders are left out.

    The schedulers are asked only about runs without a final status, which is then kept in the run
    (`hpcprof.submit.schedulers.final_status.status_now`). With ``seconds``, a run about which its scheduler
    has not answered in this time is unknown.
    """
    states: dict[str, JobStatus] = {}
    still_open: list[Run] = []
    for run in runs:
        final = read_final_status(run)
        if final is None:
            still_open.append(run)
        elif run.manifest is not None:
            states[run.id] = final
    with all_answers_within(seconds):
        for group in _by_scheduler(still_open):
            answers = client_of(group[0]).poll(group)
            states.update({run.id: status_now(run, answers[run.id]) for run in group})
    return states


def cancel(runs: Sequence[Run]) -> None:
    """End the jobs of submitted runs with all their processes; jobs that have ended are left as they are.

    Raises
    ------
    UsageError
        If one of them is a folder of profiles, before any job is ended.
    SchedulerError
        If a job could not be ended.
    """
    for run in runs:
        if run.manifest is None:
            raise UsageError(f"{run.path} is a folder of profiles that hpcprof did not submit.")
    for group in _by_scheduler([run for run in runs if read_final_status(run) is None]):
        client_of(group[0]).cancel(*group)
