"""Rows on standard output, as a table, CSV or JSON."""

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


def write_rows(form: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows in a form of `format_option`; JSON is a list of objects."""
    if form == "json":
        click.echo(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=1))
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    else:
        from hpcprof.cli.tables import show
        from hpcprof.common.units import visible

        show([["–" if value is None else visible(str(value)) for value in row] for row in rows], columns)
