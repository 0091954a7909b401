"""Statistics of groups of durations, as every summary table shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.profiles.columns.unique import distinct, extent, numbered
from hpcprof.profiles.timeline import Ints, Timeline

Floats = NDArray[np.float64]

_TENTH = Decimal("0.1")


@dataclass(frozen=True)
class Summary:
    """Statistics of each group that has values, arrays of shape (groups,); the integers are exact.

    ``group`` is the number of each, ascending.
    ``median`` of an even count is the mean of the middle two; ``deviation`` is the sample standard
    deviation (n - 1), 0 for one value.
    """

    group: Ints
    total: Ints
    count: Ints
    average: Floats
    median: Floats
    minimum: Ints
    maximum: Ints
    deviation: Floats

    def columns(self, prefix: str = "") -> dict[str, Any]:
        """Return the columns ``avg_ns`` to ``stddev_ns`` of a table, rounded as it shows them."""
        return {
            f"{prefix}avg_ns": rounded(self.average),
            f"{prefix}med_ns": rounded(self.median),
            f"{prefix}min_ns": self.minimum,
            f"{prefix}max_ns": self.maximum,
            f"{prefix}stddev_ns": rounded(self.deviation),
        }

    def shares(self) -> NDArray[Any]:
        """Return each total in percent of the sum of totals; None where that sum is zero."""
        whole = float(self.total.sum())
        if whole == 0.0:
            return np.full(len(self.total), None, object)
        return rounded(self.total * 100.0 / whole)


def summarize(group: Ints, value: Ints) -> Summary:
    """Summarize ``value`` by ``group``.

    Parameters
    ----------
    group : ndarray of int64, shape (n,)
        The number of each value's group. Numbers that do not occur have no statistics.
    value : ndarray of int64, shape (n,)
    """
    group, value, end = sorted_in_groups(group, value)
    count = np.diff(end, prepend=0)
    first = end - count
    total = np.add.reduceat(value, first) if len(group) else value
    average = total / count
    square = np.repeat(average, count)
    np.subtract(value, square, out=square)
    square *= square
    spread = np.add.reduceat(square, first) if len(group) else square
    middle = value[first + (count - 1) // 2] + value[first + count // 2]
    return Summary(
        group=group,
        total=total,
        count=count,
        average=average,
        median=middle / 2,
        minimum=value[first],
        maximum=value[end - 1],
        deviation=np.sqrt(spread / np.maximum(count - 1, 1)),
    )


def sorted_in_groups(group: Ints, value: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the groups that occur, ascending, the values by group, then value, and where each group ends.

    One packed key sorts several times faster than two columns.
    """
    least, groups = extent(group)
    low, span = extent(value)
    bits = span.bit_length()
    largest = (max(abs(least), abs(least + groups)) << bits) + abs(low)
    if not 0 < groups <= len(group) or largest > np.iinfo(np.int64).max:
        found, group = numbered(group)
        order = np.lexsort((value, group))
        return found, value[order], np.cumsum(np.bincount(group))
    # In place: of millions of values each copy counts.
    key = group << bits
    key += value
    if offset := (least << bits) + low:
        key -= offset
    key.sort()
    edges = np.searchsorted(key, np.arange(groups + 1) << bits)
    key &= (1 << bits) - 1
    if low:
        key += low
    used = np.flatnonzero(edges[1:] > edges[:-1])
    return used + least, key, edges[used + 1]


def rounded(values: NDArray[np.floating[Any]]) -> Floats:
    """Round to one decimal, half up on the shortest decimal that reads back as the same double.

    ``nsys stats`` rounds in SQLite, which works on the decimal digits: 1.05 becomes 1.1 although the
    double below it is smaller than 1.05, and 0.25 becomes 0.3. Python's ``round`` and numpy's give
    1.1 and 0.2.
    """
    return np.array([float(Decimal(repr(v)).quantize(_TENTH, ROUND_HALF_UP)) for v in values.tolist()], float)


def nearest(values: Floats, decimals: int) -> Floats:
    """Round to so many decimals as Python's ``round`` does: half to even on the double's exact value."""
    scaled = values * 10.0**decimals
    whole = np.rint(scaled)
    # The product is off by half a unit of its last place at most: that matters only beside a half.
    sure = (np.abs(scaled) < 2.0**40) & (np.abs(np.abs(scaled - whole) - 0.5) > 2.0**-10)
    found: Floats = whole / 10.0**decimals
    found[~sure] = [round(value, decimals) for value in values[~sure].tolist()]
    return found


def by_text(
    timeline: Timeline, ids: Ints, shown: Callable[[str | None], str | None] = lambda text: text
) -> tuple[NDArray[np.object_], Ints]:
    """Return the texts that occur, in ascending order and None first, and each row's number.

    Two ids may stand for the same text, and for texts that are ``shown`` as the same.
    """
    used = distinct(ids)
    names = [shown(name) for name in timeline.names(used)]
    texts = sorted(set(names), key=_none_first)
    place = {text: i for i, text in enumerate(texts)}
    # `NO_NAME`, which is -1, is the last.
    number = np.zeros(len(timeline.strings) + 1, np.int64)
    number[used] = [place[name] for name in names]
    return objects(texts), number[ids]


def _none_first(text: str | None) -> tuple[bool, str]:
    return text is not None, text or ""


def texts(values: Iterable[str | None]) -> pd.Series[Any]:
    """Return a column of text in which a missing one is None; pandas alone would make it NaN."""
    column: pd.Series[Any] = pd.Series(objects(values), dtype="object")
    return column


def objects(values: Iterable[object]) -> NDArray[np.object_]:
    """Return an array that keeps each value as it is, None included."""
    items = list(values)
    column = np.empty(len(items), object)
    column[:] = items
    return column
