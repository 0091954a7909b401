"""The tables of a page: their titles and notes as text, their rows as data for the page's script."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from hpcprof.analysis.framework.declaration import Analysis, Column, Kind
from hpcprof.common.units import counted
from hpcprof.profiles.kernel_names import labels
from hpcprof.report.contents import Contents
from hpcprof.report.formatting import cell, header
from hpcprof.report.many_ranks import deviating, measure, spans_many_ranks, spread
from hpcprof.report.terminal import reasons
from hpcprof.results.store.analysis_table import Row

MOST_ROWS = 2000
"""The most rows of a table that a page holds."""

_LABEL = 48
"""Longer texts are shortened until the reader unfolds them."""


class PageTable(msgspec.Struct, frozen=True):
    """A table of a page."""

    name: str
    title: str
    count: str
    """The number of rows in words; empty without any."""
    notes: Sequence[str]
    data: dict[str, Any] | None
    """The value of `table_data`; None without rows."""


def analysis_tables(name: str, contents: Contents) -> Iterator[PageTable]:
    """Yield an analysis of a run as a table of its page; of many ranks, as how they differ."""
    analysis, stored = contents.declared(name), contents.table(name)
    notes = [*contents.basis(name), *reasons(stored)]
    if not spans_many_ranks(analysis, stored):
        yield analysis_table(analysis, stored.rows, contents.in_full(name), notes)
        return
    ranks = counted(len(stored.rows_by_rank), "rank")
    summary, rows = spread(analysis, stored)
    all_rows = f"all {counted(stored.count, 'row')}: {contents.in_full(name)}"
    yield analysis_table(
        summary, rows, contents.in_full(name), [*notes, all_rows], f"{analysis.title} over {ranks}"
    )
    apart, rows = deviating(analysis, stored)
    if rows and not analysis.first_rank_only:
        title = f"{analysis.title}: ranks that deviate most in {header(measure(analysis))}"
        yield analysis_table(apart, rows, contents.in_full(name), (), title, f"{name}-deviating")


def analysis_table(
    analysis: Analysis,
    rows: Sequence[Row],
    pointer: str,
    notes: Sequence[str] = (),
    title: str = "",
    name: str = "",
) -> PageTable:
    """Return rows of an analysis as a table of a page; ``pointer`` as for `page_table`."""
    headers = [header(column.name) for column in analysis.columns]
    name, title = name or analysis.name, title or analysis.title
    return page_table(name, title, analysis.columns, headers, rows, pointer, notes)


def page_table(
    name: str,
    title: str,
    columns: Sequence[Column],
    headers: Sequence[str],
    rows: Sequence[Row],
    pointer: str,
    notes: Sequence[str] = (),
) -> PageTable:
    """Return rows as a table of a page; ``pointer`` says where the rows are that the page leaves out."""
    visible_rows = rows[:MOST_ROWS]
    omitted = len(rows) - len(visible_rows)
    count = counted(len(rows), "row") if rows else ""
    notes = [*notes, *([f"the page holds the first {MOST_ROWS:,}; all: {pointer}"] if omitted else [])]
    return PageTable(
        name, title, count, notes, table_data(name, columns, headers, visible_rows) if rows else None
    )


def table_data(
    name: str, columns: Sequence[Column], headers: Sequence[str], rows: Sequence[Row]
) -> dict[str, Any]:
    """Return rows as data of a page, column by column.

    Each column has its values, which are sorted and exported, and for numbers the texts that are shown;
    for texts that are long, the short ones by the long. Columns without any value are left out.
    """
    filled = (
        (column, text)
        for column, text in zip(columns, headers, strict=True)
        if any(row[column.name] not in (None, "") for row in rows)
    )
    return {
        "name": name,
        "columns": [_column(column, text, [row[column.name] for row in rows]) for column, text in filled],
    }


def _column(column: Column, text: str, values: list[Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"name": column.name, "header": text, "values": values}
    if column.kind is not Kind.TEXT:
        return {**made, "texts": [cell(column.name, value) for value in values]}
    texts = [None if value is None else cell(column.name, value) for value in values]
    long = [value for value in dict.fromkeys(texts) if value and len(value) > _LABEL]
    return {**made, "values": texts, "short": labels(long, _LABEL)}
