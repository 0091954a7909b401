"""The tables of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcprof.analysis.framework.declaration import Column, Kind
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.units import counted
from hpcprof.report.contents import Contents, sample_sizes
from hpcprof.report.formatting import cell, header
from hpcprof.report.terminal import remarks
from hpcprof.results.analysis_table import Row

_TABLE_ROWS = 100


@dataclass(frozen=True)
class PageTable:
    """A table of the page: its headers, each with whether its column is text, and its cells.

    ``hidden`` names the rows left out, and where they are.
    """

    name: str
    title: str
    headers: list[tuple[str, bool]]
    rows: list[list[str]]
    hidden: str
    notes: Sequence[str]


def analysis_table(name: str, contents: Contents) -> PageTable:
    """Return an analysis of a run as a table of its page."""
    analysis, stored = ANALYSES[name], contents.analyses[name]
    notes = [line for line in (sample_sizes(name, contents.analyses), *remarks(stored)) if line]
    headers = [header(column.name) for column in analysis.columns]
    return page_table(
        name, analysis.title, analysis.columns, headers, stored.rows, contents.in_full(name), notes
    )


def page_table(
    name: str,
    title: str,
    columns: Sequence[Column],
    headers: Sequence[str],
    rows: Sequence[Row],
    rest: str,
    notes: Sequence[str] = (),
) -> PageTable:
    """Return rows as a table of a page; ``rest`` says where the rows are that it leaves out."""
    hidden = max(0, len(rows) - _TABLE_ROWS)
    return PageTable(
        name,
        title,
        headers=[(text, column.kind is Kind.TEXT) for text, column in zip(headers, columns, strict=True)],
        rows=[[cell(column.name, row[column.name]) for column in columns] for row in rows[:_TABLE_ROWS]],
        hidden=f"{counted(hidden, 'more row')}: {rest}" if hidden else "",
        notes=notes,
    )
