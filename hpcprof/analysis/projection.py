"""Ranges projected to the GPU: from the first start to the last end of what was launched inside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.joins import pair_keys
from hpcprof.timeline import NO_CORRELATION, NO_PROCESS, Ints, Operations, Ranges, Timeline

_LATEST = int(np.iinfo(np.int64).max)
_EARLIEST = int(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class Launches:
    """API calls that started GPU work, one row a call, and the extent of that work on the GPU."""

    start: Ints
    end: Ints
    process: Ints
    thread: Ints
    correlation: Ints
    first: Ints
    last: Ints

    def take(self, rows: Ints) -> Launches:
        """Return the rows of an index array."""
        return Launches(**{name: column[rows] for name, column in vars(self).items()})


@dataclass(frozen=True)
class Projection:
    """Per range: the GPU interval and the number of distinct launches; no interval where that is 0."""

    start: Ints
    end: Ints
    launches: Ints


def launches(timeline: Timeline) -> Launches:
    """Join calls and operations by process and correlation id; a call may start several operations."""
    operations, calls = timeline.operations(), timeline.calls
    operations = operations.take(_identified(operations.process, operations.correlation))
    calls = calls.take(_identified(calls.process, calls.correlation))
    of_operation, of_call = pair_keys(
        (operations.process, operations.correlation), (calls.process, calls.correlation)
    )
    key, first, last = _extents(operations, of_operation)
    place = np.minimum(np.searchsorted(key, of_call), max(len(key) - 1, 0))
    rows = np.flatnonzero(key[place] == of_call) if len(key) else np.empty(0, np.int64)
    calls, place = calls.take(rows), place[rows]
    return Launches(
        calls.start, calls.end, calls.process, calls.thread, calls.correlation, first[place], last[place]
    )


def _identified(process: Ints, correlation: Ints) -> NDArray[np.bool_]:
    identified: NDArray[np.bool_] = (process != NO_PROCESS) & (correlation != NO_CORRELATION)
    return identified


def _extents(operations: Operations, key: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the distinct keys in ascending order with their operations' first start and last end."""
    order = np.argsort(key, kind="stable")
    key = key[order]
    if not len(key):
        return key, key, key
    at = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    first = np.minimum.reduceat(operations.start[order], at)
    return key[at], first, np.maximum.reduceat(operations.end[order], at)


def on_thread(ranges: Ranges, launched: Launches) -> Projection:
    """Project with the launches of the range's own thread, the rule of nvtx_gpu_proj_sum."""
    return _project(
        ranges, launched, *pair_keys((ranges.process, ranges.thread), (launched.process, launched.thread))
    )


def in_process(ranges: Ranges, launched: Launches) -> Projection:
    """Project with the launches of all threads of the range's process."""
    return _project(ranges, launched, ranges.process, launched.process)


def _project(ranges: Ranges, launched: Launches, range_group: Ints, launch_group: Ints) -> Projection:
    """Project each range on the launches of its group that lie inside it, ends included."""
    n = len(ranges)
    result = Projection(np.full(n, _LATEST), np.full(n, _EARLIEST), np.zeros(n, np.int64))
    order = np.lexsort((launched.end, launched.start, launch_group))
    launched, launch_group = launched.take(order), launch_group[order]
    by_group = np.argsort(range_group, kind="stable")
    groups, at = np.unique(range_group[by_group], return_index=True)
    low = np.searchsorted(launch_group, groups, side="left")
    high = np.searchsorted(launch_group, groups, side="right")
    for i, until in enumerate(np.append(at[1:], n)[: len(at)]):
        _project_group(result, by_group[at[i] : until], ranges, launched.take(np.arange(low[i], high[i])))
    return result


def _project_group(result: Projection, rows: Ints, ranges: Ranges, launched: Launches) -> None:
    """Fill ``result`` for ``rows`` from the launches of their group, which are sorted by start, then end.

    In each layer starts and ends both ascend, so the launches inside a range are one slice of it.
    """
    _, inverse, count = np.unique(launched.correlation, return_inverse=True, return_counts=True)
    repeated = count[inverse] > 1
    pairs = []
    for layer in _layers(launched.end):
        low = np.searchsorted(launched.start[layer], ranges.start[rows], side="left")
        high = np.maximum(np.searchsorted(launched.end[layer], ranges.end[rows], side="right"), low)
        first = _extremum(np.minimum, launched.first[layer], low, high, _LATEST)
        last = _extremum(np.maximum, launched.last[layer], low, high, _EARLIEST)
        result.start[rows] = np.minimum(result.start[rows], first)
        result.end[rows] = np.maximum(result.end[rows], last)
        single = np.concatenate(([0], np.cumsum(~repeated[layer])))
        result.launches[rows] += single[high] - single[low]
        double = np.concatenate(([0], np.cumsum(repeated[layer])))
        pairs.append(_pairs(inverse[layer][repeated[layer]], double[low], double[high], len(count)))
    # A correlation id of several calls counts once in a range.
    distinct = np.unique(np.concatenate(pairs)) if pairs else np.empty(0, np.int64)
    result.launches[rows] += np.bincount(distinct // max(len(count), 1), minlength=len(rows))


def _layers(end: Ints) -> Iterator[Ints]:
    """Split intervals that are sorted by start into layers whose ends ascend too.

    Calls on one thread follow each other and are one layer; calls inside calls make another.
    """
    rest = np.arange(len(end))
    while len(rest):
        reach = np.maximum.accumulate(end[rest])
        outermost = end[rest] == reach
        yield rest[outermost]
        rest = rest[~outermost]


def _extremum(choose: np.ufunc, values: Ints, low: Ints, high: Ints, empty: int) -> Ints:
    """Return the extremum of ``values[low:high]`` for each pair of bounds, ``empty`` where they are equal.

    Two overlapping windows of a power of two cover any slice; the windows' extrema double in width
    step by step, so only one width is in memory. O((n + m) log n) however long the slices are.
    """
    result = np.full(len(low), empty)
    size = high - low
    window, width = values, 1
    while width <= size.max(initial=0):
        rows = np.flatnonzero((size >= width) & (size < 2 * width))
        result[rows] = choose(window[low[rows]], window[high[rows] - width])
        window = choose(window[:-width], window[width:])
        width *= 2
    return result


def _pairs(number: Ints, low: Ints, high: Ints, numbers: int) -> Ints:
    """Return ``range * numbers + number`` for every entry of ``number[low:high]`` of every range."""
    size = high - low
    owner = np.repeat(np.arange(len(low)), size)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size)
    pairs: Ints = owner * numbers + number[np.repeat(low, size) + within]
    return pairs
