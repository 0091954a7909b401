"""Operations on sets of half-open intervals ``[start, end)``.

Every function takes int64 arrays in any order, overlapping or not; an interval whose end is not
after its start is empty. Results are merged: sorted, disjoint and not touching. All are O(n log n).
"""

import numpy as np

from hpcprof.profiles.columns.ordering import as_of, by_time, ordered
from hpcprof.profiles.columns.unique import rows_by_key
from hpcprof.profiles.timeline import Ints, Style

Intervals = tuple[Ints, Ints]

_IN_A, _IN_B = 1, 2


def union(start: Ints, end: Ints) -> Intervals:
    """Return the merged intervals: starts and ends, each of shape (m,) with m <= n."""
    start, end = _sort_intervals(start, end)
    # If equally many intervals have begun and ended, none is open, whichever start belongs to which end.
    apart = start[1:] > end[:-1]
    if apart.all():
        return start, end
    return start[np.append(True, apart)], end[np.append(apart, True)]


def union_of(*sets: Intervals) -> Intervals:
    """Return the union of one or more sets of intervals."""
    return union(*map(np.concatenate, zip(*sets, strict=True)))


def outermost(start: Ints, end: Ints) -> Ints:
    """Return the rows of the intervals that no other one contains, by start; of equal ones the first."""
    rows = by_time(start, -end)
    ends = end[rows]
    beyond = ends[1:] > np.maximum.accumulate(ends)[:-1]
    outer_rows: Ints = rows[np.append(True, beyond)[: len(rows)]]
    return outer_rows


def properly_nested(start: Ints, end: Ints) -> bool:
    """Return whether any two intervals are disjoint or one contains the other; empty ones do not count."""
    full = end > start
    start, end = start[full], end[full]
    rows = by_time(start, -end)
    start, end = start[rows], end[rows]
    order = np.arange(len(start))
    # At one moment, intervals end before others begin, the innermost first.
    opening = np.repeat((True, False), len(order))
    events = np.lexsort((np.concatenate((order, -order)), opening, np.concatenate((start, end))))
    depth = np.cumsum(np.where(opening[events], 1, -1))
    depth_at = np.empty(len(events), np.int64)
    depth_at[events] = depth
    # Each interval ends at the depth at which it began, without itself.
    return bool(np.all(depth_at[: len(order)] == depth_at[len(order) :] + 1))


def styles_of_threads(process: Ints, thread: Ints, start: Ints, end: Ints) -> Ints:
    """Return the `Style` of ranges: those of a thread are pushed and popped if all of them nest."""
    style = np.full(len(start), int(Style.PUSH_POP))
    for _, rows in rows_by_key(process, thread):
        if not properly_nested(start[rows], end[rows]):
            style[rows] = int(Style.START_END)
    return style


def length(start: Ints, end: Ints) -> int:
    """Return the time that the intervals cover, with overlaps counted once."""
    start, end = _sort_intervals(start, end)
    gaps = start[1:] - end[:-1]
    # One value, or none without intervals.
    covered: Ints = end[-1:] - start[:1] - np.maximum(gaps, 0, out=gaps).sum()
    return int(covered.sum())


def _sort_intervals(start: Ints, end: Ints) -> Intervals:
    full = end > start
    if not full.all():
        start, end = start[full], end[full]
    return ordered(start), ordered(end)


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return the intervals that both sets cover."""
    return _intervals_of_set(a, b, _IN_A | _IN_B)


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return the intervals that ``a`` covers and ``b`` does not."""
    return _intervals_of_set(a, b, _IN_A)


def coverage(start: Ints, end: Ints, by: Intervals) -> Ints:
    """Return the time of each interval that the merged set ``by`` covers, shape (n,); 0 for an empty one."""
    starts, ends = by
    covered = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(ends - starts, out=covered[1:])
    # Moments before the first interval get a reach that is not beyond them.
    reach = np.concatenate(([start.min(initial=0)], ends))

    def until(moment: Ints) -> Ints:
        beyond, result = as_of(starts, moment, reach, covered)
        beyond -= moment
        result -= np.maximum(beyond, 0, out=beyond)
        return result

    result = until(np.maximum(start, end))
    result -= until(start)
    return result


def _intervals_of_set(a: Intervals, b: Intervals, wanted: int) -> Intervals:
    """Return the intervals in which exactly the sets of the bit mask ``wanted`` are open."""
    (a_start, a_end), (b_start, b_end) = union(*a), union(*b)
    points = np.concatenate((a_start, a_end, b_start, b_end))
    counts = [len(a_start), len(a_end), len(b_start), len(b_end)]
    steps = np.repeat(np.array([_IN_A, -_IN_A, _IN_B, -_IN_B], np.int8), counts)
    order = np.argsort(points, kind="stable")
    points, steps = points[order], steps[order]
    # Between equal points the mask has no meaning, but the interval there is empty, and union drops it.
    inside = np.cumsum(steps, out=steps)[:-1] == wanted
    return union(points[:-1][inside], points[1:][inside])


def exclusive(*sets: Intervals) -> list[int]:
    """Return for each bit mask the time that exactly its sets cover; bit i is set i, and mask 0 gets 0.

    There are two or more sets, each merged.
    """
    largest = max(range(len(sets)), key=lambda i: len(sets[i][0]))
    # The time that all sets of a mask cover, and the part of it that the largest set covers too.
    common: dict[int, Intervals] = {}
    for i in {*range(len(sets))} - {largest}:
        joined = {mask | 1 << i: intersection(times, sets[i]) for mask, times in common.items()}
        common |= {1 << i: sets[i]} | joined
    start, end = (np.concatenate(sides) for sides in zip(*common.values(), strict=True))
    edges = np.cumsum([len(times[0]) for times in common.values()])[:-1]
    covered = np.split(coverage(start, end, sets[largest]), edges)
    time = np.zeros(1 << len(sets), np.int64)
    time[1 << largest] = np.sum(sets[largest][1] - sets[largest][0])
    for mask, lengths, shared in zip(common, np.split(end - start, edges), covered, strict=True):
        time[mask], time[mask | 1 << largest] = lengths.sum(), shared.sum()
    # By inclusion and exclusion: what a further set covers too is not exclusive.
    for bit in (1 << i for i in range(len(sets))):
        without = [mask for mask in range(1 << len(sets)) if not mask & bit]
        time[without] -= time[[mask | bit for mask in without]]
    return [0, *time[1:].tolist()]


def grouped_length(group: Ints, start: Ints, end: Ints, groups: int) -> Ints:
    """Return the length of each group's union, shape (groups,).

    The groups are placed one after the other on the axis, so that one union serves all of them.
    """
    full = end > start
    group, start, end = group[full], start[full], end[full]
    low = np.full(groups, np.iinfo(np.int64).max)
    high = np.full(groups, np.iinfo(np.int64).min)
    np.minimum.at(low, group, start)
    np.maximum.at(high, group, end)
    present = high > low
    # One apart, so that intervals of neighbouring groups do not touch.
    extent = np.where(present, high - low + 1, 0)
    origin = np.cumsum(extent) - extent
    shift = origin[group] - low[group]
    starts, ends = union(start + shift, end + shift)
    owner = np.searchsorted(np.cumsum(extent), starts, side="right")
    total = np.zeros(groups, np.int64)
    np.add.at(total, owner, ends - starts)
    return total
