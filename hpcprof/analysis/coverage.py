"""Which classes of operations cover each device's time, alone and together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hpcprof.analysis.intervals import Intervals, exclusive, length, union
from hpcprof.analysis.once import once
from hpcprof.numbering import distinct
from hpcprof.timeline import Category, Ints, Operations, Table, Timeline


@dataclass(frozen=True)
class _Work(Table):
    """What covers a device's time."""

    start: Ints
    end: Ints
    device: Ints
    category: Ints


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
    operations = timeline.columns_of_operations(_Work)
    devices = distinct(operations.device)
    if len(devices) == 1:
        return [_covered(operations)]
    return [_covered(operations.take(operations.device == device)) for device in devices]


def of_category(operations: Operations | _Work, category: Category, device: int | None = None) -> Intervals:
    """Return the merged intervals of the operations of one category, of all devices or one."""
    chosen = operations.category == category
    if device is not None:
        chosen &= operations.device == device
    return union(operations.start[chosen], operations.end[chosen])


def _covered(operations: _Work) -> Coverage:
    return Coverage(
        # Negative only where the one operation ends before it starts: it takes no time.
        span=max(int(operations.end.max()) - int(operations.start.min()), 0),
        busy=length(operations.start, operations.end),
        exclusive=exclusive(*(of_category(operations, category) for category in Category)),
    )
