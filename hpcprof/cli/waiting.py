"""Staying with a run until it has ended."""

from __future__ import annotations

import sys
import time

import click

from hpcprof.diagnosis import failed_ranks, tail
from hpcprof.run import Run
from hpcprof.schedulers.base import JobState, JobStatus
from hpcprof.schedulers.registry import scheduler_for

_POLL_SECONDS = 0.2


def wait_for(run: Run) -> None:
    """Poll until the run has ended, and say how; exit 1 unless it succeeded. Ctrl-C leaves it running."""
    assert run.manifest is not None
    scheduler = scheduler_for(run.manifest.site.scheduler)
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
