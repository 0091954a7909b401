"""Ranges projected to the GPU: from the first start to the last end of the operations launched in them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.joins import launch_pairs
from hpcprof.profiles.columns.ordering import ascends, by_time, extremum_of_slices
from hpcprof.profiles.columns.unique import distinct, in_ranges, rows_by_key
from hpcprof.profiles.timeline import AFTER_ALL, BEFORE_ALL, NO_NAME, ApiCalls, Ints, Mask, Ranges, Timeline


class Layer(msgspec.Struct, frozen=True):
    """Launches whose starts and ends both ascend, so that the launches inside a range are a slice."""

    start: Ints
    end: Ints
    """Start and return of the launch call; shape (n,)."""
    first: Ints
    last: Ints
    """The first start and the last end of the operations that it launched; shape (n,)."""
    repeated: Ints
    """The number of launches before each position that share their correlation id with another launch; shape
    (n + 1,).
    """
    number: Ints
    """The numbers of the correlation ids of these launches."""


Launches = dict[tuple[int, int], list[Layer]]
"""The API calls that launched GPU work, and the extent of that work, by process and thread."""


class Projection(msgspec.Struct, frozen=True):
    """The interval of each range on the GPU and its number of distinct launches; no interval if that is 0."""

    start: Ints
    end: Ints
    launches: Ints


@computed_once
def launches(timeline: Timeline) -> Launches:
    """Return the calls that launched operations; a call may launch several operations."""
    calls, (operation, call) = timeline.calls, launch_pairs(timeline)
    start, end = (column[operation] for column in timeline.of_operations("start", "end"))
    # Calls with the same id launched the same operations.
    twice = np.flatnonzero(operation[1:] == operation[:-1])
    shared = distinct(np.concatenate((call[twice], call[twice + 1])))
    return {
        (process, thread): list(_layers(*_layer_arguments(calls, call[rows], start[rows], end[rows], shared)))
        for (process, thread), rows in rows_by_key(calls.process[call], calls.thread[call])
    }


def _layer_arguments(calls: ApiCalls, call: Ints, first: Ints, last: Ints, shared: Ints) -> tuple[Ints, ...]:
    """Return the arguments of `_layer` for one thread, sorted by start and end."""
    if not ascends(call):
        order = np.argsort(call, kind="stable")
        call, first, last = call[order], first[order], last[order]
    again = call[1:] == call[:-1]
    if again.any():
        at = np.flatnonzero(np.append(True, ~again))
        call, first, last = call[at], np.minimum.reduceat(first, at), np.maximum.reduceat(last, at)
    number = np.broadcast_to(np.int64(-1), call.shape)
    if len(shared):
        number = number.copy()
        rows = np.flatnonzero(np.isin(call, shared))
        number[rows] = np.searchsorted(distinct(calls.correlation[shared]), calls.correlation[call[rows]])
    columns: tuple[Ints, ...] = calls.start[call], calls.end[call], first, last, number
    if not np.all(columns[0][1:] > columns[0][:-1]):
        order = by_time(*columns[:2])
        columns = tuple(column[order] for column in columns)
    return columns


def _layers(*columns: Ints) -> Iterator[Layer]:
    """Split launches, sorted by start and end, into layers.

    Calls that follow each other are one layer; calls inside other calls are the next layer.
    """
    while not ascends(columns[1]):
        outermost = columns[1] == np.maximum.accumulate(columns[1])
        yield _layer(*(column[outermost] for column in columns))
        columns = tuple(column[~outermost] for column in columns)
    yield _layer(*columns)


def _layer(start: Ints, end: Ints, first: Ints, last: Ints, number: Ints) -> Layer:
    return Layer(start, end, first, last, _count_before(number >= 0), number[number >= 0])


def on_thread(ranges: Ranges, launched: Launches) -> Projection:
    """Project on the launches of the range's own thread, as nvtx_gpu_proj_sum does."""
    return _project(ranges, launched, ranges.process, ranges.thread)


def in_process(ranges: Ranges, launched: Launches) -> Projection:
    """Project on the launches of all threads of the range's process."""
    layers: dict[tuple[int, ...], list[Layer]] = {}
    for (process, _), thread_launches in launched.items():
        layers.setdefault((process,), []).extend(thread_launches)
    return _project(ranges, layers, ranges.process)


def project(timeline: Timeline, ranges: Ranges) -> tuple[Ints, Ints, Mask]:
    """Return the start and the end of each range on the GPU, and whether it has work there; 0 if not.

    The interval runs from the first start to the last end of the operations that any thread of the process
    launched while the range was open. This differs from ``range_gpu`` on purpose: autograd launches the
    backward pass from a thread of its own, so counting only the range's own thread would make a ``backward``
    of 80 ms last 11 us.
    """
    projection = in_process(ranges, launches(timeline))
    launching = projection.launches > 0
    return np.where(launching, projection.start, 0), np.where(launching, projection.end, 0), launching


def ranges_on_gpu(timeline: Timeline) -> Ranges:
    """Return the program's own ranges that have work on the GPU, with their extents there (`project`)."""
    opened = timeline.ranges.take((timeline.ranges.domain == NO_NAME) & (timeline.ranges.one_thread != 0))
    start, end, projected = project(timeline, opened)
    return replace(opened, start=start, end=end).take(projected)


def _count_before(chosen: Mask) -> Ints:
    """Return the number of chosen rows before each position, and in all; usually there are none."""
    if not chosen.any():
        return np.broadcast_to(np.int64(0), (len(chosen) + 1,))
    return np.concatenate(([0], np.cumsum(chosen)))


def _project(ranges: Ranges, layers: Mapping[Any, list[Layer]], *key: Ints) -> Projection:
    """Project each range on the launches of its group that lie within it, including its ends."""
    n = len(ranges)
    result = Projection(np.full(n, AFTER_ALL), np.full(n, BEFORE_ALL), np.zeros(n, np.int64))
    for group, rows in rows_by_key(*key):
        _project_group(result, rows, ranges, layers.get(group, []))
    return result


def _project_group(result: Projection, rows: Ints, ranges: Ranges, layers: list[Layer]) -> None:
    pairs = [np.empty(0, np.int64)]
    numbers = 1 + max((int(layer.number.max(initial=0)) for layer in layers), default=0)
    for layer in layers:
        low = np.searchsorted(layer.start, ranges.start[rows], side="left")
        high = np.maximum(np.searchsorted(layer.end, ranges.end[rows], side="right"), low)
        first = extremum_of_slices(np.minimum, layer.first, low, high, AFTER_ALL)
        last = extremum_of_slices(np.maximum, layer.last, low, high, BEFORE_ALL)
        result.start[rows] = np.minimum(result.start[rows], first)
        result.end[rows] = np.maximum(result.end[rows], last)
        below, above = layer.repeated[low], layer.repeated[high]
        result.launches[rows] += high - low - (above - below)
        pairs.append(_pairs(layer.number, below, above, numbers))
    # A correlation id that several calls share counts once in a range.
    pair = distinct(np.concatenate(pairs))
    result.launches[rows] += np.bincount(pair // numbers, minlength=len(rows))


def _pairs(number: Ints, low: Ints, high: Ints, numbers: int) -> Ints:
    """Return ``range * numbers + number`` for every entry of ``number[low:high]`` of every range."""
    size = high - low
    owner = np.repeat(np.arange(len(low)), size)
    return owner * numbers + number[in_ranges(low, size)]
