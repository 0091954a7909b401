"""The report for a terminal: what the command line prints.

Figures are never cut. Where a table is too wide, headers take two lines first, then long names are shortened,
and then the last columns are left out.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpcprof.analysis.framework.declaration import Analysis, Kind
from hpcprof.analysis.framework.outcome import AnalysisTable, Row
from hpcprof.common.grouping import grouped
from hpcprof.common.units import counted
from hpcprof.profiles.kernel_names import labels
from hpcprof.report.account import Account, account_lines, account_title, accounts_of_steps
from hpcprof.report.contents import Contents
from hpcprof.report.facts import facts
from hpcprof.report.formatting import Grade, cell, format_value, grade, header, metric_label
from hpcprof.report.many_ranks import deviating, measure, spans_many_ranks, spread

MAX_REPORT_ROWS = 16
"""The number of rows that the full report shows of an analysis of few ranks; ``--analysis`` shows all."""

_MIN_BESIDE_WIDTH = 60
"""From this width in characters on, facts are beside their labels."""

LOSSES_TITLE = "What the profiles lack"
"""The heading of the losses of a run."""

_TABLES_WITHOUT_STEPS = 3
"""The number of tables on the first screen of a run that has no steps to account for."""

MAX_FAILURES = 3
"""The number of failed ranks that a report shows with their last lines."""


def full_report(contents: Contents, width: int) -> RenderableType:
    """Return the full report of a run for a terminal of ``width`` characters."""
    return Group(*_head_of_report(contents, width), *_tables(contents, width), *_losses(contents))


def first_screen(contents: Contents, width: int) -> RenderableType:
    """Return a report without its tables, and how to see them. A run without steps has its first tables."""
    names = [name for name, table in contents.shown().items() if table.count]
    shown_names = [] if accounts_of_steps(contents) else names[:_TABLES_WITHOUT_STEPS]
    tables = (part for name in shown_names for part in _part(contents.declared(name), contents, width))
    other_names = [name for name in names if name not in shown_names]
    return Group(
        *_head_of_report(contents, width),
        *tables,
        *_losses(contents),
        *_further_tables(contents, other_names),
    )


def _further_tables(contents: Contents, names: Sequence[str]) -> Iterator[RenderableType]:
    """Yield the names of tables that are not shown, and the commands that show them."""
    if names:
        yield Text("\nTables", style="bold")
        yield Text(", ".join(names))
        yield _command("All:", contents.reporting("--all"))
        yield _command("One with all its rows:", contents.in_full("NAME"))
    yield _command("As a page:", contents.reporting("--html", "report.html"))


def _command(use: str, command: str) -> Text:
    """Return a line with a command that a narrow terminal does not break."""
    return Text(f"{use} {command}", no_wrap=True, overflow="ignore")


def _losses(contents: Contents) -> Iterator[RenderableType]:
    if contents.losses:
        yield Text(f"\n{LOSSES_TITLE}", style="bold")
        yield from (Text(line) for line in contents.losses)


def _head_of_report(contents: Contents, width: int) -> Iterator[RenderableType]:
    """Yield the facts of a run, the account of its step, and what failed, in the order of a job."""
    run, *other_facts = facts(contents)
    yield from _labelled_facts([run], width)
    yield from _accounts(accounts_of_steps(contents), width)
    yield from _labelled_facts(other_facts, width)
    for warning in contents.warnings:
        yield Text(f"\n{warning}", style="yellow")
    for failure in contents.failures[:MAX_FAILURES]:
        yield Text(f"\n{failure}", style="bold red")
        yield from (Text(f"  {line}") for line in failure.last_lines)


def _tables(contents: Contents, width: int) -> Iterator[RenderableType]:
    """Yield the tables that have rows, and why others have none."""
    parts = contents.shown()
    for name, table in parts.items():
        if table.count:
            yield from _part(contents.declared(name), contents, width)
    empty = grouped(("; ".join(reasons(table)), name) for name, table in parts.items() if not table.count)
    if empty:
        yield Text("\nNot available", style="bold")
        yield from (Text(f"{', '.join(names)}: {reason}") for reason, names in empty.items())


def _accounts(accounts: Sequence[Account], width: int) -> Iterator[RenderableType]:
    """Yield the account of the step, and below it that of each kind of steps."""
    for account in accounts:
        yield Text(f"\n{account_title(account)}", style="bold")
        yield from (Text(line, no_wrap=True) for line in account_lines(account, width))
        if account.notes:
            yield Text("\n".join(account.notes))
    if accounts:
        yield Text()


def _labelled_facts(pairs: Sequence[tuple[str, str]], width: int) -> Iterator[RenderableType]:
    """Yield facts beside their labels, or below them where there is little room."""
    if width >= _MIN_BESIDE_WIDTH:
        table = Table(box=None, show_header=False, pad_edge=False)
        for label, text in pairs:
            table.add_row(Text(label, style="bold"), Text(text))
        yield table
        return
    for label, text in pairs:
        if label:
            yield Text(label, style="bold")
        yield Padding(Text(text, overflow="fold"), (0, 0, 0, 2))


def analysis_report(
    analysis: Analysis, table: AnalysisTable, width: int, basis: Sequence[str] = ()
) -> RenderableType:
    """Return one analysis with all its rows for a terminal of ``width`` characters.

    Where it is too narrow for all columns, the main ones are shown. ``basis`` are the lines of
    `Contents.basis`.
    """
    parts: list[RenderableType] = []
    if table.rows:
        layout = whole_table(analysis, table.rows, analysis.shown_columns, width)
        parts.append(layout.table)
        hidden = [column.name for column in analysis.columns if column.name not in layout.keys]
        if hidden:
            parts.append(Text(f"(not shown: {_headers(hidden)}; widen the terminal or use --format csv)"))
    return Group(*parts, *map(Text, (*basis, *remarks(table))))


def _headers(keys: Sequence[str]) -> str:
    return ", ".join(map(header, keys))


def remarks(table: AnalysisTable) -> list[str]:
    """Return the reasons why rows or values are missing, and one line with the losses of the profiles."""
    return [*reasons(table), *([f"losses: {'; '.join(table.losses)}"] if table.losses else [])]


def reasons(table: AnalysisTable) -> list[str]:
    """Return the reason why rows or values are missing: that of the first rank, and the number of others."""
    if not table.reasons:
        return []
    rank, sentence = next(iter(table.reasons.items()))
    further = len(table.reasons) - 1
    more = f" (the same on {counted(further, 'more rank')})" if further else ""
    return [f"rank {rank}: {sentence}{more}" if rank >= 0 else sentence]


def _part(analysis: Analysis, contents: Contents, width: int) -> Iterator[RenderableType]:
    """Yield an analysis of the full report: its title, its first rows or a summary, and the notes on them."""
    table = contents.table(analysis.name)
    if spans_many_ranks(analysis, table):
        yield from _over_ranks(analysis, table, width)
        yield more_rows("all rows", contents.in_full(analysis.name))
    else:
        rows, title = table.rows, analysis.title
        if analysis.first_rank_only:
            first = rows[0]["rank"]
            rows = [row for row in rows if row["rank"] == first]
            title += f", rank {first}"
        yield from titled(title, analysis, rows[:MAX_REPORT_ROWS], width)
        hidden = len(table.rows) - len(rows[:MAX_REPORT_ROWS])
        if hidden > 0:
            yield more_rows(counted(hidden, "more row"), contents.in_full(analysis.name))
    yield from map(Text, (*contents.basis(analysis.name), *reasons(table)))


def _over_ranks(analysis: Analysis, table: AnalysisTable, width: int) -> Iterator[RenderableType]:
    """Yield the quantiles of an analysis over many ranks, and the ranks that deviate most."""
    ranks = counted(len(table.rows_by_rank), "rank")
    compared = header(measure(analysis))
    summary, rows = spread(analysis, table)
    by_name = "quantile" not in rows[0]
    title = f"{analysis.title}: {compared} over {ranks}" if by_name else f"{analysis.title} over {ranks}"
    largest = f", the {MAX_REPORT_ROWS} largest of {len(rows):,}" if len(rows) > MAX_REPORT_ROWS else ""
    yield from titled(title + largest, summary, rows[:MAX_REPORT_ROWS], width)
    if analysis.first_rank_only:
        return
    apart, rows = deviating(analysis, table)
    if rows:
        yield from titled(f"Ranks that deviate most: {compared}", apart, rows, width)
    else:
        yield Text(f"no rank deviates from the median of {compared}")


def titled(title: str, analysis: Analysis, rows: Sequence[Row], width: int) -> Iterator[RenderableType]:
    """Yield a title, the main columns of at least one row, and the names of those without room."""
    yield Text(f"\n{title}", style="bold")
    empty = {
        column.name for column in analysis.columns if all(row[column.name] in (None, "") for row in rows)
    }
    main = tuple(name for name in analysis.shown_columns if name not in empty) or analysis.shown_columns
    layout = main_table(analysis, rows, main, width)
    yield layout.table
    if len(layout.keys) < len(main):
        yield Text(f"(not shown: {_headers(main[len(layout.keys) :])}; widen the terminal)")


def more_rows(rows: str, command: str) -> Text:
    """Return the line that says what is not shown, with the command that shows it."""
    # A wrapped command cannot be copied.
    return Text(f"… {rows}: {command}", no_wrap=True, overflow="ignore")


_GRADE_COLOURS = {Grade.GOOD: "green", Grade.FAIR: "yellow", Grade.POOR: "red"}
_MIN_NAME_WIDTH = 8
_USABLE_NAME_WIDTH = 24
_READABLE_NAME_WIDTH = 40
_MAX_WORD_WIDTH = 16
"""Maximum length of the words of a column whose texts break between words and are not shortened."""
_MAX_NAME_LENGTH = 100
"""Maximum length of a name that breaks after its underscores."""
_SENTENCES = "advice"
"""The column of sentences: they break whatever their words, in the room that names leave."""
_COLUMN_GAP = 2


class Layout(msgspec.Struct, frozen=True):
    """The columns that fit, and the table of them."""

    keys: tuple[str, ...]
    table: Table


def whole_table(analysis: Analysis, rows: Sequence[Row], main: tuple[str, ...], width: int) -> Layout:
    """Lay out every column; where they do not fit, the ``main`` ones, as many as fit."""
    columns = _Columns(analysis, rows)
    all_keys = tuple(columns.cells)
    if columns.width(all_keys, _READABLE_NAME_WIDTH) <= width:
        return Layout(all_keys, columns.table(all_keys, columns.single_line(all_keys)))
    filled = tuple(key for key in main if any(row[key] is not None for row in rows))
    return main_table(analysis, rows, filled, width)


def main_table(analysis: Analysis, rows: Sequence[Row], main: tuple[str, ...], width: int) -> Layout:
    """Lay out the main columns, from the first on as many as fit; parameters as in `whole_table`."""
    columns = _Columns(analysis, rows)
    count = len(main)
    while count > 1 and columns.width(main[:count], _MIN_NAME_WIDTH, two_lines=True) > width:
        count -= 1
    keys = main[:count]
    one_line = columns.width(keys, _USABLE_NAME_WIDTH) <= width
    headers = columns.single_line(keys) if one_line else columns.two_lines(keys)
    return Layout(keys, columns.table(keys, headers, width))


class _Columns:
    """The cells of some rows as text, and how wide they are."""

    def __init__(self, analysis: Analysis, rows: Sequence[Row]) -> None:
        self.cells = {column.name: [_cell(row, column.name) for row in rows] for column in analysis.columns}
        self._text = {column.name for column in analysis.columns if column.kind is Kind.TEXT}
        longest = {
            key: max(len(word) for text in {header(key), *self.cells[key]} for word in _words(text))
            for key in self._text
        }
        # Names of kernels in C++ and of Tensile have short words too, and many.
        signatures = {key for key in self._text if any(map(_is_signature, self.cells[key]))}
        self._words = {
            key: width
            for key, width in longest.items()
            if (width <= _MAX_WORD_WIDTH or key == _SENTENCES) and key not in signatures
        }
        self._rows = rows

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
        shortest = [
            min(widths[key], max(name_width, self._words.get(key, 0))) if key in self._text else widths[key]
            for key in keys
        ]
        return sum(shortest) + _COLUMN_GAP * (len(keys) - 1)

    def table(self, keys: Sequence[str], headers: Mapping[str, str], clip_to: int | None = None) -> Table:
        """Lay out columns; to fit ``clip_to``, texts break between words and the widest name is shortened."""
        cells = {key: self.cells[key] for key in keys}
        widths = self._widths(headers)
        if clip_to is not None:
            breakable = (key for key in keys if key in self._words)
            for key in sorted(breakable, key=lambda key: (key == _SENTENCES, -widths[key])):
                excess = sum(widths.values()) + _COLUMN_GAP * (len(keys) - 1) - clip_to
                room = max(self._words[key], widths[key] - max(0, excess))
                if room < widths[key]:
                    cells[key], widths[key] = [_wrapped(text, room) for text in cells[key]], room
        shortened = [key for key in keys if key in self._text and key not in self._words]
        if clip_to is not None and shortened:
            widest = max(shortened, key=widths.__getitem__)
            other_width = sum(widths.values()) - widths[widest] + _COLUMN_GAP * (len(keys) - 1)
            room = max(_MIN_NAME_WIDTH, clip_to - other_width)
            if widest == "file":
                # The end of a path tells more than its begin.
                cells[widest] = [
                    text if len(text) <= room else f"…{text[1 - room :]}" for text in cells[widest]
                ]
            else:
                short_texts = labels(dict.fromkeys(cells[widest]), room)
                cells[widest] = [short_texts[text] for text in cells[widest]]
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
    colour = grade(key, row.get(key))
    return _GRADE_COLOURS[colour] if colour else ""


def _is_signature(text: str) -> bool:
    return "<" in text or any(len(name) > _MAX_NAME_LENGTH for name in text.split())


def _words(text: str) -> list[str]:
    """Return the words of a text; a line may also end after the underscore of a name."""
    return re.findall(r"[^\s_]*_+|[^\s_]+\s*", text) or [""]


def _wrapped(text: str, width: int) -> str:
    lines = [""]
    for word in _words(text):
        if len(lines[-1]) + len(word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines if line)


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
        return metric_label(str(row[key]))
    return format_value(row["metric"], row[key]) if key in ("a", "b") else cell(key, row[key])
