"""Which classes of operations cover each device's time, alone and together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from hpcprof.analysis.framework.memoize import once
from hpcprof.profiles.columns.intervals import Intervals, exclusive, length, union
from hpcprof.profiles.columns.unique import distinct
from hpcprof.profiles.timeline import Category, Operations, Timeline


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
    tables: list[Operations] = [timeline.kernels, timeline.memops, timeline.graphs]
    devices = sorted({device for table in tables for device in distinct(table.device).tolist()})
    if len(devices) == 1:
        return [_covered(tables)]
    return [_covered([table.take(table.device == device) for table in tables]) for device in devices]


def of_category(operations: Operations, category: Category, device: int | None = None) -> Intervals:
    """Return the merged intervals of the operations of one category, of all devices or one."""
    chosen = operations.category == category
    if device is not None:
        chosen &= operations.device == device
    return union(operations.start[chosen], operations.end[chosen])


def _covered(tables: Sequence[Operations]) -> Coverage:
    """Return what covers the time of one device, whose operations stand in several tables."""
    used = [table for table in tables if len(table)]
    first, last = min(int(table.start.min()) for table in used), max(int(table.end.max()) for table in used)
    running = [_joined([of_category(table, category) for table in used]) for category in Category]
    return Coverage(
        # Negative only where the one operation ends before it starts: it takes no time.
        span=max(last - first, 0),
        busy=length(*map(np.concatenate, zip(*running, strict=True))),
        exclusive=exclusive(*running),
    )


def _joined(sets: Sequence[Intervals]) -> Intervals:
    """Return the union of merged sets; most often at most one of them covers anything."""
    some = [one for one in sets if len(one[0])] or sets[:1]
    return some[0] if len(some) == 1 else union(*map(np.concatenate, zip(*some, strict=True)))
