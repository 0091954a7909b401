"""``hpcprof mcp``."""

import signal
from pathlib import Path

import click

from hpcprof.cli.conventions import command_with_examples
from hpcprof.cli.options import EXISTING_FILE, FiniteFloat, repeatable, store_options
from hpcprof.common.errors import HpcprofError, UsageError


@command_with_examples("mcp", "hpcprof mcp", "hpcprof mcp --allow-submit train.yaml --budget 20")
@store_options
@repeatable(
    "--allow-submit",
    "job_files",
    type=EXISTING_FILE,
    metavar="JOBFILE",
    help="Let the agent submit this job file, with values for each {NAME} in its program, and have its "
    "running jobs record steps. Repeatable.",
)
@click.option(
    "--budget",
    type=FiniteFloat(min=0, min_open=True),
    metavar="NODE_HOURS",
    help="With --allow-submit: the most node-hours that all jobs of agents in this folder of runs may "
    "request.",
)
def command(runs_dir: Path, db: str | None, job_files: tuple[Path, ...], budget: float | None) -> None:
    """Answer an agent's questions about runs, over standard input and output.

    A server of the Model Context Protocol with nine tools: find_runs, explain, whatif, compare, history,
    query, events_around, log_excerpt and how_to. Your agent starts it; name this command in its
    configuration. Answers have at most 8 kB, and mark text from profiles and logs as data.

    With --allow-submit there are two more, submit and capture. A job takes its nodes
    times its requested walltime from the budget, also after a restart.
    """
    if bool(job_files) != (budget is not None):
        raise UsageError("--allow-submit needs --budget NODE_HOURS: give both, or neither.")
    try:
        from hpcprof.mcp.server import make_server
        from hpcprof.mcp.submitting import Budget, Submitting
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package == "hpcprof":
            raise
        raise HpcprofError(f"hpcprof mcp needs {package}: pip install 'hpcprof[mcp]'.") from None
    allowed = Submitting(job_files, Budget(budget, runs_dir), runs_dir) if budget is not None else None
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(number)):
            # As an exception it would wait for the thread that reads standard input.
            signal.signal(number, signal.SIG_DFL)
    make_server(runs_dir, db, allowed).run("stdio")
