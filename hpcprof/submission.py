"""From scripts to a submitted run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hpcprof import run as runs
from hpcprof.job import Job
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
    run_id = runs.new_run_id(job.name)
    texts = scripts(site, job, runs_directory / run_id, command_line, template, script)
    run = runs.create(run_id, runs_directory, site, job, command_line, texts)
    job_id = scheduler_for(site.scheduler).submit(run)
    assert run.manifest is not None
    manifest = msgspec.structs.replace(run.manifest, scheduler_job_id=job_id)
    return runs.save(runs.Run(run.id, run.path, manifest))
