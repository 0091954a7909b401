"""The report as tables in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcprof.analysis.framework.declaration import Analysis, Kind
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.common.units import format_value, heading
from hpcprof.profiles.kernel_names import labels
from hpcprof.report.contents import Contents, sample_sizes
from hpcprof.report.facts import facts
from hpcprof.results.analysis_table import AnalysisTable, Row

ROWS = 16
"""How many rows of an analysis the full report shows; by name an analysis is shown whole."""

_SHORTEST_NAME = 8
_READABLE_NAME = 40


def console() -> Console:
    """Return standard output; neither markup nor emoji is read out of a user's names."""
    return Console(markup=False, emoji=False, highlight=False)


def show_report(contents: Contents) -> None:
    """Print the full report."""
    out = console()
    head = Table(box=None, show_header=False, pad_edge=False)
    for label, text in facts(contents):
        head.add_row(Text(label, style="bold"), text)
    out.print(head)
    for failure in contents.failures[:3]:
        out.print(Text(f"\n{failure}", style="bold red"))
        for line in failure.last_lines:
            out.print(f"  {line}")
    for warning in contents.warnings:
        out.print(Text(f"\n{warning}", style="yellow"))
    parts = contents.shown()
    for name, stored in parts.items():
        if stored.rows:
            _show_part(out, ANALYSES[name], stored, sample_sizes(name, contents.analyses))
    empty: dict[str, list[str]] = {}
    for name, stored in parts.items():
        if not stored.rows:
            empty.setdefault("; ".join(reasons(stored)), []).append(name)
    if empty:
        out.print(Text("\nNot in these profiles", style="bold"))
        for why, names in empty.items():
            out.print(f"{', '.join(names)}: {why}")


def show_analysis(analysis: Analysis, stored: AnalysisTable, samples: str = "") -> None:
    """Print one analysis whole; where the terminal is too narrow for all columns, the main ones."""
    out = console()
    if stored.rows:
        every = tuple(column.name for column in analysis.columns)
        fits = _width(analysis, stored.rows, every) <= out.width
        names = every if fits else _fitting(analysis, stored.rows, _main_columns(analysis, stored.rows), out)
        out.print(_table(analysis, stored.rows, names, clip_to=None if fits else out.width))
        if len(names) < len(every):
            missing = ", ".join(heading(name) for name in every if name not in names)
            out.print(f"(not shown: {missing}; widen the terminal, or use --format csv)")
    for line in (samples, *reasons(stored)):
        if line:
            out.print(line)


def _main_columns(analysis: Analysis, rows: list[Row]) -> tuple[str, ...]:
    """Return the main columns of an analysis; those without any value take no room from the others."""
    return tuple(name for name in analysis.shown_columns if any(row[name] is not None for row in rows))


def reasons(stored: AnalysisTable) -> list[str]:
    """Return why rows or values are missing: the first rank's sentence, and how many ranks have one."""
    if not stored.reasons:
        return []
    rank, sentence = next(iter(stored.reasons.items()))
    others = len(stored.reasons) - 1
    more = f" (and {others} more rank{'s'[: others > 1]} likewise)" if others else ""
    return [f"rank {rank}: {sentence}{more}" if rank >= 0 else sentence]


def _show_part(out: Console, analysis: Analysis, stored: AnalysisTable, samples: str) -> None:
    rows, title = stored.rows, analysis.title
    if analysis.first_rank_only:
        first = rows[0]["rank"]
        rows = [row for row in rows if row["rank"] == first]
        title += f", rank {first}"
    out.print(Text(f"\n{title}", style="bold"))
    main = analysis.shown_columns
    names = _fitting(analysis, rows[:ROWS], main, out)
    out.print(_table(analysis, rows[:ROWS], names, clip_to=out.width))
    if len(names) < len(main):
        out.print(f"(not shown: {', '.join(map(heading, main[len(names) :]))}; widen the terminal)")
    hidden = len(stored.rows) - len(rows[:ROWS])
    if hidden > 0:
        out.print(f"… {hidden} more rows: hpcprof report --analysis {analysis.name}")
    for line in (samples, *reasons(stored)):
        if line:
            out.print(line)


def _fitting(analysis: Analysis, rows: list[Row], names: tuple[str, ...], out: Console) -> tuple[str, ...]:
    """Return as many of the columns, from the first on, as the terminal has room for: a figure is not cut."""
    count = len(names)
    while count > 1 and _width(analysis, rows, names[:count], _SHORTEST_NAME) > out.width:
        count -= 1
    return names[:count]


def _width(
    analysis: Analysis, rows: list[Row], names: tuple[str, ...], name_width: int = _READABLE_NAME
) -> int:
    """Return the characters that a table needs, names being cut to ``name_width``."""
    text = {column.name for column in analysis.columns if column.kind is Kind.TEXT}
    widths = [max(len(heading(n)), *(len(_cell(row, n)) for row in rows)) for n in names]
    shortest = [min(w, name_width) if n in text else w for n, w in zip(names, widths, strict=True)]
    return sum(shortest) + 2 * (len(names) - 1)


def _cell(row: Row, name: str) -> str:
    """Return a value for a person; the two sides of a comparison have the unit of their metric."""
    if name == "metric":
        return str(row[name]).removesuffix("_ns").removesuffix("_pct")
    return format_value(row["metric"] if name in ("a", "b") else name, row[name])


def _table(analysis: Analysis, rows: list[Row], names: tuple[str, ...], clip_to: int | None = None) -> Table:
    """Lay out rows; with ``clip_to``, long names are cut so that the numbers fit that width."""
    kinds = {column.name: column.kind for column in analysis.columns}
    cells = {name: [_cell(row, name) for row in rows] for name in names}
    widths = {name: max(map(len, [heading(name), *cells[name]])) for name in names}
    widest = max(names, key=lambda name: (kinds[name] is Kind.TEXT, widths[name]))
    if clip_to is not None and kinds[widest] is Kind.TEXT:
        others = sum(widths.values()) - widths[widest] + 2 * (len(names) - 1)
        room = max(_SHORTEST_NAME, clip_to - others)
        shown = labels(dict.fromkeys(cells[widest]), room)
        cells[widest] = [shown[text] for text in cells[widest]]
    table = Table(box=None, pad_edge=False)
    for name in names:
        text = kinds[name] is Kind.TEXT
        table.add_column(
            heading(name),
            justify="left" if text else "right",
            no_wrap=not text,
            overflow="fold" if text else "ellipsis",
        )
    for row in zip(*cells.values(), strict=True):
        table.add_row(*map(Text, row))
    return table
