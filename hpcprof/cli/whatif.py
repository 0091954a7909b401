"""``hpcprof whatif``."""

from pathlib import Path

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import command_with_examples, echo
from hpcprof.cli.options import repeatable, store_options
from hpcprof.cli.report import collect_first


@command_with_examples(
    "whatif",
    "hpcprof whatif",
    "hpcprof whatif RUN --set 'range:data*0'",
    "hpcprof whatif RUN --set 'kernel:gemm*0.5' --set 'comm*0'",
)
@store_options
@repeatable(
    "--set",
    "changes",
    metavar="EXPR",
    help="A change: range:NAME*0 (its host time), range:NAME+40ms, gpu:NAME*0.5 (the kernels that a range "
    "launches), gpu:NAME+12ms, kernel:REGEX*0.5, api:REGEX*0, mpi:MPI_Alltoall*0.5, comm*0, copy*0, "
    "rank:2=median (as the other ranks) or bandwidth*2. With @RANK at the end, range, gpu, kernel, api, mpi "
    "and copy change on that rank only. In a table of operations: ideal, ideal@stage:3 or ideal!rank:0 "
    "(what is typical for all, only for these, or for all others). Repeatable.",
)
@click.argument("run", default="last", metavar="[RUN]", shell_complete=complete_runs)
def command(runs_dir: Path, db: str | None, changes: tuple[str, ...], run: str) -> None:
    """Predict the step time of a run with changed times.

    The run is replayed with the changes: what waits on something that becomes shorter starts earlier. Without
    --set it is replayed as it was. How far that is from the measured step is printed with every prediction. A
    trace without a GPU and MPI is predicted from the parts of its steps.

    RUN is a run id, a name that means one run, a path, or last (the default).
    """
    from hpcprof.analysis.explain.changes import parse_changes
    from hpcprof.cli.tables import console
    from hpcprof.report.explanation import prediction_text
    from hpcprof.results.ask.explanation import what_if
    from hpcprof.results.collect.missing import find_collected_run
    from hpcprof.results.store.store import open_store

    parse_changes(changes)  # a mistake is named before anything is collected
    store = open_store(db, runs_dir)
    prediction = what_if(find_collected_run(run, store, runs_dir, collect_first), store, changes)
    out = console()
    out.print(prediction_text(prediction, bool(changes), out.width), crop=False)
    if not changes:
        echo("hpcprof: give a change by --set, as in --set 'comm*0'.", err=True)
