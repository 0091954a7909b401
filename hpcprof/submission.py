"""From scripts to a submitted run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hpcprof import run as runs
from hpcprof.errors import UsageError
from hpcprof.job import Job
from hpcprof.schedulers.base import JobState, Scheduler
from hpcprof.schedulers.registry import scheduler_for
from hpcprof.scripts import scripts
from hpcprof.site_model import Site


def submit(
    site: Site,
    job: Job,
    runs_directory: Path,
    command_line: list[str],
    template: Path | None = None,
    script: Path | None = None,
) -> runs.Run:
    """Make a run directory, hand its job.sh to the scheduler, and record the job id.

    Raises
    ------
    SchedulerError
        If the scheduler did not take the job; the run directory stays for a look at it.
    """
    scheduler = scheduler_for(site.scheduler)
    after = _job_ids(job, runs_directory, scheduler)
    # Rendered once for nothing: what is wrong with a template is said before anything is made.
    scripts(site, job, runs_directory / "RUN_ID", command_line, template, script)
    run_id = runs.new_run_id(job.name, runs_directory)
    texts = scripts(site, job, runs_directory / run_id, command_line, template, script)
    run = runs.create(run_id, runs_directory, site, job, command_line, texts)
    job_id = scheduler.submit(run, after)
    assert run.manifest is not None
    manifest = msgspec.structs.replace(run.manifest, scheduler_job_id=job_id)
    return runs.save(runs.Run(run.id, run.path, manifest))


def _job_ids(job: Job, runs_directory: Path, scheduler: Scheduler) -> list[str]:
    """Return the ids of the jobs to wait for; one that has succeeded already is not waited for.

    Checked here, since Slurm runs a job after an id that it does not know, and PBS drops such a job.

    Raises
    ------
    UsageError
        If one of them can not succeed any more, or is not known to be alive.
    """
    waited = [runs.open_run(runs_directory / name) for name in job.after]
    states = scheduler.poll(waited)
    for run in waited:
        status = states[run.id]
        if status.state is JobState.UNKNOWN or (
            status.state.ended and status.state is not JobState.COMPLETED
        ):
            raise UsageError(f"--after {run.id}: it is {status.state.value} ({status.reason}).")
    left = [run for run in waited if not states[run.id].state.ended]
    return [run.manifest.scheduler_job_id for run in left if run.manifest]
