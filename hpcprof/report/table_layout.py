"""Tables of analyses for a terminal of a given width.

Figures are never cut. Where a table is too wide, headers take two lines first, then long names are shortened,
and then the last columns are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from hpcprof.analysis.framework.declaration import Analysis, Kind
from hpcprof.profiles.kernel_names import labels
from hpcprof.report.formatting import Grade, cell, format_value, grade, header
from hpcprof.results.analysis_table import Row

_COLOURS = {Grade.GOOD: "green", Grade.FAIR: "yellow", Grade.POOR: "red"}
_SHORTEST_NAME = 8
_USABLE_NAME = 24
_READABLE_NAME = 40
_GAP = 2


@dataclass(frozen=True)
class Layout:
    """The columns that fit, and the table of them."""

    keys: tuple[str, ...]
    table: Table


def whole_table(analysis: Analysis, rows: Sequence[Row], main: tuple[str, ...], width: int) -> Layout:
    """Lay out every column; where they do not fit, the ``main`` ones, as many as fit.

    Parameters
    ----------
    analysis : Analysis
    rows : sequence of dict
        At least one.
    main : tuple of str
        The keys of the main columns.
    width : int
        The width of the terminal in characters.
    """
    columns = _Columns(analysis, rows)
    every = tuple(columns.cells)
    if columns.width(every, _READABLE_NAME) <= width:
        return Layout(every, columns.table(every, columns.single_line(every)))
    return main_table(analysis, rows, tuple(key for key in main if columns.has_values(key)), width)


def main_table(analysis: Analysis, rows: Sequence[Row], main: tuple[str, ...], width: int) -> Layout:
    """Lay out the main columns, from the first on as many as fit; parameters as in `whole_table`."""
    columns = _Columns(analysis, rows)
    count = len(main)
    while count > 1 and columns.width(main[:count], _SHORTEST_NAME, two_lines=True) > width:
        count -= 1
    keys = main[:count]
    one_line = columns.width(keys, _USABLE_NAME) <= width
    headers = columns.single_line(keys) if one_line else columns.two_lines(keys)
    return Layout(keys, columns.table(keys, headers, width))


class _Columns:
    """The cells of some rows as text, and how wide they are."""

    def __init__(self, analysis: Analysis, rows: Sequence[Row]) -> None:
        self.cells = {column.name: [_cell(row, column.name) for row in rows] for column in analysis.columns}
        self._text = {column.name for column in analysis.columns if column.kind is Kind.TEXT}
        self._rows = rows

    def has_values(self, key: str) -> bool:
        return any(row[key] is not None for row in self._rows)

    def single_line(self, keys: Sequence[str]) -> dict[str, str]:
        return {key: header(key) for key in keys}

    def two_lines(self, keys: Sequence[str]) -> dict[str, str]:
        """Return headers on two lines where that is narrower, all aligned at the bottom."""
        broken = {key: _broken(header(key), max(map(len, self.cells[key]))) for key in keys}
        height = max(text.count("\n") for text in broken.values())
        return {key: "\n" * (height - text.count("\n")) + text for key, text in broken.items()}

    def width(self, keys: Sequence[str], name_width: int, two_lines: bool = False) -> int:
        """Return the width of a table whose names are shortened to ``name_width``."""
        headers = self.two_lines(keys) if two_lines else self.single_line(keys)
        widths = self._widths(headers)
        shortest = [min(widths[key], name_width) if key in self._text else widths[key] for key in keys]
        return sum(shortest) + _GAP * (len(keys) - 1)

    def table(self, keys: Sequence[str], headers: Mapping[str, str], clip_to: int | None = None) -> Table:
        """Lay out columns; with ``clip_to``, the names of the widest one are shortened to fit that width."""
        cells = {key: self.cells[key] for key in keys}
        widths = self._widths(headers)
        widest = max(keys, key=lambda key: (key in self._text, widths[key]))
        if clip_to is not None and widest in self._text:
            others = sum(widths.values()) - widths[widest] + _GAP * (len(keys) - 1)
            shown = labels(dict.fromkeys(cells[widest]), max(_SHORTEST_NAME, clip_to - others))
            cells[widest] = [shown[text] for text in cells[widest]]
        table = Table(box=None, pad_edge=False)
        for key in keys:
            text = key in self._text
            table.add_column(
                headers[key],
                justify="left" if text else "right",
                no_wrap=not text,
                overflow="fold" if text else "ellipsis",
            )
        for row, values in zip(zip(*cells.values(), strict=True), self._rows, strict=True):
            table.add_row(*(Text(text, _style(key, values)) for key, text in zip(keys, row, strict=True)))
        return table

    def _widths(self, headers: Mapping[str, str]) -> dict[str, int]:
        return {key: max(map(len, [*text.split("\n"), *self.cells[key]])) for key, text in headers.items()}


def _style(key: str, row: Row) -> str:
    """Return the colour of a cell: that of its grade."""
    found = grade(key, row.get(key))
    return _COLOURS[found] if found else ""


def _broken(text: str, width: int) -> str:
    """Break a header that is wider than its cells at the space that leaves the shorter lines."""
    words = text.split(" ")
    if len(text) <= width or len(words) == 1:
        return text
    lines = [(" ".join(words[:at]), " ".join(words[at:])) for at in range(1, len(words))]
    return "\n".join(min(lines, key=lambda pair: max(map(len, pair))))


def _cell(row: Row, key: str) -> str:
    """Return a value for a person; the two sides of a comparison have the unit of their metric."""
    if key == "metric":
        return str(row[key]).removesuffix("_ns").removesuffix("_pct")
    return format_value(row["metric"], row[key]) if key in ("a", "b") else cell(key, row[key])
