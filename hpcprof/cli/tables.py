"""Tables on standard output: as text, CSV or JSON."""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from hpcprof.cli.conventions import echo
from hpcprof.cli.options import format_among
from hpcprof.common.errors import ESCAPED_CONTROLS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment

    from hpcprof.analysis.framework.declaration import Analysis
    from hpcprof.analysis.framework.outcome import AnalysisTable
    from hpcprof.report.contents import Contents

_COLUMN_GAP = 2
_MIN_SHORTENED_WIDTH, _LEFT_WIDTH, _MAX_SHORTENED_WIDTH = 12, 30, 200
"""Characters shown of a column that is cut: minimum, what less important columns leave it, and maximum."""

format_option = format_among("table", "csv", "json", help="How the rows are written.")


def show(rows: Iterable[Sequence[str]], headings: Sequence[str]) -> None:
    """Print rows of text; the last column wraps where the terminal is narrow, the others do not.

    A word that is longer than the last column continues on the next line.
    """
    # Imported here: rich takes longer to load than most commands run.
    from rich.table import Table

    table = Table(*headings, box=None, pad_edge=False)
    for column in table.columns[:-1]:
        column.no_wrap = True
    table.columns[-1].overflow = "fold"
    for row in rows:
        table.add_row(*row)
    console().print(table)


def show_what_fits(columns: Mapping[str, Sequence[str]], order: Sequence[str], shortened: str) -> None:
    """Print columns by heading as far as the terminal is wide enough; say on standard error what is left out.

    Output that is not a terminal gets all columns. ``order`` has the headings, the most important first; the
    column ``shortened`` is cut to the width that the others leave, and everywhere to `_MAX_SHORTENED_WIDTH`,
    so that different texts stay different where possible.
    """
    from rich.table import Table

    from hpcprof.profiles.kernel_names import cut_distinctly

    out = console()
    wide = out.is_terminal or "COLUMNS" in os.environ
    needed = {name: max(map(len, (name, *values))) for name, values in columns.items()}
    needed[shortened] = min(needed[shortened], _MAX_SHORTENED_WIDTH)
    whole = sum(needed.values()) + _COLUMN_GAP * len(needed)
    free_width = out.width + _COLUMN_GAP if wide else whole
    is_narrow = free_width < whole
    least = needed | {shortened: min(needed[shortened], _MIN_SHORTENED_WIDTH)}
    visible_names: set[str] = set()
    for name in order:
        # A less important column with one value in several rows would only take room from the shortened one.
        is_constant = shortened in visible_names and len({*columns[name]}) == 1 < len(columns[name])
        if is_narrow and (is_constant or {*columns[name]} == {"–"}):
            continue
        if name == shortened:
            least[name] = max(least[name], min(needed[name], _LEFT_WIDTH, free_width - _COLUMN_GAP))
        if not visible_names or least[name] + _COLUMN_GAP <= free_width:
            visible_names.add(name)
            free_width -= least[name] + _COLUMN_GAP
    short_texts = cut_distinctly(dict.fromkeys(columns[shortened]), least[shortened] + free_width)
    cells = {**columns, shortened: [short_texts[text] for text in columns[shortened]]}
    table = Table(box=None, pad_edge=False, padding=(0, _COLUMN_GAP, 0, 0))
    for name in (name for name in columns if name in visible_names):
        table.add_column(name, overflow="fold", no_wrap=name != order[0])
    for row in zip(*(cells[name] for name in columns if name in visible_names), strict=True):
        table.add_row(*row)
    console(None if wide else whole).print(table)
    if left_out := [name for name in order if name not in visible_names]:
        echo(f"not shown in this width: {', '.join(left_out)}", err=True)


