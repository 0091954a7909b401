"""Tables in the terminal, in one style, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table

from hpcprof.report.terminal import console


def show(rows: Iterable[Sequence[str]], headings: Sequence[str], title: str = "") -> None:
    """Print rows of text; the last column takes the lines it needs, the others keep theirs."""
    table = Table(*headings, title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in table.columns[:-1]:
        column.no_wrap = True
    for row in rows:
        table.add_row(*row)
    console().print(table)
