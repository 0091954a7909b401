"""Ranges projected to the GPU: from the first start to the last end of what was launched inside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.joins import launch_pairs
from hpcprof.analysis.once import once
from hpcprof.numbering import numbered_rows
from hpcprof.timeline import Ints, Ranges, Table, Timeline

_LATEST = int(np.iinfo(np.int64).max)
_EARLIEST = int(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class Layer:
    """Launches whose starts and ends both ascend, so that those inside a range are one slice.

    ``repeated`` counts, before each launch and behind the last, those whose correlation id another launch
    of the group has too; ``number`` numbers the ids of these.
    """

    start: Ints
    end: Ints
    first: Ints
    last: Ints
    repeated: Ints
    number: Ints


@dataclass(frozen=True)
class Launches:
    """API calls that started GPU work, one row a call, and the extent of that work on the GPU.

    They are in the order of process, start and end.
    """

    start: Ints
    end: Ints
    process: Ints
    thread: Ints
    correlation: Ints
    first: Ints
    last: Ints

    @cached_property
    def by_process(self) -> Layers:
        """The layers of the launches of each process."""
        return _grouped(self, self.process)

    @cached_property
    def by_thread(self) -> Layers:
        """The layers of the launches of each thread, by process and thread."""
        return _grouped(self, self.process, self.thread)


Layers = dict[tuple[int, ...], list[Layer]]


@dataclass(frozen=True)
class Projection:
    """Per range: the GPU interval and the number of distinct launches; no interval where that is 0."""

    start: Ints
    end: Ints
    launches: Ints


@dataclass(frozen=True)
class Extent(Table):
    """When an operation runs."""

    start: Ints
    end: Ints


@once
def launches(timeline: Timeline) -> Launches:
    """Return the calls that launched operations; a call may launch several."""
    work, calls = timeline.columns_of_operations(Extent), timeline.calls
    operation, call = launch_pairs(timeline)
    order = np.argsort(call, kind="stable")
    operation, call = operation[order], call[order]
    at = np.flatnonzero(np.diff(call, prepend=-1))
    rows = call[at]
    first = _reduced(np.minimum, work.start[operation], at)
    last = _reduced(np.maximum, work.end[operation], at)
    order = np.lexsort((calls.end[rows], calls.start[rows], calls.process[rows]))
    rows = rows[order]
    return Launches(
        start=calls.start[rows],
        end=calls.end[rows],
        process=calls.process[rows],
        thread=calls.thread[rows],
        correlation=calls.correlation[rows],
        first=first[order],
        last=last[order],
    )


def _reduced(choose: np.ufunc, values: Ints, at: Ints) -> Ints:
    """Return the extremum of each run of values; numpy refuses to reduce none."""
    extrema: Ints = choose.reduceat(values, at) if len(at) else values
    return extrema


def on_thread(ranges: Ranges, launched: Launches) -> Projection:
    """Project with the launches of the range's own thread, the rule of nvtx_gpu_proj_sum."""
    return _project(ranges, launched.by_thread, ranges.process, ranges.thread)


def in_process(ranges: Ranges, launched: Launches) -> Projection:
    """Project with the launches of all threads of the range's process."""
    return _project(ranges, launched.by_process, ranges.process)


def _grouped(launched: Launches, *key: Ints) -> Layers:
    """Return the layers of the launches of each key."""
    keys, group = numbered_rows(*key)
    order = np.argsort(group, kind="stable")
    cuts = np.searchsorted(group[order], np.arange(1, len(keys)))
    groups = zip(keys.tolist(), np.split(order, cuts), strict=False)
    return {tuple(of): list(_layers(launched, rows)) for of, rows in groups}


