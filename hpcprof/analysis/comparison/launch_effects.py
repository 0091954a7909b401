"""Effects of count, mix of shapes and durations on the time of launches in a step."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

CHANGED, NEW, GONE, RENAMED = "changed", "new", "gone", "renamed"


class Launches(NamedTuple):
    """Count of launches in a step and their total time in ns; means over steps."""

    number: float
    time: float

    @property
    def mean(self) -> float:
        """The duration of one of them."""
        return self.time / self.number if self.number else 0.0


Shapes = Mapping[Hashable, Launches]
"""The launches of one kind by their shape: grid and block of a kernel, size of a collective."""

_NOTHING = Launches(0.0, 0.0)


@dataclass(frozen=True)
class Effects:
    """The difference between two sides in whole nanoseconds, and what it consists of.

    ``by_count``, ``by_shape`` and ``by_duration`` add up to ``b - a``.
    """

    a: int
    b: int
    by_count: int
    by_shape: int
    by_duration: int


def total(shapes: Shapes) -> Launches:
    """Return the launches of all shapes together."""
    return Launches(sum(one.number for one in shapes.values()), sum(one.time for one in shapes.values()))


def effects(a: Shapes, b: Shapes) -> Effects:
    """Divide the difference between two sides.

    The count comes first, then the shape, then the duration; that order is part of the definition:

    - count: the change of the count times the mean duration before. All of a kind that is new or gone.
    - shape: what the new mix of shapes changes at the durations before. A shape that was not there before
      has no such duration and counts with its own, so that it is all of this effect.
    - duration: the rest, which is what launches of the same shape now take longer.
    """
    before, after = total(a), total(b)
    of_a, of_b = round(before.time), round(after.time)
    difference = of_b - of_a
    if not before.number or not after.number:
        return Effects(of_a, of_b, difference, 0, 0)
    by_count = round((after.number - before.number) * before.mean)
    if not any(a.get(shape, _NOTHING).number for shape in b):
        return Effects(of_a, of_b, by_count, difference - by_count, 0)
    at_old = sum(one.number * (a.get(shape) or one).mean for shape, one in b.items())
    by_shape = round(at_old - after.number * before.mean)
    return Effects(of_a, of_b, by_count, by_shape, difference - by_count - by_shape)
