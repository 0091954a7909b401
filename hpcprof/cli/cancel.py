"""``hpcprof cancel``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from hpcprof.cli.examples import examples
from hpcprof.cli.options import runs_dir_option
from hpcprof.cli.waiting import poll_seconds
from hpcprof.errors import UsageError
from hpcprof.run import Run, find_run
from hpcprof.schedulers.base import JobStatus, Scheduler
from hpcprof.schedulers.registry import scheduler_for

_SETTLE_SECONDS = 15.0


@click.command("cancel", epilog=examples("hpcprof cancel last"))
@runs_dir_option
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
def command(runs_dir: Path, runs: tuple[str, ...]) -> None:
    """End a run with all its processes.

    A run that has ended is left as it is.
    """
    for found in [find_run(reference, runs_dir) for reference in runs]:
        if found.manifest is None:
            raise UsageError(f"{found.path} is a folder of profiles that hpcprof did not submit.")
        scheduler = scheduler_for(found.manifest.site.scheduler)
        scheduler.cancel(found)
        click.echo(f"{found.id} {_settled(found, scheduler).state.value}")


def _settled(run: Run, scheduler: Scheduler) -> JobStatus:
    """Return the run's status once it has ended: a batch system shows it running for seconds yet."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    for pause in poll_seconds():
        status = scheduler.poll([run])[run.id]
        if status.state.ended or time.monotonic() > deadline:
            break
        time.sleep(pause)
    return status
