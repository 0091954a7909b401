"""The tables of a page: their titles and notes as text, their rows as data for the page's script."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from hpcprof.analysis.framework.declaration import Column, Kind
from hpcprof.analysis.framework.outcome import Row
from hpcprof.common.units import counted
from hpcprof.profiles.kernel_names import labels
from hpcprof.report.contents import Contents
from hpcprof.report.formatting import cell, header
from hpcprof.report.many_ranks import deviating, measure, spans_many_ranks, spread
from hpcprof.report.terminal import reasons

MAX_ROWS = 2000
"""Maximum rows of a table that a page holds."""

_MAX_LABEL_LENGTH = 48
"""Longer texts are shortened until the reader unfolds them."""


class PageTable(msgspec.Struct, frozen=True):
    """A table of a page."""

    name: str
    title: str
    count: str
    """The number of rows in words; empty without any."""
    notes: Sequence[str]
    data: dict[str, Any] | None
    """Its name and columns, see `page_table`; None without rows."""


def analysis_tables(name: str, contents: Contents) -> Iterator[PageTable]:
    """Yield an analysis of a run as a table of its page; of many ranks, their spread and the outliers."""
    analysis, stored = contents.declared(name), contents.table(name)
    notes = [*contents.basis(name), *reasons(stored)]
    pointer, title = contents.in_full(name), analysis.title
    if not spans_many_ranks(analysis, stored):
        yield page_table(name, title, analysis.columns, stored.rows, pointer, notes)
        return
    ranks = counted(len(stored.rows_by_rank), "rank")
    summary, rows = spread(analysis, stored)
    notes.append(f"all {counted(stored.count, 'row')}: {pointer}")
    yield page_table(name, f"{title} over {ranks}", summary.columns, rows, pointer, notes)
    per_rank, rows = deviating(analysis, stored)
    if rows and not analysis.first_rank_only:
        title += f": ranks that deviate most in {header(measure(analysis))}"
        yield page_table(f"{name}-deviating", title, per_rank.columns, rows, pointer)


def page_table(
    name: str,
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    pointer: str,
    notes: Sequence[str] = (),
    unchanged: Sequence[str] = (),
) -> PageTable:
    """Return rows as a table of a page; ``pointer`` says where the rows are that the page leaves out.

    The data are columns: values, which are sorted and exported, and for numbers the texts that are shown; for
    texts that are long, the short ones by the long. Columns without any value are left out. The columns
    ``unchanged`` have their names as headers.
    """
    if not rows:
        return PageTable(name, title, "", notes, None)
    omitted = f"the page holds the first {MAX_ROWS:,}; all: {pointer}"
    columns_of_rows = ((column, [row[column.name] for row in rows[:MAX_ROWS]]) for column in columns)
    filled_columns = [
        _column(column, column.name if column.name in unchanged else header(column.name), values)
        for column, values in columns_of_rows
        if any(value not in (None, "") for value in values)
    ]
    notes = [*notes, *([omitted] if len(rows) > MAX_ROWS else [])]
    return PageTable(name, title, counted(len(rows), "row"), notes, {"name": name, "columns": filled_columns})


def _column(column: Column, heading: str, values: list[Any]) -> dict[str, Any]:
    data: dict[str, Any] = {"name": column.name, "header": heading, "values": values}
    if column.kind is not Kind.TEXT:
        return {**data, "texts": [cell(column.name, value) for value in values]}
    texts = [None if value is None else cell(column.name, value) for value in values]
    long = [value for value in dict.fromkeys(texts) if value and len(value) > _MAX_LABEL_LENGTH]
    return {**data, "values": texts, "short": labels(long, _MAX_LABEL_LENGTH)}
