"""Which classes of operations cover each device's time, alone and together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.intervals import Intervals, exclusive, length, union
from hpcprof.analysis.once import once
from hpcprof.numbering import distinct
from hpcprof.timeline import Category, Operations, Timeline


@dataclass(frozen=True)
class Coverage:
    """One device's time, in nanoseconds.

    ``span`` runs from the first operation's start to the last one's end, ``busy`` is the length of the
    union of all operations, and ``exclusive`` the time in which exactly the classes of each bit mask run,
    where the bit of a class is its value.
    """

    span: int
    busy: int
    exclusive: Sequence[int]

    def of(self, running: Collection[Category], *, not_running: Collection[Category] = ()) -> int:
        """Return the time in which all of some classes run, and none of some others."""
        wanted, unwanted = (sum(1 << category for category in chosen) for chosen in (running, not_running))
        return sum(
            time
            for mask, time in enumerate(self.exclusive)
            if mask & wanted == wanted and not mask & unwanted
        )


@once
def coverage(timeline: Timeline) -> list[Coverage]:
    """Return what covers the time of each device that has operations."""
    others = timeline.memops, timeline.graphs
    running = [kernels_running(timeline), *map(_running, others)]
    bounds = [_bounds(table) for table in (timeline.kernels, *others)]
    found = []
    for device in sorted({device for table in bounds for device in table}):
        sets = zip(*(table[device] for table in running if device in table), strict=True)
        found.append(_covered([*map(_joined, sets)], [table[device] for table in bounds if device in table]))
    return found


@once
def kernels_running(timeline: Timeline) -> dict[int, list[Intervals]]:
    """Return when kernels ran, merged: by device, one set for each category."""
    return _running(timeline.kernels)


def _running(table: Operations) -> dict[int, list[Intervals]]:
    found = {}
    for device, rows in _devices(table):
        start, end, category = table.start[rows], table.end[rows], table.category[rows]
        chosen = (category == wanted for wanted in Category)
        found[device] = [union(start[one], end[one]) for one in chosen]
    return found


def _bounds(table: Operations) -> dict[int, tuple[int, int]]:
    """Return each device's first start and last end, also of operations that take no time."""
    return {
        device: (int(table.start[rows].min()), int(table.end[rows].max())) for device, rows in _devices(table)
    }


def _devices(table: Operations) -> Iterator[tuple[int, slice | NDArray[np.bool_]]]:
    """Yield each device and its rows; most often there is one."""
    devices = distinct(table.device).tolist()
    for device in devices:
        yield device, table.device == device if len(devices) > 1 else slice(None)


def _joined(sets: Sequence[Intervals]) -> Intervals:
    """Return the union of merged sets."""
    some = [one for one in sets if len(one[0])] or sets
    return some[0] if len(some) == 1 else union(*map(np.concatenate, zip(*some, strict=True)))


def _covered(running: Sequence[Intervals], bounds: Sequence[tuple[int, int]]) -> Coverage:
    first, last = zip(*bounds, strict=True)
    return Coverage(
        # Negative only where the one operation ends before it starts: it takes no time.
        span=max(max(last) - min(first), 0),
        busy=length(*map(np.concatenate, zip(*running, strict=True))),
        exclusive=exclusive(*running),
    )
