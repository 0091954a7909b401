"""Tables on standard output: as text, CSV or JSON."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Sequence

import click

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
    # Imported here: rich takes longer to load than many commands take.
    from rich.table import Table

    from hpcprof.report.terminal import console

    table = Table(*headings, title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in table.columns[:-1]:
        column.no_wrap = True
    for row in rows:
        table.add_row(*row)
    console().print(table)


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
