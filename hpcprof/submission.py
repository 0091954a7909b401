"""From a job to scripts, and from scripts to a submitted run."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from hpcprof import run as runs
from hpcprof.job import Job
from hpcprof.launchers import launch_command
from hpcprof.render import Rendering, render
from hpcprof.schedulers.registry import scheduler_for
from hpcprof.site import Site
from hpcprof.workloads import catalogue


def scripts(
    site: Site, job: Job, run_directory: Path, command_line: list[str], template: Path | None
) -> dict[str, str]:
    """Render the run's scripts for a run directory; nothing is written."""
    rendering = Rendering(
        run_directory=run_directory.absolute(),
        command_line=command_line,
        launch=launch_command(site, job),
        program=_program(job),
        template=template,
    )
    return render(site, job, rendering)


def submit(
    site: Site, job: Job, runs_directory: Path, command_line: list[str], template: Path | None
) -> runs.Run:
    """Make a run directory, hand its job.sh to the scheduler, and record the job id.

    Raises
    ------
    SchedulerError
        If the scheduler did not take the job; the run directory stays for a look at it.
    """
    run_id = runs.new_run_id(job.name)
    texts = scripts(site, job, runs_directory / run_id, command_line, template)
    run = runs.create(run_id, runs_directory, site, job, command_line, texts)
    job_id = scheduler_for(site.scheduler).submit(run)
    assert run.manifest is not None
    manifest = msgspec.structs.replace(run.manifest, scheduler_job_id=job_id)
    return runs.save(runs.Run(run.id, run.path, manifest))


def _program(job: Job) -> list[str]:
    if job.workload is None:
        return job.arguments
    python = job.options.get("python") or sys.executable
    return catalogue.WORKLOADS[job.workload].command(python, job.arguments)
