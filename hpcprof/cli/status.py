"""``hpcprof status``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from hpcprof.cli.examples import examples
from hpcprof.cli.options import runs_dir_option
from hpcprof.cli.tables import show
from hpcprof.common.errors import UsageError
from hpcprof.submit.runs.directory import Run, find_runs
from hpcprof.submit.runs.failures import failed_ranks
from hpcprof.submit.schedulers.base import JobState, JobStatus
from hpcprof.submit.schedulers.polling import poll
from hpcprof.submit.waiting import poll_seconds


@click.command("status", epilog=examples("hpcprof status", "hpcprof status 20261121-14 --watch"))
@runs_dir_option
@click.option("--watch", is_flag=True, help="Show it again when it changes, until all have ended.")
@click.argument("runs", nargs=-1, metavar="[RUN]…")
def command(runs_dir: Path, watch: bool, runs: tuple[str, ...]) -> None:
    """Show the state of runs.

    RUN is a run id, a unique beginning of one, a path, or last (the default); or a sweep that was
    submitted as an array, for all its runs.
    """
    found = [run for reference in runs or ("last",) for run in find_runs(reference, runs_dir)]
    for run in found:
        if run.manifest is None:
            raise UsageError(
                f"{run.path} is a folder of profiles that hpcprof did not submit: it has no state."
            )
    shown: dict[str, JobStatus] = {}
    for pause in poll_seconds():
        states = poll(found)
        if states != shown:
            show([_row(run, states[run.id]) for run in found], ("run", "state", "detail"))
            shown = states
        if not watch or all(status.state.ended for status in states.values()):
            return
        time.sleep(pause)


def _row(run: Run, status: JobStatus) -> tuple[str, str, str]:
    detail = status.reason
    if status.state is JobState.FAILED and (failures := failed_ranks(run)):
        detail = f"{detail}; {failures[0]}"
    return run.id, status.state.value, detail
