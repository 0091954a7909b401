"""Operations on sets of half-open intervals ``[start, end)``: the only place where they are computed.

Every function takes int64 arrays in any order, overlapping or not; an interval whose end is not
after its start is empty. Results are merged: sorted, disjoint and not touching. All are O(n log n).
"""

from __future__ import annotations

import numpy as np

from hpcprof.timeline import Ints

Intervals = tuple[Ints, Ints]

_IN_A, _IN_B = 1, 2


def union(start: Ints, end: Ints) -> Intervals:
    """Return the merged intervals: starts and ends, each of shape (m,) with m <= n."""
    full = end > start
    if not full.all():
        start, end = start[full], end[full]
    if not len(start):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # What one stream does is in order already.
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], reach[last]


def length(start: Ints, end: Ints) -> int:
    """Return how much time the intervals cover, overlaps counted once."""
    starts, ends = union(start, end)
    return int(np.sum(ends - starts))


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return what both sets cover."""
    return _where(a, b, _IN_A | _IN_B)


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return what ``a`` covers and ``b`` does not."""
    return _where(a, b, _IN_A)


def coverage(start: Ints, end: Ints, by: Intervals) -> Ints:
    """Return how much of each interval the set ``by`` covers, shape (n,); 0 for an empty interval."""
    starts, ends = union(*by)
    covered = np.concatenate(([0], np.cumsum(ends - starts)))
    # Before the first nothing reaches beyond a moment.
    reach = np.concatenate(([start.min(initial=0)], ends))

    def until(moment: Ints) -> Ints:
        begun = np.searchsorted(starts, moment, side="right")
        beyond = reach[begun]
        beyond -= moment
        result: Ints = covered[begun]
        result -= np.maximum(beyond, 0, out=beyond)
        return result

    result = until(np.maximum(start, end))
    result -= until(start)
    return result


def _where(a: Intervals, b: Intervals, wanted: int) -> Intervals:
    """Return the time in which exactly the sets of the bit mask ``wanted`` are open."""
    (a_start, a_end), (b_start, b_end) = union(*a), union(*b)
    points = np.concatenate((a_start, a_end, b_start, b_end))
    steps = np.repeat([_IN_A, -_IN_A, _IN_B, -_IN_B], [len(a_start), len(a_end), len(b_start), len(b_end)])
    order = np.argsort(points, kind="stable")
    points = points[order]
    # Between equal points the mask is meaningless, but the interval there is empty: union drops it.
    inside = np.cumsum(steps[order])[:-1] == wanted
    return union(points[:-1][inside], points[1:][inside])


def exclusive(*sets: Intervals) -> list[int]:
    """Return how long exactly the sets of each bit mask cover the time: bit i is set i, 0 is not counted.

    Each of the at most seven sets has to be merged.
    """
    points = np.concatenate([side for interval in sets for side in interval])
    bits = np.array([bit for i in range(len(sets)) for bit in (1 << i, -1 << i)], np.int8)
    steps = np.repeat(bits, [len(side) for interval in sets for side in interval])
    order = np.argsort(points, kind="stable")
    # As in `_where`, the mask between equal points does not matter.
    open_sets = np.cumsum(steps[order], dtype=np.int8)[:-1]
    del order  # Of millions of points each copy counts.
    points.sort(kind="stable")
    time = np.zeros(1 << len(sets), np.int64)
    np.add.at(time, open_sets, np.diff(points))
    return [0, *time[1:].tolist()]


def grouped_length(group: Ints, start: Ints, end: Ints, groups: int) -> Ints:
    """Return the length of each group's union, shape (groups,).

    The groups are laid one after the other on the axis, so that one union serves them all.
    """
    full = end > start
    group, start, end = group[full], start[full], end[full]
    low = np.full(groups, np.iinfo(np.int64).max)
    high = np.full(groups, np.iinfo(np.int64).min)
    np.minimum.at(low, group, start)
    np.maximum.at(high, group, end)
    present = high > low
    # One apart, so that intervals of neighbouring groups do not touch.
    extent = np.where(present, np.where(present, high, 0) - np.where(present, low, 0) + 1, 0)
    origin = np.cumsum(extent) - extent
    shift = origin[group] - low[group]
    starts, ends = union(start + shift, end + shift)
    owner = np.searchsorted(np.cumsum(extent), starts, side="right")
    total = np.zeros(groups, np.int64)
    np.add.at(total, owner, ends - starts)
    return total
