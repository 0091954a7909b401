"""``hpcprof status``."""

from __future__ import annotations

from pathlib import Path

import click

from hpcprof.cli.examples import examples
from hpcprof.cli.options import runs_dir_option
from hpcprof.cli.states import poll
from hpcprof.cli.tables import show
from hpcprof.diagnosis import failed_ranks
from hpcprof.errors import UsageError
from hpcprof.run import Run, find_run
from hpcprof.schedulers.base import JobState


@click.command("status", epilog=examples("hpcprof status", "hpcprof status 20261121-14"))
@runs_dir_option
@click.argument("runs", nargs=-1, metavar="[RUN]…")
def command(runs_dir: Path, runs: tuple[str, ...]) -> None:
    """Show the state of runs.

    RUN is a run id, a unique beginning of one, a path, or last (the default).
    """
    found = [find_run(reference, runs_dir) for reference in runs or ("last",)]
    for run in found:
        if run.manifest is None:
            raise UsageError(
                f"{run.path} is a folder of profiles that hpcprof did not submit: it has no state."
            )
    states = poll(found)
    rows = []
    for run in found:
        status = states[run.id]
        rows.append((run.id, status.state.value, _detail(run, status.state, status.reason)))
    show(rows, ("run", "state", "detail"))


def _detail(run: Run, state: JobState, reason: str) -> str:
    if state is JobState.FAILED and (failures := failed_ranks(run)):
        return f"{reason}; {failures[0]}"
    return reason
