"""``hpcprof logs``."""

from __future__ import annotations

from pathlib import Path

import click

from hpcprof.cli.examples import examples
from hpcprof.cli.options import runs_dir_option
from hpcprof.common.errors import UsageError
from hpcprof.submit.runs.directory import find_run


@click.command("logs", epilog=examples("hpcprof logs last --rank 1"))
@runs_dir_option
@click.option("--rank", type=click.IntRange(min=0), help="This rank alone.  [default: the job and rank 0]")
@click.argument("run", default="last")
def command(runs_dir: Path, rank: int | None, run: str) -> None:
    """Show what a run printed.

    The job script comes first, then the rank.
    """
    folder = find_run(run, runs_dir).path / "logs"
    names = ("job", "rank00000") if rank is None else (f"rank{rank:05d}",)
    files = [folder / f"{name}.{stream}" for name in names for stream in ("out", "err")]
    present = [path for path in files if path.is_file()]
    if not present:
        raise UsageError(f"{folder} has no logs of {' or '.join(names)} yet.")
    for path in present:
        text = path.read_text(encoding="utf-8", errors="replace")
        if text:
            click.echo(f"==> {path.name}")
            click.echo(text, nl=not text.endswith("\n"))
