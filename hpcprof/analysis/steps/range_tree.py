"""The tree of the ranges of a thread by containment. Ranges may also overlap."""

import numpy as np

from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.unique import rows_by_key
from hpcprof.profiles.timeline import NO_PROCESS, Floats, Ints, Mask, Ranges, Timeline

NO_PARENT = -1
"""Stands for the parent of an outermost range."""


def parents(ranges: Ranges) -> Ints:
    """Return the row of the shortest range that contains each one on its thread, or `NO_PARENT`.

    Ranges of an unknown thread have none.
    """
    result = np.full(len(ranges), NO_PARENT, np.int64)
    on_threads = np.flatnonzero(ranges.process != NO_PROCESS)
    for _, places in rows_by_key(ranges.process[on_threads], ranges.thread[on_threads]):
        rows = on_threads[places]
        parent = tightest(ranges.start[rows], ranges.end[rows])
        result[rows] = np.where(parent == NO_PARENT, NO_PARENT, rows[parent])
    return result


@computed_once
def tree(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the rows of the ranges that began and ended on one thread, and their `parents` among these."""
    rows = np.flatnonzero(timeline.ranges.one_thread)
    return rows, parents(timeline.ranges.take(rows))


def tightest(start: Ints, end: Ints) -> Ints:
    """Return, for each interval, the index of the shortest other one that contains it, or `NO_PARENT`.

    Among equally short ones the first in the profile's order is chosen. Equal intervals contain each
    other, as in nvtx_gpu_proj_sum. Intervals may overlap in any way; the time is O(n log n).

    With intervals sorted by start, those that contain an interval precede it and end no earlier. The sorted
    sequence is halved repeatedly. At each level, every interval of a right half looks for the shortest
    interval of its left half that ends no earlier: a running minimum over both halves, ordered by end.
    """
    n = len(start)
    order = np.lexsort((-end, start))
    # Short ones first, then by order in the profile; n means none.
    by_length = np.argsort(end - start, kind="stable")
    place_by_length = np.argsort(by_length)[order]
    shortest = np.full(n, n, np.int64)
    # From here on, an interval is its position in the sorted sequence.
    items = np.argsort(-end[order], kind="stable")
    half = 1 << max(n - 1, 0).bit_length() >> 1
    while half:
        block = items // (2 * half)
        left = items & half == 0
        # Each block's values are smaller than those of the blocks before it, so its minimum starts afresh.
        base = (block[-1] - block) * (n + 1)
        running = np.minimum.accumulate(np.where(left, place_by_length[items], n) + base) - base
        right = items[~left]
        shortest[right] = np.minimum(shortest[right], running[~left])
        items = _move_halves(items, block, left, half)
        half //= 2
    parent = np.empty(n, np.int64)
    parent[order] = np.append(by_length, NO_PARENT)[shortest]
    return _with_twins(parent, order, start, end)


def _move_halves(items: Ints, block: Ints, left: Mask, half: int) -> Ints:
    """Move each block's left half before its right half, keeping the order within both.

    All blocks except the last are full: they have ``half`` items on each side.
    """
    before = np.cumsum(left)
    index = np.where(left, before - 1, np.arange(half, half + len(items)) - before) + block * half
    result = np.empty_like(items)
    result[index] = items
    return result


def _with_twins(parent: Ints, order: Ints, start: Ints, end: Ints) -> Ints:
    """Make the second of equal intervals the parent of the first, which is the parent of the others."""
    is_twin = (start[order[1:]] == start[order[:-1]]) & (end[order[1:]] == end[order[:-1]])
    first = is_twin & ~np.concatenate((np.zeros(min(len(is_twin), 1), bool), is_twin[:-1]))
    parent[order[:-1][first]] = order[1:][first]
    return parent


def levels(parent: Ints) -> Floats:
    """Return the depth of each range; it is 0 without a parent.

    Equal intervals are each other's parents and so have no root: they and everything below them have no
    depth (NaN), as in nvtx_gpu_proj_sum.
    """
    n = len(parent)
    pointer = np.append(np.where(parent == NO_PARENT, n, parent), n)
    depth = np.append(np.ones(n, np.int64), 0)
    for _ in range(n.bit_length()):
        depth = depth + depth[pointer]
        pointer = pointer[pointer]
    return np.where(pointer[:n] == n, depth[:n] - 1.0, np.nan)
