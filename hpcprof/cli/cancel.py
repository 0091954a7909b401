"""``hpcprof cancel``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from hpcprof.cli.examples import examples
from hpcprof.cli.options import runs_dir_option
from hpcprof.submit.runs.directory import Run, find_runs
from hpcprof.submit.schedulers.base import JobStatus
from hpcprof.submit.schedulers.polling import cancel, poll
from hpcprof.submit.waiting import poll_seconds

_SETTLE_SECONDS = 15.0


@click.command("cancel", epilog=examples("hpcprof cancel last", "hpcprof cancel 20261121-143005-train-3fa9"))
@runs_dir_option
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
def command(runs_dir: Path, runs: tuple[str, ...]) -> None:
    """End a run with all its processes.

    A run that has ended is left as it is. RUN may be a sweep that was submitted as an array, for all its
    runs.
    """
    found = [run for reference in runs for run in find_runs(reference, runs_dir)]
    cancel(found)
    states = _settled(found)
    for run in found:
        click.echo(f"{run.id} {states[run.id].state.value}")


def _settled(runs: Sequence[Run]) -> dict[str, JobStatus]:
    """Return the runs' states once they have ended: a batch system shows them running for seconds yet."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    for pause in poll_seconds():
        states = poll(runs)
        if all(status.state.ended for status in states.values()) or time.monotonic() > deadline:
            break
        time.sleep(pause)
    return states
