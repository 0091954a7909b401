"""The difference of the step between two sides of runs: a sentence, and a waterfall for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpcprof.analysis.comparison.step_difference import STEP
from hpcprof.common.units import format_ns, time_unit
from hpcprof.results.analysis_table import Row

_LEAST_SHARE = 0.01
"""The sentence leaves out a part that is a smaller share of all changes."""

_LONGEST_BAR, _SHORTEST_BAR = 40, 8
_UP, _DOWN = "█", "░"


@dataclass(frozen=True)
class Waterfall:
    """The step of both sides, and the parts whose differences lead from one to the other, in whole ns."""

    a_ns: int
    b_ns: int
    parts: dict[str, int]

    @property
    def difference_ns(self) -> int:
        """The difference of the step, which is the sum of ``parts``."""
        return self.b_ns - self.a_ns

    def as_json(self) -> dict[str, Any]:
        """Return the waterfall as objects for JSON."""
        return {
            "a_ns": self.a_ns,
            "b_ns": self.b_ns,
            "difference_ns": self.difference_ns,
            "parts": [{"part": name, "difference_ns": change} for name, change in self.parts.items()],
        }


def waterfall(rows: Sequence[Row]) -> Waterfall | None:
    """Return the waterfall of the rows of ``step_difference``, parts as they are; None without rows."""
    step = next((row for row in rows if row["part"] == STEP), None)
    if step is None:
        return None
    parts = {row["part"]: row["difference_ns"] for row in rows if row is not step}
    return Waterfall(step["a_ns"], step["b_ns"], parts)


def in_a_sentence(found: Waterfall) -> str:
    """Return the difference in one sentence, the largest parts first: ``+477 µs a step: compute +90, …``."""
    factor, unit = time_unit(max(map(abs, (found.difference_ns, *found.parts.values()))))
    changes = sorted(found.parts.items(), key=lambda part: -abs(part[1]))
    least = _LEAST_SHARE * sum(abs(change) for _, change in changes)
    told = [
        f"{name} {_signed(change, factor)}" for name, change in changes if change and abs(change) >= least
    ]
    both = f"{format_ns(found.a_ns)} in A, {format_ns(found.b_ns)} in B"
    if not found.difference_ns and not told:
        return f"No difference of the step: {both}."
    return f"{_signed(found.difference_ns, factor)} {unit} a step: {', '.join(told)} ({both})."


def _signed(nanoseconds: int, factor: int) -> str:
    value = nanoseconds / factor
    digits = 0 if abs(value) >= 100 or factor == 1 else 1 if abs(value) >= 10 else 2
    text = f"{abs(value):,.{digits}f}"
    sign = "−" if value < 0 else "+"
    return f"{sign}{text}" if any(character in "123456789" for character in text) else "±0"


def waterfall_lines(found: Waterfall, width: int) -> Iterator[str]:
    """Yield the waterfall for a terminal of ``width`` characters: a line for each side and for each part.

    A part that takes more is drawn in full blocks, one that takes less in light ones; each begins where the
    one before it ends.
    """
    factor, unit = time_unit(max(map(abs, (found.difference_ns, *found.parts.values()))))
    named = {"A": format_ns(found.a_ns)}
    named |= {name: f"{_signed(change, factor)} {unit}" for name, change in found.parts.items()}
    named["B"] = format_ns(found.b_ns)
    label, value = (max(map(len, texts)) for texts in (named, named.values()))
    room = min(_LONGEST_BAR, width - label - value - 6)
    bars = _bars(list(found.parts.values()), room) if room >= _SHORTEST_BAR else [""] * len(found.parts)
    for (name, text), bar in zip(named.items(), ["", *bars, ""], strict=True):
        yield f"  {name:{label}}  {text:>{value}}  {bar}".rstrip()


def _bars(changes: Sequence[int], room: int) -> list[str]:
    """Return a bar for each change, all on one scale of ``room`` characters."""
    levels = [0]
    for change in changes:
        levels.append(levels[-1] + change)
    low, span = min(levels), max(levels) - min(levels) or 1
    places = [round((level - low) * room / span) for level in levels]
    bars = []
    for before, after, change in zip(places, places[1:], changes, strict=False):
        length = max(abs(after - before), 1 if change else 0)
        bars.append(" " * min(before, after, room - length) + (_UP if change > 0 else _DOWN) * length)
    return bars
