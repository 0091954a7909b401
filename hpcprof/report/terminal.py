"""The report as tables in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpcprof.analysis.catalogue import ANALYSES, Analysis, Kind
from hpcprof.report.contents import ORDER, Contents
from hpcprof.store import Stored
from hpcprof.units import format_value, heading

ROWS = 12
"""How many rows of an analysis the full report shows; by name an analysis is shown whole."""

# Columns of the full report where the whole row is wider than most terminals.
_NARROW = {
    "kernels": ("rank", "name", "class", "instances", "total_ns", "time_pct", "med_ns"),
    "api": ("rank", "name", "num_calls", "total_ns", "time_pct", "med_ns"),
    "ranges": ("rank", "range", "instances", "total_ns", "time_pct", "med_ns"),
    "range_gpu": ("rank", "range", "instances", "proj_total_ns", "proj_med_ns", "gpu_ops"),
    "breakdown": ("rank", "span_ns", "compute_pct", "exposed_comm_pct", "exposed_mem_pct", "idle_pct"),
}


def console() -> Console:
    """Return standard output; neither markup nor emoji is read out of a user's names."""
    return Console(markup=False, emoji=False, highlight=False)


def show_report(contents: Contents) -> None:
    """Print the full report."""
    out = console()
    facts = Table(box=None, show_header=False, pad_edge=False)
    for name, value in contents.facts():
        facts.add_row(Text(name, style="bold"), value)
    out.print(facts)
    for failure in contents.failures[:3]:
        out.print(Text(f"\n{failure}", style="bold red"))
        for line in failure.last_lines:
            out.print(f"  {line}")
    for warning in contents.warnings:
        out.print(Text(f"\n{warning}", style="yellow"))
    for name in ORDER:
        if name in contents.analyses:
            _show_part(out, ANALYSES[name], contents.analyses[name])


def show_analysis(analysis: Analysis, stored: Stored) -> None:
    """Print one analysis whole."""
    out = console()
    if stored.rows:
        out.print(_table(analysis, stored, [c.name for c in analysis.columns], len(stored.rows)))
    for reason in reasons(stored):
        out.print(reason)


def reasons(stored: Stored) -> list[str]:
    """Return why rows or values are missing: one sentence for all ranks that share it."""
    ranks: dict[str, list[int]] = {}
    for rank, reason in stored.reasons.items():
        ranks.setdefault(reason, []).append(rank)
    return [_for_ranks(reason, of) for reason, of in ranks.items()]


def _for_ranks(reason: str, ranks: list[int]) -> str:
    named = [str(rank) for rank in ranks if rank >= 0]
    return f"rank {', '.join(named)}: {reason}" if named else reason


def _show_part(out: Console, analysis: Analysis, stored: Stored) -> None:
    out.print(Text(f"\n{analysis.title}", style="bold"))
    names = _NARROW.get(analysis.name) or tuple(c.name for c in analysis.columns)
    if stored.rows:
        out.print(_table(analysis, stored, names, ROWS))
        hidden = len(stored.rows) - ROWS
        if hidden > 0:
            out.print(f"… {hidden} more rows: hpcprof report --analysis {analysis.name}")
    for reason in reasons(stored):
        out.print(reason)


def _table(analysis: Analysis, stored: Stored, names: tuple[str, ...] | list[str], rows: int) -> Table:
    kinds = {column.name: column.kind for column in analysis.columns}
    table = Table(box=None, pad_edge=False)
    for name in names:
        text = kinds[name] is Kind.TEXT
        table.add_column(
            heading(name), justify="left" if text else "right", no_wrap=not text, overflow="ellipsis"
        )
    for row in stored.rows[:rows]:
        table.add_row(*(Text(format_value(name, row[name])) for name in names))
    return table
