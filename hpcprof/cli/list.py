"""``hpcprof list``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from hpcprof.cli.conventions import examples, exit_naming
from hpcprof.cli.options import runs_dir_option
from hpcprof.cli.tables import show
from hpcprof.submit.runs.directory import Run, all_runs
from hpcprof.submit.schedulers.polling import LISTING_SECONDS, poll


@click.command("list", epilog=examples("hpcprof list --runs-dir /scratch/me/runs"))
@runs_dir_option
def command(runs_dir: Path) -> None:
    """List the runs, oldest first."""
    skipped: list[str] = []
    runs = all_runs(runs_dir, skipped)
    if runs:
        _show(runs)
    elif not skipped:
        click.echo(f"no runs in {runs_dir}")
    exit_naming(skipped)


def _show(runs: Sequence[Run]) -> None:
    states = poll(runs, LISTING_SECONDS)
    rows = []
    for run in runs:
        assert run.manifest is not None
        job = run.manifest.job
        ranks = f"{job.nodes} x {job.ranks_per_node}"
        rows.append((run.id, states[run.id].state.value, job.site, ranks, job.profiler))
    show(rows, ("run", "state", "site", "ranks", "profiler"))
