"""Tables on standard output: as text, CSV or JSON."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from hpcprof.analysis.framework.declaration import Analysis
    from hpcprof.report.contents import Contents
    from hpcprof.results.analysis_table import AnalysisTable

format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="How the rows are written.",
)


def show(rows: Iterable[Sequence[str]], headings: Sequence[str], title: str = "") -> None:
    """Print rows of text; the last column wraps where the terminal is narrow, the others do not."""
    # Imported here: rich takes longer to load than most commands run.
    from rich.table import Table

    table = Table(*headings, title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in table.columns[:-1]:
        column.no_wrap = True
    for row in rows:
        table.add_row(*row)
    console().print(table)


def console() -> Console:
    """Return standard output as a terminal; names in a profile are neither markup nor emoji."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)


def show_analysis(analysis: Analysis, table: AnalysisTable, samples: str = "") -> None:
    """Print one analysis with all its rows; ``samples`` is the line on its sample sizes."""
    from hpcprof.report.terminal import analysis_report

    out = console()
    out.print(analysis_report(analysis, table, out.width, samples))


def show_report(contents: Contents) -> None:
    """Print the full report of a run."""
    from hpcprof.report.terminal import full_report

    out = console()
    out.print(full_report(contents, out.width))


def write_analysis(form: str, analysis: Analysis, table: AnalysisTable, samples: str = "") -> None:
    """Write one analysis; with CSV and JSON the reasons for missing values go to standard error."""
    if form == "table":
        show_analysis(analysis, table, samples)
        return
    from hpcprof.report.terminal import reasons

    columns = [column.name for column in analysis.columns]
    write_rows(form, columns, [list(row.values()) for row in table.rows])
    for reason in reasons(table):
        click.echo(reason, err=True)


def write_rows(form: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows in a form of `format_option`; JSON is a list of objects."""
    if form == "json":
        click.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=1))
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    else:
        from hpcprof.common.units import visible

        show([["–" if value is None else visible(str(value)) for value in row] for row in rows], columns)
