"""Asking the schedulers for the state of runs, one scheduler at a time."""

from __future__ import annotations

from collections.abc import Sequence

from hpcprof.submit.runs.directory import Run
from hpcprof.submit.schedulers.base import JobStatus
from hpcprof.submit.schedulers.registry import scheduler_for
from hpcprof.submit.sites.model import SchedulerName


def poll(runs: Sequence[Run]) -> dict[str, JobStatus]:
    """Return the status of each submitted run; adopted folders have none and are left out."""
    by_scheduler: dict[SchedulerName, list[Run]] = {}
    for run in runs:
        if run.manifest is not None:
            by_scheduler.setdefault(run.manifest.site.scheduler, []).append(run)
    states: dict[str, JobStatus] = {}
    for name, group in by_scheduler.items():
        states.update(scheduler_for(name).poll(group))
    return states
