"""``hpcprof submit``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from hpcprof import submission
from hpcprof.cli.options import job_options, site_and_job
from hpcprof.diagnosis import failed_ranks, tail
from hpcprof.job import Job
from hpcprof.render import JOB_SCRIPT
from hpcprof.run import Run
from hpcprof.schedulers.base import JobState, JobStatus, Scheduler
from hpcprof.schedulers.registry import scheduler_for
from hpcprof.site import Site
from hpcprof.walltime import format_walltime

_POLL_SECONDS = 0.2


@click.command(
    "submit",
    epilog="Example: hpcprof submit --ranks-per-node 2 --profiler torch --wait --workload "
    "sequence-parallel -- --steps 20   or   hpcprof submit --ranks-per-node 4 -- python train.py",
)
@job_options
@click.option("--dry-run", is_flag=True, help="Show what would be submitted, and submit nothing.")
@click.option("--wait", is_flag=True, help="Stay until the job has ended; exit 0 only if it succeeded.")
def command(dry_run: bool, wait: bool, **options: Any) -> None:
    """Render a job's scripts and hand them to the scheduler.

    The program is a built-in workload (its arguments after --) or any command after --.
    """
    site, job = site_and_job(options)
    runs_dir: Path = options["runs_dir"]
    command_line = ["hpcprof", *sys.argv[1:]]
    if dry_run:
        texts = submission.scripts(site, job, runs_dir / "RUN_ID", command_line, options["template"])
        click.echo(_summary(site, job))
        click.echo(f"\n{texts[JOB_SCRIPT]}", nl=False)
        return
    run = submission.submit(site, job, runs_dir, command_line, options["template"])
    click.echo(f"submitted {run.id}")
    if wait:
        _wait(run, scheduler_for(site.scheduler))


def _summary(site: Site, job: Job) -> str:
    profiled = job.profiled_ranks
    chosen = f"{len(profiled)} of {job.ranks} ranks" if profiled else "no rank"
    if profiled and len(profiled) <= 16:
        chosen += f" ({', '.join(map(str, profiled))})"
    return "\n".join(
        (
            f"site       {site.name} ({site.scheduler.value})",
            f"job        {job.name}: {job.nodes} x {job.ranks_per_node} ranks, "
            f"walltime {format_walltime(job.walltime)}",
            f"profiler   {job.profiler} on {chosen}",
        )
    )


def _wait(run: Run, scheduler: Scheduler) -> None:
    """Poll until the run has ended, and say so; Ctrl-C leaves the job running."""
    shown: JobState | None = None
    try:
        while not (status := scheduler.poll([run])[run.id]).state.ended:
            if status.state is not shown:
                click.echo(f"{status.state.value} {status.reason}".rstrip())
                shown = status.state
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        click.echo(f"\nleft {run.id} running: hpcprof status {run.id}, hpcprof cancel {run.id}", err=True)
        sys.exit(130)
    _conclude(run, status)


def _conclude(run: Run, status: JobStatus) -> None:
    if status.state is JobState.COMPLETED:
        click.echo("completed")
        return
    click.echo(f"hpcprof: {run.id} {status.state.value}: {status.reason}", err=True)
    failures = failed_ranks(run)
    for failure in failures[:1]:
        click.echo("\n  ".join((str(failure), *failure.last_lines)), err=True)
    if not failures:
        click.echo("\n  ".join(("job.err:", *tail(run.path / "logs" / "job.err"))), err=True)
    sys.exit(1)
