"""``hpcprof report``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcprof.cli.examples import examples
from hpcprof.cli.options import db_option, runs_dir_option
from hpcprof.cli.skipped import exit_naming
from hpcprof.cli.tables import write_rows
from hpcprof.common.errors import HpcprofError, UsageError, writing

if TYPE_CHECKING:
    from hpcprof.analysis.framework.declaration import Analysis
    from hpcprof.results.analysis_table import AnalysisTable
    from hpcprof.results.store.store import Store


@click.command(
    "report",
    epilog=examples(
        "hpcprof report last --html report.html",
        "hpcprof report --analysis kernels --format csv",
        "hpcprof report RUN --analysis slowdown_pairs --against RUN2",
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
@click.option(
    "--against",
    multiple=True,
    metavar="RUN",
    help="Compare with this run (slowdown_pairs, slowdown_by_overlap, roofline, compare). Repeatable.",
)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
def command(
    runs_dir: Path,
    db: str | None,
    analysis: str | None,
    form: str,
    html: Path | None,
    against: tuple[str, ...],
    runs: tuple[str, ...],
) -> None:
    """Show what the profiles of a run say.

    RUN is a run id, a unique beginning of one, a path, or last (the default). An analysis with --against
    takes several, the repeats; so does scaling, which without RUN goes over all runs.
    """
    from hpcprof.analysis.framework.lookup import find, find_across_runs
    from hpcprof.report.contents import gather, sample_sizes
    from hpcprof.report.terminal import show_report
    from hpcprof.results.store.store import open_store
    from hpcprof.submit.runs.directory import find_run
    from hpcprof.submit.states import poll

    store = open_store(db, runs_dir)
    across = find_across_runs(analysis, bool(against))
    if across is not None:
        if html is not None:
            raise UsageError(f"--html shows one run: {across.name} goes over several.")
        skipped: list[str] = []
        show_rows(form, across, _over_runs(across, runs, against, store, runs_dir, skipped))
        exit_naming(skipped)
        return
    if len(runs) > 1:
        raise UsageError(f"a report is of one run, not of {len(runs)}: hpcprof compare takes several.")
    chosen = find(analysis) if analysis else None
    if form == "csv" and chosen is None:
        raise UsageError("--format csv writes one table: choose it with --analysis NAME.")
    found = find_run(runs[0] if runs else "last", runs_dir)
    contents = gather(found, store, poll([found]).get(found.id))
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
        show_rows(form, chosen, contents.analyses[chosen.name], sample_sizes(chosen.name, contents.analyses))
    if html is not None:
        click.echo(f"wrote {html}", err=form != "table")


def _over_runs(
    analysis: Analysis,
    runs: tuple[str, ...],
    against: tuple[str, ...],
    store: Store,
    runs_dir: Path,
    skipped: list[str],
) -> AnalysisTable:
    """Compute an analysis over several runs; those that cannot be read are named in ``skipped``."""
    from hpcprof.analysis.framework.declaration import Scope
    from hpcprof.results.across_runs import every_run, over_pair, over_store
    from hpcprof.submit.runs.directory import find_runs

    if analysis.scope is Scope.STORE:
        chosen = [run for name in runs for run in find_runs(name, runs_dir)]
        return over_store(analysis, chosen or every_run(store, runs_dir, skipped), store)
    of_side, others = (
        [run for name in side for run in find_runs(name, runs_dir)] for side in (runs or ("last",), against)
    )
    return over_pair(analysis, of_side, others, store)


def show_rows(form: str, analysis: Analysis, stored: AnalysisTable, samples: str = "") -> None:
    """Print one analysis; beside csv and json the reasons for what is missing go to standard error."""
    from hpcprof.report.terminal import reasons, show_analysis

    if form == "table":
        show_analysis(analysis, stored, samples)
        return
    columns = [column.name for column in analysis.columns]
    write_rows(form, columns, [list(row.values()) for row in stored.rows])
    for reason in reasons(stored):
        click.echo(reason, err=True)


def _write_html(path: Path, contents: object) -> None:
    from hpcprof.common.atomic import write_atomically
    from hpcprof.report.html import html_report

    with writing(path):
        write_atomically(path, html_report(contents))  # type: ignore[arg-type]
