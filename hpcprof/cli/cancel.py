"""``hpcprof cancel``."""

from __future__ import annotations

from pathlib import Path

import click

from hpcprof.cli.examples import examples
from hpcprof.cli.options import runs_dir_option
from hpcprof.errors import UsageError
from hpcprof.run import find_run
from hpcprof.schedulers.registry import scheduler_for


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
        click.echo(f"{found.id} {scheduler.poll([found])[found.id].state.value}")