def show_values(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows of values so that no figure is cut.

    Where the terminal is narrow, names are shortened, the last column wraps if it is text, and then columns
    are left out: texts that are the same in all rows, then other texts but one, then figures, each from the
    right. Output that is not a terminal gets everything. A sentence on standard error says what is not shown.
    """
    from rich.table import Table
    from rich.text import Text

    from hpcprof.profiles.kernel_names import labels

    values = [list(row) for row in rows]
    by_column = [[row[at] for row in values] for at in range(len(columns))]
    cells = [[_cell(value) for value in column] for column in by_column]
    texts = [any(isinstance(value, str) for value in column) for column in by_column]
    out = console()
    needed = [max(map(len, (name, *column))) for name, column in zip(columns, cells, strict=True)]
    whole = sum(needed) + _COLUMN_GAP * len(needed)
    if not (out.is_terminal or "COLUMNS" in os.environ) or whole - _COLUMN_GAP <= out.width:
        out, room = console(max(whole, 1)), whole
    else:
        room = out.width + _COLUMN_GAP
    varied = [len(values) < 2 or len(set(column)) > 1 for column in cells]
    visible_columns = _columns_that_fit(needed, texts, varied, room)
    free_width = room - sum(needed[at] + _COLUMN_GAP for at in visible_columns if not texts[at])
    widths = dict(zip(visible_columns, (needed[at] for at in visible_columns), strict=True))
    names = [at for at in visible_columns if texts[at]]
    for place, at in enumerate(sorted(names, key=lambda at: needed[at])):
        widths[at] = min(needed[at], free_width // (len(names) - place) - _COLUMN_GAP)
        free_width -= widths[at] + _COLUMN_GAP
    shortened = []
    table = Table(box=None, pad_edge=False, padding=(0, _COLUMN_GAP, 0, 0))
    for at in visible_columns:
        wraps = texts[at] and at == len(columns) - 1
        if texts[at] and not wraps and max(map(len, cells[at]), default=0) > widths[at]:
            short_texts = labels(dict.fromkeys(cells[at]), widths[at])
            cells[at] = [short_texts[cell] for cell in cells[at]]
            shortened.append(columns[at])
        justify: Literal["left", "right"] = "left" if texts[at] else "right"
        table.add_column(
            Text(columns[at]), justify=justify, no_wrap=not wraps, overflow="fold", width=widths[at]
        )
    for row in zip(*(cells[at] for at in visible_columns), strict=True):
        table.add_row(*map(Text, row))
    out.print(table)
    hidden = [name for at, name in enumerate(columns) if at not in visible_columns]
    notes = [f"not shown: {', '.join(hidden)}"] if hidden else []
    notes += [f"shortened: {', '.join(shortened)}"] if shortened else []
    if notes:
        echo(f"{'; '.join(notes)} (whole with --format csv)", err=True)


def _cell(value: object) -> str:
    from hpcprof.common.units import visible

    if value is None:
        return "–"
    return min(str(value), f"{value:.9g}", key=len) if isinstance(value, float) else visible(str(value))


def _columns_that_fit(
    needed: Sequence[int], texts: Sequence[bool], varied: Sequence[bool], room: int
) -> list[int]:
    """Return the positions of the columns that fit into the width: figures whole, texts shortened."""
    columns = list(range(len(needed)))
    least = [
        min(width, _MIN_SHORTENED_WIDTH) if text else width for width, text in zip(needed, texts, strict=True)
    ]
    best = min((at for at in columns if texts[at]), key=lambda at: not varied[at], default=-1)
    leaving = sorted((at for at in columns if at != best), key=lambda at: (not texts[at], varied[at], -at))
    while len(columns) > 1 and sum(least[at] + _COLUMN_GAP for at in columns) > room:
        columns.remove(leaving.pop(0))
    return columns


def console(width: int | None = None, stderr: bool = False) -> Console:
    """Return a console; names in a profile are neither markup nor emoji there, and do not steer a terminal.

    Lines that go to a file or a pipe do not end in blanks.
    """
    from rich.console import Console

    class Terminal(Console):
        def render(self, *parts: Any) -> Iterator[Segment]:
            for segment in super().render(*parts):
                text = segment.text if segment.control else segment.text.translate(ESCAPED_CONTROLS)
                yield segment._replace(text=text)

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            text = super()._render_buffer(buffer)
            return text if self.is_terminal else re.sub(" +$", "", text, flags=re.MULTILINE)

    return Terminal(width=width, stderr=stderr, markup=False, emoji=False, highlight=False)


def show_report(contents: Contents, everything: bool = False) -> None:
    """Print the report of a run; on a terminal only its first screen, unless ``everything`` is asked for."""
    from hpcprof.report.terminal import first_screen, full_report

    out = console()
    report = full_report if everything or not sys.stdout.isatty() else first_screen
    out.print(report(contents, out.width), crop=False)


def write_analysis(form: str, analysis: Analysis, table: AnalysisTable, basis: Sequence[str] = ()) -> None:
    """Write one analysis with all its rows; with CSV and JSON what is missing is said on standard error.

    ``basis`` are the lines of `Contents.basis`, which a table has below it.
    """
    from hpcprof.report.terminal import analysis_report, remarks

    if form == "table":
        out = console()
        out.print(analysis_report(analysis, table, out.width, basis))
        return
    columns = [column.name for column in analysis.columns]
    write_rows(form, columns, zip(*table.columns.values(), strict=True))
    for line in remarks(table):
        echo(line, err=True)


def write_rows(form: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows in a form of `format_option` as they come; JSON is a list of objects."""
    if form == "json":
        texts = (json.dumps(dict(zip(columns, row, strict=True)), indent=1) for row in rows)
        separator = "[\n "
        for text in texts:
            echo(separator + text.replace("\n", "\n "), nl=False)
            separator = ",\n "
        echo("[]" if separator.startswith("[") else "\n]")
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    else:
        show_values(columns, rows)