def _layers(launched: Launches, rows: Ints) -> Iterator[Layer]:
    """Split launches that are sorted by start, then end, into layers.

    Calls on one thread follow each other and are one layer; calls inside calls make another.
    """
    repeated = _repeated(launched.correlation[rows])
    numbers = np.full(len(rows), -1)
    numbers[repeated] = np.unique(launched.correlation[rows[repeated]], return_inverse=True)[1]
    while len(rows):
        end = launched.end[rows]
        outermost = end == np.maximum.accumulate(end)
        # Most often all rows are one layer, and all launches of one process: views need no memory.
        whole = len(rows) == len(launched.end) and bool(outermost.all())
        layer = slice(None) if whole else rows[outermost]
        number = numbers[outermost]
        yield Layer(
            start=launched.start[layer],
            end=launched.end[layer],
            first=launched.first[layer],
            last=launched.last[layer],
            repeated=_counted(number >= 0),
            number=number[number >= 0],
        )
        rows, numbers = rows[~outermost], numbers[~outermost]


def _counted(chosen: NDArray[np.bool_]) -> Ints:
    """Return how many are chosen before each place, and behind the last; most often there is none."""
    if not chosen.any():
        return np.broadcast_to(np.int64(0), (len(chosen) + 1,))
    return np.concatenate(([0], np.cumsum(chosen)))


def _repeated(values: Ints) -> NDArray[np.bool_]:
    """Say of each value whether there is another one like it."""
    ordered = np.sort(values, kind="stable")  # They ascend almost everywhere.
    return np.isin(values, ordered[1:][ordered[1:] == ordered[:-1]])


def _project(ranges: Ranges, layers: Layers, *key: Ints) -> Projection:
    """Project each range on the launches of its group that lie inside it, ends included."""
    n = len(ranges)
    result = Projection(np.full(n, _LATEST), np.full(n, _EARLIEST), np.zeros(n, np.int64))
    keys, group = numbered_rows(*key)
    order = np.argsort(group, kind="stable")
    cuts = np.searchsorted(group[order], np.arange(1, len(keys)))
    for of, rows in zip(keys.tolist(), np.split(order, cuts), strict=False):
        _project_group(result, rows, ranges, layers.get(tuple(of), []))
    return result


def _project_group(result: Projection, rows: Ints, ranges: Ranges, layers: list[Layer]) -> None:
    """Fill ``result`` for ``rows`` from the layers of their group."""
    pairs = [np.empty(0, np.int64)]
    numbers = 1 + max((int(layer.number.max(initial=0)) for layer in layers), default=0)
    for layer in layers:
        low = np.searchsorted(layer.start, ranges.start[rows], side="left")
        high = np.maximum(np.searchsorted(layer.end, ranges.end[rows], side="right"), low)
        first = _extremum(np.minimum, layer.first, low, high, _LATEST)
        last = _extremum(np.maximum, layer.last, low, high, _EARLIEST)
        result.start[rows] = np.minimum(result.start[rows], first)
        result.end[rows] = np.maximum(result.end[rows], last)
        below, above = layer.repeated[low], layer.repeated[high]
        result.launches[rows] += high - low - (above - below)
        pairs.append(_pairs(layer.number, below, above, numbers))
    # A correlation id of several calls counts once in a range.
    distinct = np.unique(np.concatenate(pairs))
    result.launches[rows] += np.bincount(distinct // numbers, minlength=len(rows))


def _extremum(choose: np.ufunc, values: Ints, low: Ints, high: Ints, empty: int) -> Ints:
    """Return the extremum of ``values[low:high]`` for each pair of bounds, ``empty`` where they are equal.

    The values' extrema are joined in pairs, again and again, and a slice takes those at its ends that
    the pairs do not share. O(n + m log n) however long the slices are.
    """
    result = np.full(len(low), empty)
    rows = np.flatnonzero(low < high)
    low, high = low[rows], high[rows]
    while len(rows):
        for odd, place in (((low & 1) == 1, low), ((high & 1) == 1, high - 1)):
            result[rows[odd]] = choose(result[rows[odd]], values[place[odd]])
        low, high = (low + 1) // 2, high // 2
        inside = low < high
        rows, low, high = rows[inside], low[inside], high[inside]
        values = choose(values[:-1:2], values[1::2])
    return result


def _pairs(number: Ints, low: Ints, high: Ints, numbers: int) -> Ints:
    """Return ``range * numbers + number`` for every entry of ``number[low:high]`` of every range."""
    size = high - low
    owner = np.repeat(np.arange(len(low)), size)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size)
    pairs: Ints = owner * numbers + number[np.repeat(low, size) + within]
    return pairs
