"""Staying with a run until it has ended."""

from __future__ import annotations

import sys

import click

from hpcprof.submit.runs.directory import Run
from hpcprof.submit.schedulers.base import JobState
from hpcprof.submit.waiting import describe_failure, wait_until_ended


def wait_for(run: Run) -> None:
    """Wait until a run has ended, printing its states and its output; exit 1 unless it succeeded.

    Ctrl-C leaves the run running.
    """
    try:
        status = wait_until_ended(run, click.echo, lambda text: click.echo(text, nl=False))
    except KeyboardInterrupt:
        click.echo(f"\nleft {run.id} running: hpcprof status {run.id}, hpcprof cancel {run.id}", err=True)
        sys.exit(130)
    if status.state is JobState.COMPLETED:
        click.echo("completed")
        return
    click.echo("hpcprof: " + "\n".join(describe_failure(run, status)), err=True)
    sys.exit(1)
