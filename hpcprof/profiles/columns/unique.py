"""The distinct values of columns and the rows that have them, in linear time if few values are distinct."""

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.timeline import Ints, Mask, Timeline

MAX_INT64 = int(np.iinfo(np.int64).max)
MAX_SPAN_RATIO = 4
"""Maximum span of a column's values over its rows up to which a table over the span is fastest."""


def distinct(values: Ints) -> Ints:
    """Return the distinct values in ascending order, as ``np.unique(values)`` does."""
    low, span = extent(values)
    if span == 1:
        return np.array([low])
    if 0 < span <= MAX_SPAN_RATIO * len(values):
        present = np.zeros(span, bool)
        present[values - low if low else values] = True
        return np.flatnonzero(present) + low
    unique: Ints = np.unique(values)
    return unique


def numbered(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values in ascending order, and the number of each row's value among them.

    The result equals ``np.unique(values, return_inverse=True)``, which sorts all rows. Here values that
    lie close together are counted, and others are hashed.
    """
    low, span = extent(values)
    if span == 1:
        return np.array([low]), np.zeros(len(values), np.int64)
    if 0 < span <= MAX_SPAN_RATIO * len(values):
        place = values - low if low else values
        present = np.zeros(span, bool)
        present[place] = True
        return np.flatnonzero(present) + low, (np.cumsum(present) - 1)[place]
    # Imported here, because pandas takes long to import and most columns do not need it.
    import pandas as pd

    row, values_once = pd.factorize(values)
    order = np.argsort(values_once)
    number = np.empty(len(values_once), np.int64)
    number[order] = np.arange(len(values_once))
    return values_once[order], number[row]


def map_unique(values: Ints, function: Callable[[int], int]) -> Ints:
    """Return the result of a function for each value; it is called once for each distinct value."""
    used, row = numbered(values)
    return np.array([function(value) for value in used.tolist()], np.int64)[row]


def name_matches(timeline: Timeline, ids: Ints, fits: Callable[[str], object]) -> Mask:
    """Return a mask of the rows whose name fits; each distinct name is tested once, and no name is empty."""
    used = distinct(ids)
    # NO_NAME is -1 and so selects the last element.
    fitting: Mask = np.zeros(len(timeline.strings) + 1, bool)
    fitting[used] = [bool(fits(name or "")) for name in timeline.names(used)]
    return fitting[ids]


def number_texts(
    timeline: Timeline, ids: Ints, edit: Callable[[str | None], str | None] = lambda text: text
) -> tuple[NDArray[np.object_], Ints]:
    """Assign numbers to the texts that occur, in ascending order with None first.

    ``ids`` has the place of each row's text in the timeline's string table, shape (n,); several may have the
    same text. ``edit`` changes each text before they are compared. Returned are the distinct texts, and for
    each row the place of its text among them, shape (n,).
    """
    used = distinct(ids)
    names = [edit(name) for name in timeline.names(used)]
    texts = sorted(set(names), key=lambda text: (text is not None, text or ""))
    place = {text: i for i, text in enumerate(texts)}
    # As in `name_matches`.
    number = np.zeros(len(timeline.strings) + 1, np.int64)
    number[used] = [place[name] for name in names]
    return object_array(texts), number[ids]


def object_array(values: Iterable[object]) -> NDArray[np.object_]:
    """Return an array of Python objects that keeps each value as it is, None included."""
    items = list(values)
    column = np.empty(len(items), object)
    column[:] = items
    return column


def extent(values: Ints) -> tuple[int, int]:
    """Return the least value and the size of the range up to the greatest, 0 and 0 without values.

    If starting at 0 at most doubles the range, the least value is 0, which need not be subtracted.
    """
    if not len(values):
        return 0, 0
    if values.strides == (0,):
        values = values[:1]  # One value stands for all rows.
    low = int(values.min())
    span = int(values.max()) - low + 1
    return (0, low + span) if 0 < low < span else (low, span)


def numbered_rows(*columns: Ints) -> tuple[Ints, Ints]:
    """Return the distinct rows of columns of equal length, in ascending order, and each row's number.

    Rows have the shape (distinct, columns), numbers (n,).
    """
    number, numbers = np.zeros(len(columns[0]), np.int64), 1
    # The column of a 2-d array is strided; copy it once.
    for column in map(np.ascontiguousarray, columns):
        low, span = extent(column)
        if numbers * span > MAX_INT64:
            distinct_values, column = numbered(column)
            low, span = 0, len(distinct_values)
            if numbers * span > MAX_INT64:
                used, number = numbered(number)
                numbers = len(used)
        if span > 1:
            number *= span
            number += column
            number -= low
            numbers *= span
    used, number = numbered(number)
    position = np.empty(len(used), np.int64)
    position[number] = np.arange(len(number))
    return np.column_stack([column[position] for column in columns]), number


def rows_by_key(*columns: Ints) -> list[tuple[tuple[int, ...], Ints]]:
    """Return the distinct rows of columns, in ascending order, and the indices of each, ascending.

    Runs of equal rows are numbered instead of single rows: a profiler writes few and long ones.
    """
    n = len(columns[0])
    if not n:
        return []
    change = np.ones(n, bool)
    change[1:] = False
    for column in columns:
        change[1:] |= column[1:] != column[:-1]
    first = np.flatnonzero(change)
    if len(first) == 1:
        return [(tuple(int(column[0]) for column in columns), np.arange(n))]
    length = np.diff(first, append=n)
    keys, number = numbered_rows(*(column[first] for column in columns))
    order = np.argsort(number, kind="stable")
    ends = np.cumsum(length[order])
    rows = np.arange(n) + np.repeat(first[order] - ends + length[order], length[order])
    cuts = ends[np.cumsum(np.bincount(number))[:-1] - 1]
    return list(zip(map(tuple, keys.tolist()), np.split(rows, cuts), strict=True))


def begins_run(*columns: Ints) -> Mask:
    """Return a mask of the rows that differ from the row before in any column; shape (n,)."""
    mask = np.ones(len(columns[0]), bool)
    mask[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return mask


def ends_run(*columns: Ints) -> Mask:
    """Return a mask of the rows that differ from the row after them in any column; shape (n,)."""
    return begins_run(*(column[::-1] for column in columns))[::-1]


def in_ranges(first: Ints, count: Ints) -> Ints:
    """Return ``count`` numbers from each ``first`` on, one range after the other."""
    positions: Ints = np.arange(int(count.sum())) + np.repeat(first - (np.cumsum(count) - count), count)
    return positions


def position_in_group(group: Ints) -> Ints:
    """Return the number of earlier rows of each row's group, shape (n,); groups are numbered from 0."""
    order = np.argsort(group, kind="stable")
    size = np.bincount(group)
    position = np.empty(len(group), np.int64)
    position[order] = np.arange(len(group)) - np.repeat(np.cumsum(size) - size, size)
    return position
