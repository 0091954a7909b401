"""``hpcprof export``."""

from __future__ import annotations

from pathlib import Path

import click

from hpcprof.cli.examples import examples
from hpcprof.cli.options import db_option, runs_dir_option
from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.submit.runs.directory import Run, find_run

_TABLES = ("parquet", "csv")


@click.command(
    "export",
    epilog=examples("hpcprof export --to parquet tables", "hpcprof export last --to perfetto timelines"),
)
@runs_dir_option
@db_option
@click.option(
    "--to",
    "form",
    type=click.Choice([*_TABLES, "perfetto", "chrome"]),
    required=True,
    help="parquet, csv: a file an analysis. perfetto, chrome: the timeline of each rank.",
)
@click.argument("words", nargs=-1, metavar="[RUN] DIR")
def command(runs_dir: Path, db: str | None, form: str, words: tuple[str, ...]) -> None:
    """Write results and timelines for other programs.

    RUN is a run id, a unique beginning of one, a path, or last (the default). Files in DIR are replaced.

    perfetto and chrome are one format, packed JSON that ui.perfetto.dev and chrome://tracing open as it is: a
    file of each rank, and one of all ranks on one clock.
    """
    if len(words) not in (1, 2) or not words[-1]:
        raise UsageError("give the folder to write to, and before it a run if it is not the last.")
    folder = Path(words[-1])
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is no folder: give the folder to write to.")
    found = find_run(words[0] if len(words) == 2 else "last", runs_dir)
    if form in _TABLES:
        from hpcprof.report.tables_export import export_tables
        from hpcprof.results.store.store import open_store

        written = export_tables(found, open_store(db, runs_dir), form, folder)
    else:
        written = _timelines(found, folder)
    click.echo(f"{found.id}: {len(written)} files in {folder}")


def _timelines(run: Run, folder: Path) -> list[Path]:
    from hpcprof.report.trace_events import export_timelines
    from hpcprof.results.timelines import find_timelines

    timelines = find_timelines(run)
    done = export_timelines(timelines, folder, lambda path: click.echo(f"writing {path}", err=True))
    for note in done.notes:
        click.echo(f"hpcprof: {note}", err=True)
    if not done.written:
        raise HpcprofError(f"nothing is written to {folder}: {run.id} has no timeline that can be read.")
    return done.written
