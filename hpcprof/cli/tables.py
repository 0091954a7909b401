"""Tables in the terminal, in one style, as wide as the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table


def console() -> Console:
    """Return standard output; neither markup nor emoji is read out of a user's names."""
    return Console(markup=False, emoji=False, highlight=False)


def show(rows: Iterable[Sequence[str]], headings: Sequence[str], title: str = "") -> None:
    """Print rows of text; the last column takes the lines it needs, the others keep theirs."""
    table = Table(*headings, title=title or None, title_justify="left", box=None, pad_edge=False)
    for column in table.columns[:-1]:
        column.no_wrap = True
    for row in rows:
        table.add_row(*row)
    console().print(table)
