"""``hpcprof cancel``."""

from pathlib import Path

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import command_with_examples, echo
from hpcprof.cli.options import runs_dir_option
from hpcprof.results.collect.jobs import find_jobs
from hpcprof.submit.remote.mirror import connect
from hpcprof.submit.schedulers.base import JobState
from hpcprof.submit.waiting import cancel_and_wait


@command_with_examples("cancel", "hpcprof cancel last", "hpcprof cancel 20261121-143005-train-3fa9")
@runs_dir_option
@click.argument("runs", nargs=-1, required=True, metavar="RUN…", shell_complete=complete_runs)
def command(runs_dir: Path, runs: tuple[str, ...]) -> None:
    """End a run with all its processes.

    hpcprof repeats the request until the scheduler reports that the run has ended. After a minute it names
    the run and exits with 1. A run that has already ended is left alone. An array sweep means all its
    runs.
    """
    jobs = find_jobs(runs, runs_dir)
    connect(jobs)
    states = cancel_and_wait(jobs)
    for run in jobs:
        state = states[run.id].state
        echo(f"{run.id} {'' if state is JobState.CANCELLED else 'had ended: '}{state.value}")
