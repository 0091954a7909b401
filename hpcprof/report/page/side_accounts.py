"""The account of a step on both sides of a comparison: two bars on one scale, and their figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from hpcprof.analysis.comparison.step_difference import COMMUNICATION, STEP, WAITING
from hpcprof.common.units import format_ns
from hpcprof.report.account import IDLE_CAUSES
from hpcprof.report.page.first_screen import Slice, patterned
from hpcprof.results.analysis_table import Row

_COLOURS = {
    "compute": "compute",
    COMMUNICATION: "exposed-comm",
    WAITING: "wait",
    "exposed copies": "copy",
    "idle": "idle",
}
"""The colours of the parts of ``step_difference``; any other part is uneven."""


@dataclass(frozen=True)
class SideBar:
    """The bar of a side; ``width`` is its length in percent of the longer one."""

    name: str
    time: str
    slices: list[Slice]
    label: str
    width: float


@dataclass(frozen=True)
class SidePart:
    """A part with its time on both sides, as text."""

    colour: str
    name: str
    a: str
    b: str
    difference: str


class _Part(NamedTuple):
    name: str
    colour: str
    sides: tuple[int, int]


def side_accounts(steps: Sequence[Row], idle: Sequence[Row]) -> tuple[list[SideBar], list[SidePart]]:
    """Return the bars of both sides, and their parts, whose times add up to those of the last one, the step.

    Parameters
    ----------
    steps : sequence of Row
        Those of ``step_difference``. Without any, there are no bars.
    idle : sequence of Row
        Those of ``idle_difference``, which divide the idle time of each side by cause.
    """
    whole = next((row for row in steps if row["part"] == STEP), None)
    if whole is None:
        return [], []
    found: list[_Part] = []
    for row in steps:
        if row["part"] == "idle":
            found += _by_cause(_sides(row), idle)
        elif row is not whole:
            found.append(_Part(row["part"], _COLOURS.get(row["part"], "uneven"), _sides(row)))
    found = [part for part in found if any(part.sides)]
    classes = [*patterned(part.colour for part in found)]
    # A part below zero has no length; so the others may be longer than the step.
    lengths = [sum(max(part.sides[side], 0) for part in found) for side in (0, 1)]
    bars = [
        _bar(
            name, _sides(whole)[side], [(part, part.sides[side]) for part in found], classes, max(*lengths, 1)
        )
        for side, name in enumerate(("A", "B"))
    ]
    found.append(_Part(STEP, "", _sides(whole)))
    return bars, [_row(part, colour) for part, colour in zip(found, [*classes, ""], strict=True)]


def _sides(row: Row) -> tuple[int, int]:
    return row["a_ns"], row["b_ns"]


def _by_cause(sides: tuple[int, int], rows: Iterable[Row]) -> list[_Part]:
    """Divide the idle time of both sides as all their idle time is divided by cause, to the nanosecond."""
    sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in rows:
        a, b = sums[row["cause"]]
        sums[row["cause"]] = a + row["a_ns"], b + row["b_ns"]
    causes = sorted(sums, key=lambda cause: -max(sums[cause]))
    own = [_shares(sides[side], [sums[cause][side] for cause in causes]) for side in (0, 1)]
    if not causes or None in own:
        return [_Part("idle", "idle", sides)]
    return [
        _Part(IDLE_CAUSES.get(cause, f"idle, {cause}"), "idle", (a, b))
        for cause, a, b in zip(causes, *(side or () for side in own), strict=True)
    ]


def _shares(total: int, weights: Sequence[int]) -> list[int] | None:
    """Divide a whole number by weights, so that the parts add up to it; None if time has no weight."""
    every = sum(weights)
    if not every:
        return None if total else [0] * len(weights)
    ends = [round(total * sum(weights[:place]) / every) for place in range(len(weights) + 1)]
    return [high - low for low, high in pairwise(ends)]


def _bar(
    name: str, step_ns: int, parts: Sequence[tuple[_Part, int]], classes: Sequence[str], longest: int
) -> SideBar:
    drawn = [(part, ns, colour) for (part, ns), colour in zip(parts, classes, strict=True) if ns > 0]
    length = sum(ns for _, ns, _ in drawn)
    slices = [
        Slice(colour, part.name, format_ns(ns), "", round(100 * ns / length, 3), "")
        for part, ns, colour in drawn
    ]
    label = ", ".join(f"{one.name} {one.time}" for one in slices)
    return SideBar(name, format_ns(step_ns), slices, label, round(100 * length / longest, 3))


def _row(part: _Part, colour: str) -> SidePart:
    a, b = part.sides
    sign = "−" if b < a else "+" if b > a else ""
    return SidePart(colour, part.name, _written(a), _written(b), f"{sign}{format_ns(abs(b - a))}")


def _written(ns: int) -> str:
    return f"−{format_ns(-ns)}" if ns < 0 else format_ns(ns)
