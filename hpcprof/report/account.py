"""What the wall time of a step goes to, as parts that add up to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcprof.common.units import counted, format_ns, visible
from hpcprof.report.contents import Contents
from hpcprof.results.analysis_table import AnalysisTable

_COLUMNS = (
    ("compute", "compute", "compute_ns"),
    ("exposed-comm", "exposed communication", "exposed_comm_ns"),
    ("wait", "waiting for peers", "wait_for_peer_ns"),
    ("copy", "copies", "exposed_mem_ns"),
    ("idle", "idle", "idle_ns"),
)
"""The colour of each part in page.css, its name, and its column in ``step_account``."""

IDLE_CAUSES = {
    "host": "idle: host is busy",
    "sync": "idle: synchronization",
    "allocation": "idle: allocation",
    "copy": "idle: blocking copy",
    "launch": "idle: launch",
    "dependency": "idle: other stream",
    "unknown": "idle: unknown cause",
}
"""What idle time is called, by its cause."""

_UNEVEN = ("uneven", "uneven steps")
_MOST_RANGES = 2
_NOTED = 0.01
"""Uneven steps are explained if they take more than this share of the step."""

_SHORTEST, _FIGURES = 4, 19
_LEAST_PCT = 0.1
_BAR = 20
_BAR_FROM = 64
"""From this width in characters on, a terminal shows bars."""


@dataclass(frozen=True)
class AccountPart:
    """A part of the account.

    Attributes
    ----------
    colour : str
        Its colour in page.css, without the hyphens in front.
    name : str
        What the time goes to.
    ns : int
    where : str
        For idle time, the ranges in which most of it is; else empty.
    """

    colour: str
    name: str
    ns: int
    where: str = ""


@dataclass(frozen=True)
class Account:
    """The wall time of a step and its parts, the sum of which it is exactly.

    Attributes
    ----------
    wall_ns : int
        The median over the steps of the time on the slowest rank, as in the explanation.
    parts : tuple of AccountPart
        Those above 0.
    steps, ranks : int
        The numbers of steps and of ranks behind it.
    notes : tuple of str
        What a reader has to know of it, in sentences.
    """

    wall_ns: int
    parts: tuple[AccountPart, ...]
    steps: int
    ranks: int
    notes: tuple[str, ...]


def account_of_step(contents: Contents) -> Account | None:
    """Return the account of the median step; None if the run has no steps.

    The parts are means over the ranks. If the number of steps is even, the median step is the mean of two.
    """
    if "step_account" not in contents.analyses:
        return None
    table = contents.analyses["step_account"].columns
    middle, steps, ranks = _middle(table)
    wall = round(sum(_longest(table, rows) for rows in middle) / len(middle)) if middle else 0
    if not wall:
        return None
    chosen = [row for rows in middle for row in rows]
    means = {
        column: sum(table[column][row] or 0 for row in chosen) / len(chosen) for _, _, column in _COLUMNS
    }
    causes = contents.analyses.get("idle_causes", AnalysisTable({}))
    idle = _idle(causes.columns, means["idle_ns"])
    named = [(colour, name, means[column], "") for colour, name, column in _COLUMNS if column != "idle_ns"]
    named += [("idle", name, ns, where) for name, ns, where in idle]
    left = wall - sum(ns for _, _, ns, _ in named)
    whole = _whole([*named, (*_UNEVEN, left, "")], wall)
    notes = _notes(table, chosen, len(middle), ranks, bool(idle[1:]))
    if ranks > 1 and left > _NOTED * wall:
        notes = (*notes, "Uneven steps: how much longer the slowest rank takes than the ranks on average.")
    return Account(wall, tuple(part for part in whole if part.ns > 0), steps, ranks, notes)


def _middle(table: Mapping[str, Sequence[int]]) -> tuple[list[list[int]], int, int]:
    """Return the rows of the step of median length, or of the two, and the numbers of steps and ranks."""
    by_step: dict[int, list[int]] = defaultdict(list)
    for row, step in enumerate(table.get("step", ())):
        by_step[step].append(row)
    ranks = len(set(table.get("rank", ())))
    whole = [rows for rows in by_step.values() if len(rows) == ranks]
    whole.sort(key=lambda rows: _longest(table, rows))
    count = len(whole)
    return whole[(count - 1) // 2 : count // 2 + 1] if count else [], count, ranks


def _longest(table: Mapping[str, Sequence[int]], rows: Sequence[int]) -> int:
    return max(table["wall_ns"][row] for row in rows)


def _idle(causes: Mapping[str, Sequence[Any]], idle_ns: float) -> list[tuple[str, float, str]]:
    """Divide idle time by cause as `idle_causes` does over all steps; as (name, ns, ranges)."""
    sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    columns = (causes.get(name, ()) for name in ("cause", "range", "idle_ns_per_step"))
    for cause, name, ns in zip(*columns, strict=True):
        sums[cause][name or ""] += ns
    total = sum(sum(ranges.values()) for ranges in sums.values())
    if not total:
        return [("idle", idle_ns, "")]
    found = []
    for cause, ranges in sums.items():
        own = sum(ranges.values())
        most = [name for name in sorted(ranges, key=lambda name: -ranges[name]) if name][:_MOST_RANGES]
        found.append((IDLE_CAUSES.get(cause, f"idle, {cause}"), idle_ns * own / total, " and ".join(most)))
    return sorted(found, key=lambda part: -part[1])


def _whole(parts: Sequence[tuple[str, str, float, str]], wall: int) -> list[AccountPart]:
    """Round the parts so that their sum is the wall time; the largest takes what rounding leaves."""
    rounded = [round(ns) for _, _, ns, _ in parts]
    largest = max(range(len(parts)), key=lambda number: rounded[number])
    rounded[largest] += wall - sum(rounded)
    return [
        AccountPart(colour, name, ns, visible(where))
        for (colour, name, _, where), ns in zip(parts, rounded, strict=True)
    ]


def _notes(
    table: Mapping[str, Sequence[int | None]], chosen: Sequence[int], middle: int, ranks: int, split: bool
) -> tuple[str, ...]:
    of = "the step of median length" if middle == 1 else "the two steps of median length"
    notes = [f"The parts are those of {of}{', averaged over the ranks' if ranks > 1 else ''}."]
    if split:
        notes.append("Idle time is divided by its causes in all steps.")
    if ranks > 1 and any(table["wait_for_peer_ns"][row] is None for row in chosen):
        notes.append("The clocks of some ranks cannot be aligned: their waiting counts as communication.")
    return tuple(notes)


def account_title(account: Account) -> str:
    """Return the wall time of the step and what it is the median of."""
    where = f" on the slowest of {counted(account.ranks, 'rank')}" if account.ranks > 1 else ""
    return f"{format_ns(account.wall_ns)} (median of {counted(account.steps, 'step')}{where})"


def share(part: AccountPart, account: Account) -> str:
    """Return a part's share of the step in percent."""
    percent = 100 * part.ns / account.wall_ns
    return f"{percent:.1f} %" if percent >= _LEAST_PCT else f"< {_LEAST_PCT} %"


def account_lines(account: Account, width: int) -> list[str]:
    """Return the account for a terminal: a line for each part with its time, its share, and a bar if wide."""
    names = min(max(len(part.name) for part in account.parts), max(_SHORTEST, width - _FIGURES))
    lines = []
    for part in account.parts:
        name = part.name if len(part.name) <= names else f"{part.name[: names - 1]}…"
        line = f"{name:{names}}  {format_ns(part.ns):>8}  {share(part, account):>7}"
        if width >= _BAR_FROM:
            filled = "█" * round(_BAR * part.ns / account.wall_ns)
            line = f"{line}  {filled:{_BAR}}"
            where = f"  in {part.where}"
            line += where if part.where and len(line) + len(where) <= width else ""
        lines.append(line.rstrip())
    return lines
