"""``hpcprof collect``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from hpcprof.cli.examples import examples
from hpcprof.cli.options import db_option, runs_dir_option


@click.command(
    "collect", epilog=examples("hpcprof collect", "hpcprof collect /data/profiles_of_another_tool")
)
@runs_dir_option
@db_option
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="CPUs to use: a process a rank, and threads within a rank.  [default: all]",
)
@click.option(
    "--executor",
    type=click.Choice(["processes", "mpi"]),
    default="processes",
    show_default=True,
    help="Where ranks are read: on this machine, or on the ranks of an MPI job.",
)
@click.argument("runs", nargs=-1, metavar="[RUN]…")
def command(runs_dir: Path, db: str | None, jobs: int | None, executor: str, runs: tuple[str, ...]) -> None:
    """Read profiles into the results database.

    RUN is a run id, a unique beginning of one, a path, or last (the default); or a sweep that was submitted
    as an array, for all its runs. A path may be any folder of profiles (*.sqlite or *.nsys-rep of Nsight
    Systems, *.ncu-rep[z] or *.csv[.gz] of Nsight Compute, *.trace.json[.gz] of PyTorch). Collecting again
    changes nothing.

    Over MPI: srun -n 64 python -m mpi4py.futures -m hpcprof collect --executor mpi RUN
    """
    from hpcprof.cli.progress import Progress
    from hpcprof.collect import collect
    from hpcprof.executors import Processes, over_mpi
    from hpcprof.rank_collect import HEAVY
    from hpcprof.run import find_runs
    from hpcprof.store import Store, store_url

    found = [run for reference in runs or ("last",) for run in find_runs(reference, runs_dir)]
    store = Store(store_url(db, runs_dir))
    store.prepare()
    damaged = False
    cpus = jobs or len(os.sched_getaffinity(0))
    for run in found:
        spread = Processes(cpus, HEAVY) if executor == "processes" else over_mpi
        summary = collect(run, store, Progress(), spread, cpus)
        for sentence in summary.warnings:
            click.echo(f"hpcprof: {sentence}", err=True)
        for sentence in summary.skipped:
            click.echo(f"hpcprof: skipped: {sentence}", err=True)
        damaged = damaged or bool(summary.skipped)
        click.echo(
            f"{run.id}: {len(summary.read)} profiles collected, {len(summary.unchanged)} unchanged, "
            f"{len(summary.skipped)} skipped, into {store}"
        )
    if damaged:
        sys.exit(1)
