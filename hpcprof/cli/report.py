"""``hpcprof report``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hpcprof.cli.examples import examples
from hpcprof.cli.options import db_option, runs_dir_option
from hpcprof.cli.rows import write_rows
from hpcprof.errors import HpcprofError, UsageError


@click.command(
    "report",
    epilog=examples(
        "hpcprof report last --html report.html", "hpcprof report --analysis kernels --format csv"
    ),
)
@runs_dir_option
@db_option
@click.option("--analysis", metavar="NAME", help="This analysis alone, whole.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="csv and json hold whole nanoseconds; csv needs --analysis.",
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write one HTML file too."
)
@click.argument("run", default="last")
def command(
    runs_dir: Path, db: str | None, analysis: str | None, form: str, html: Path | None, run: str
) -> None:
    """Show what the profiles of a run say.

    RUN is a run id, a unique beginning of one, a path, or last (the default).
    """
    from hpcprof.analysis.catalogue import find
    from hpcprof.cli.states import poll
    from hpcprof.report.basis import basis
    from hpcprof.report.contents import gather
    from hpcprof.report.terminal import reasons, show_analysis, show_report
    from hpcprof.run import find_run
    from hpcprof.store import Store, store_url

    chosen = find(analysis) if analysis else None
    if form == "csv" and chosen is None:
        raise UsageError("--format csv writes one table: choose it with --analysis NAME.")
    found = find_run(run, runs_dir)
    contents = gather(found, Store(store_url(db, runs_dir)), poll([found]).get(found.id))
    if html is not None:
        _write_html(html, contents)
    if chosen is None:
        if form == "json":
            everything = {name: stored.rows for name, stored in contents.analyses.items()}
            click.echo(json.dumps({"run": found.id, "analyses": everything}, indent=1))
        else:
            show_report(contents)
    else:
        if chosen.name not in contents.analyses:
            raise HpcprofError("; ".join(contents.warnings) + ".")
        stored = contents.analyses[chosen.name]
        if form == "table":
            show_analysis(chosen, stored, basis(chosen.name, contents.analyses))
        else:
            columns = [column.name for column in chosen.columns]
            write_rows(form, columns, [list(row.values()) for row in stored.rows])
            for reason in reasons(stored):
                click.echo(reason, err=True)
    if html is not None:
        click.echo(f"wrote {html}", err=form != "table")


def _write_html(path: Path, contents: object) -> None:
    from hpcprof.atomic import write_atomically
    from hpcprof.report.html import html_report

    try:
        write_atomically(path, html_report(contents))  # type: ignore[arg-type]
    except OSError as error:
        raise HpcprofError(f"cannot write {path}: {error.strerror}.") from None
