"""Tables on standard output: as text, CSV or JSON."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from hpcprof.analysis.framework.declaration import Analysis
    from hpcprof.report.contents import Contents
    from hpcprof.results.analysis_table import AnalysisTable

_GAP = 2
_SHORTENED = 12
"""The fewest characters shown of a column that is cut."""

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


def show_what_fits(columns: Mapping[str, Sequence[str]], order: Sequence[str], shortened: str) -> list[str]:
    """Print columns by heading as far as the terminal is wide enough, and return the headings left out.

    What is no terminal gets all of them. ``order`` has the headings, the most important first; the column
    ``shortened`` is cut to the width that the others leave.
    """
    from rich.table import Table

    out = console()
    wide = out.is_terminal or "COLUMNS" in os.environ
    needed = {name: max(map(len, (name, *values))) for name, values in columns.items()}
    left = out.width if wide else sum(needed.values()) + _GAP * len(needed)
    least = needed | {shortened: min(needed[shortened], _SHORTENED)}
    shown = {order[0]}
    left -= least[order[0]]
    for name in order[1:]:
        if least[name] + _GAP <= left:
            shown.add(name)
            left -= least[name] + _GAP
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for name in (name for name in columns if name in shown):
        cut = name == shortened
        width = least[name] + left if cut else None
        table.add_column(
            name, overflow="ellipsis" if cut else "fold", no_wrap=name != order[0], max_width=width
        )
    for row in zip(*(columns[name] for name in columns if name in shown), strict=True):
        table.add_row(*row)
    console(None if wide else sum(needed.values()) + _GAP * len(needed)).print(table)
    return [name for name in order if name not in shown]


def console(width: int | None = None) -> Console:
    """Return standard output as a terminal; names in a profile are neither markup nor emoji."""
    from rich.console import Console

    return Console(width=width, markup=False, emoji=False, highlight=False)


def show_analysis(analysis: Analysis, table: AnalysisTable, samples: str = "") -> None:
    """Print one analysis with all its rows; ``samples`` is the line on its sample sizes."""
    from hpcprof.report.terminal import analysis_report

    out = console()
    out.print(analysis_report(analysis, table, out.width, samples))


def show_report(contents: Contents) -> None:
    """Print the full report of a run."""
    from hpcprof.report.terminal import full_report

    out = console()
    out.print(full_report(contents, out.width), crop=False)


def write_analysis(form: str, analysis: Analysis, table: AnalysisTable, samples: str = "") -> None:
    """Write one analysis; with CSV and JSON what is missing is said on standard error."""
    if form == "table":
        show_analysis(analysis, table, samples)
        return
    from hpcprof.report.terminal import remarks

    columns = [column.name for column in analysis.columns]
    write_rows(form, columns, [list(row.values()) for row in table.rows])
    for line in remarks(table):
        click.echo(line, err=True)


def write_rows(form: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows in a form of `format_option` as they come; JSON is a list of objects."""
    if form == "json":
        texts = (json.dumps(dict(zip(columns, row, strict=True)), indent=1) for row in rows)
        separator = "[\n "
        for text in texts:
            click.echo(separator + text.replace("\n", "\n "), nl=False)
            separator = ",\n "
        click.echo("[]" if separator.startswith("[") else "\n]")
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    else:
        from hpcprof.common.units import visible

        show([["–" if value is None else visible(str(value)) for value in row] for row in rows], columns)
