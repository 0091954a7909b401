"""``hpcprof export``."""

from __future__ import annotations

from pathlib import Path

import click

from hpcprof.cli.completion import complete_runs
from hpcprof.cli.conventions import examples
from hpcprof.cli.options import db_option, runs_dir_option
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.common.units import counted


@click.command(
    "export",
    epilog=examples("hpcprof export --to parquet tables", "hpcprof export last --to perfetto timelines"),
)
@runs_dir_option
@db_option
@click.option(
    "--to",
    "form",
    type=click.Choice(["parquet", "csv", "perfetto", "chrome"]),
    required=True,
    help="parquet, csv: one file per analysis. perfetto, chrome: the timeline of each rank.",
)
@click.argument("words", nargs=-1, metavar="[RUN] DIR", shell_complete=complete_runs)
def command(runs_dir: Path, db: str | None, form: str, words: tuple[str, ...]) -> None:
    """Write results and timelines for other programs.

    RUN is a run id, a unique prefix of one, a path, or last (the default). Existing files of the same
    names in DIR are replaced.

    perfetto and chrome are the same format, gzipped JSON that ui.perfetto.dev and chrome://tracing open
    directly: one file per rank, and one with all ranks on a common clock.
    """
    if len(words) not in (1, 2) or not words[-1]:
        raise UsageError("give the folder to write to, preceded by a run if it is not the last one.")
    from hpcprof.report.exports import ExportFormat, export_run

    folder = Path(words[-1])
    run, exported = export_run(
        words[0] if len(words) == 2 else "last",
        ExportFormat(form),
        folder,
        database=db,
        runs_dir=runs_dir,
        progress=lambda path: click.echo(f"writing {path}", err=True),
    )
    for note in exported.notes:
        click.echo(f"hpcprof: {note}", err=True)
    if not exported.written:
        raise HpcprofError(f"nothing written to {folder}: {run} has no readable timeline.")
    click.echo(f"{run}: {counted(len(exported.written), 'file')} in {folder}")
