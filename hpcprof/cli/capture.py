"""``hpcprof capture``."""

from pathlib import Path

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import command_with_examples, echo
from hpcprof.cli.options import runs_dir_option, with_default
from hpcprof.common.errors import UsageError
from hpcprof.common.units import counted
from hpcprof.results.collect.jobs import find_jobs
from hpcprof.runs.directory import typed_name
from hpcprof.submit.runs.captures import await_capture, request_capture


@command_with_examples("capture", "hpcprof capture last", "hpcprof capture RUN --steps 10 --ranks 0-7")
@runs_dir_option
@with_default("--steps", type=int, default=5, help="Number of steps to record.")
@click.option("--ranks", default="", metavar="RANKS", help="Ranks that record, such as 0-7; all by default.")
@click.argument("run", metavar="RUN", shell_complete=complete_runs)
def command(runs_dir: Path, steps: int, ranks: str, run: str) -> None:
    """Record the next steps of a running PyTorch job.

    The job keeps running, and needs no profiler: a request in the run makes all ranks record the same steps
    with the PyTorch profiler, some seconds later. The traces replace those of an earlier capture of the run.
    The exit status is 1 if a rank could not record, for example because the program runs the profiler itself.
    """
    jobs = find_jobs((run,), runs_dir)
    if len(jobs) != 1:
        raise UsageError(f"{run} means {counted(len(jobs), 'run')}: name one.")
    request, recording = request_capture(jobs[0], steps, ranks)
    last = request.first + request.steps - 1
    echo(f"recording steps {request.first} to {last} on {counted(len(recording), 'rank')}", err=True)
    last = min(answer.last for answer in await_capture(jobs[0], request, recording).values())
    name = typed_name(jobs[0].path)
    echo(f"recorded steps {request.first} to {last} on {counted(len(recording), 'rank')}")
    echo(f"hpcprof collect {name} && hpcprof explain {name}")
