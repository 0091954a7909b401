"""``hpcprof logs``."""

from pathlib import Path

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import command_with_examples, echo
from hpcprof.cli.options import runs_dir_option
from hpcprof.common.decode import visible_lines
from hpcprof.common.masking import masked
from hpcprof.results.collect.jobs import find_job
from hpcprof.runs.directory import log_files
from hpcprof.submit.remote.mirror import refresh


@command_with_examples("logs", "hpcprof logs last --rank 1")
@runs_dir_option
@click.option("--rank", type=click.IntRange(min=0), help="Only this rank.  [default: the job and rank 0]")
@click.argument("run", default="last", shell_complete=complete_runs)
def command(runs_dir: Path, rank: int | None, run: str) -> None:
    """Show the output of a run.

    The job script's output comes first, then the rank's; secrets that are recognized are masked.
    """
    job = find_job(run, runs_dir)
    for sentence in refresh(job):
        echo(f"hpcprof: {sentence}", err=True)
    for path in log_files(job, rank):
        if lines := visible_lines(path.read_bytes().decode("utf-8", "replace")):
            echo(f"==> {path.name}")
            click.echo("\n".join(map(masked, lines)))
