"""Joins of two tables on columns or by time, and of operations with the calls that launched them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.unique import MAX_INT64, distinct, extent, in_ranges, numbered_rows
from hpcprof.profiles.timeline import NO_CORRELATION, NO_PROCESS, ApiCalls, Ints, Operations, Timeline

_Keys = NDArray[np.signedinteger[Any]]

_INT32_END = 1 << 31
# Maximum span of the keys over their number: a table of booleans then takes as much memory as two columns.
_MAX_SPAN_RATIO = 16


def pair_keys(a: tuple[Ints, Ints], b: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Return a number for each pair of values, such that equal pairs of both tables have equal numbers."""
    firsts = np.union1d(distinct(a[0]), distinct(b[0]))
    if len(firsts) <= 1:
        return a[1], b[1]
    low = min(int(side[1].min(initial=0)) for side in (a, b))
    span = max(int(side[1].max(initial=0)) for side in (a, b)) - low + 1
    if len(firsts) * span > MAX_INT64:
        seconds = np.union1d(a[1], b[1])
        a, b = ((first, np.searchsorted(seconds, second)) for first, second in (a, b))
        low, span = 0, len(seconds)
    key_a, key_b = (np.searchsorted(firsts, first) * span + (second - low) for first, second in (a, b))
    return key_a, key_b


def matches(left: _Keys, right: _Keys) -> tuple[Ints, Ints]:
    """Return the rows of all pairs with equal keys, one array per table, in the order of ``left``."""
    if not len(left) or not len(right):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    candidates = _candidate_rows(left, right)
    if not len(candidates):
        return candidates, candidates
    order = np.argsort(right[candidates], kind="stable")
    order = candidates[order]
    ordered = right[order]
    unique = bool(np.all(ordered[1:] > ordered[:-1]))
    if unique and len(left) == len(ordered):
        # Sorting the left table too takes a fifth of the time of searching.
        by_key = np.argsort(left, kind="stable")
        if np.array_equal(left[by_key], ordered):
            order_of_right = np.empty(len(left), np.int64)
            order_of_right[by_key] = order
            return np.arange(len(left)), order_of_right
    left, ordered = _in_32_bits(left), _in_32_bits(ordered)
    low = np.searchsorted(ordered, left)
    last = len(ordered) - 1
    if unique:
        rows = np.flatnonzero(ordered.take(low, mode="clip") == left)
        return rows, order[low[rows]]
    count = ((low <= last) & (ordered[np.minimum(low, last)] == left)).astype(np.int64)
    # Few keys of the right table repeat; searching all of them a second time would be most of the work.
    several = np.flatnonzero((low < last) & (ordered[np.minimum(low + 1, last)] == left))
    count[several] = np.searchsorted(ordered, left[several], side="right") - low[several]
    rows = np.repeat(np.arange(len(left)), count)
    return rows, order[in_ranges(low, count)]


def _candidate_rows(left: _Keys, right: _Keys) -> Ints:
    """Return the rows of the right table whose keys may be in the left; most calls launch nothing."""
    low, span = extent(right)
    least, width = extent(left)
    if span > _MAX_SPAN_RATIO * len(right) or least < low or least + width > low + span:
        return np.arange(len(right))
    present = np.zeros(span, bool)
    present[left - low if low else left] = True
    return np.flatnonzero(present[right - low if low else right])


def _in_32_bits(keys: _Keys) -> _Keys:
    """Return keys with 32 bits if they fit, which are sorted and searched in half the time."""
    fit = keys.min(initial=0) >= -_INT32_END and keys.max(initial=0) < _INT32_END
    return keys.astype(np.int32) if fit else keys


def latest_rows(keys: tuple[Ints, ...], time: Ints, wanted: tuple[Ints, ...], moment: Ints) -> Ints:
    """Return, for each wanted key and moment, the last row with this key whose time is not later; -1 if none.

    Rows have the ``time`` and ``keys`` of shape (n,), and what is wanted the shape (m,).
    """
    count = len(time)
    _, key = numbered_rows(*(np.concatenate(pair) for pair in zip(keys, wanted, strict=True)))
    order = np.lexsort((np.arange(len(key)) >= count, np.concatenate((time, moment)), key))
    place = np.maximum.accumulate(np.where(order < count, np.arange(len(key)), -1))
    row = np.where(place >= 0, order[place], -1)
    row[key[row] != key[order]] = -1
    latest_row = np.empty(len(key), np.int64)
    latest_row[order] = row
    return latest_row[count:]


def launch_pairs(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the rows of ``timeline.operations()`` and ``timeline.calls`` in every pair of one launch.

    Both rows have the same process and correlation id. A call may launch several operations, and calls
    inside a call share its id. Pairs are in the order of the operations.
    """
    # Timelines that share these tables, such as one with another step, share the result.
    return _launch_pairs(timeline.kernels, timeline.memops, timeline.graphs, timeline.calls)


@computed_once
def _launch_pairs(
    kernels: Operations, memops: Operations, graphs: Operations, calls: ApiCalls
) -> tuple[Ints, Ints]:
    process, correlation = (
        np.concatenate([getattr(table, name) for table in (kernels, memops, graphs)])
        for name in ("process", "correlation")
    )
    operation_key, call_key = pair_keys((process, correlation), (calls.process, calls.correlation))
    has_number = (process != NO_PROCESS) & (correlation != NO_CORRELATION)
    if has_number.all():
        return matches(operation_key, call_key)
    identified = np.flatnonzero(has_number)
    operation, call = matches(operation_key[identified], call_key)
    return identified[operation], call
