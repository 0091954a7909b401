"""Sorting columns that are nearly sorted, as those of a profiler are: checking the order is faster.

Also the extrema of slices of a column.
"""

from collections.abc import Callable

import numpy as np

from hpcprof.profiles.timeline import Ints


def ascends(values: Ints) -> bool:
    """Return whether no value is below its predecessor."""
    return bool((values[1:] >= values[:-1]).all())


def ordered(values: Ints) -> Ints:
    """Return the values in ascending order, uncopied if they have it already."""
    # A stable sort merges runs that are in order.
    return values if ascends(values) else np.sort(values, kind="stable")


def as_of(values: Ints, moments: Ints, *columns: Ints) -> list[Ints]:
    """Return the entry of each column that is valid at each moment (an as-of join).

    ``values`` are ascending times at which the next entry begins to be valid; the first entry of a column is
    valid before them all.
    """
    if len(values) < len(moments) and ascends(moments):
        # Counting the moments between two values is faster than locating each moment.
        times = np.diff(np.searchsorted(moments, values), prepend=0, append=len(moments))
        return [np.repeat(column, times) for column in columns]
    at = np.searchsorted(values, moments, side="right")
    return [column[at] for column in columns]


def by_time(start: Ints, end: Ints) -> Ints:
    """Return the rows by start, then end, as ``np.lexsort((end, start))``; the starts usually suffice."""
    order = np.argsort(start, kind="stable")
    begun = start[order]
    is_tied = np.flatnonzero(begun[1:] == begun[:-1])
    return np.lexsort((end, start)) if np.any(end[order[is_tied]] > end[order[is_tied + 1]]) else order


def extremum_of_slices(
    choose: Callable[[Ints, Ints], Ints], values: Ints, low: Ints, high: Ints, empty: int
) -> Ints:
    """Return the extremum of ``values[low:high]`` for each pair of bounds, or ``empty`` for an empty slice.

    ``choose`` returns the better one of each two values.

    Neighbouring values are merged in pairs repeatedly; at each level a slice takes the values at its ends
    that belong to a pair that reaches beyond it. The time is O(n + m log n) for any length of the slices.
    """
    result = np.full(len(low), empty)
    rows = np.flatnonzero(low < high)
    low, high = low[rows], high[rows]
    while len(rows):
        for is_odd, place in (((low & 1) == 1, low), ((high & 1) == 1, high - 1)):
            result[rows[is_odd]] = choose(result[rows[is_odd]], values[place[is_odd]])
        low, high = (low + 1) // 2, high // 2
        inside = low < high
        rows, low, high = rows[inside], low[inside], high[inside]
        values = choose(values[:-1:2], values[1::2])
    return result
