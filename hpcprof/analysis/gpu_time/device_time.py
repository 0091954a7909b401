"""Time of each set of classes of operations on each device."""

from collections.abc import Collection, Sequence

import msgspec
import numpy as np

from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.intervals import Intervals, exclusive, length, union, union_of
from hpcprof.profiles.columns.unique import distinct
from hpcprof.profiles.timeline import PARTS_OF_WORK, Category, Operations, Timeline


class DeviceTime(msgspec.Struct, frozen=True):
    """The time of one device, in nanoseconds."""

    device: int
    """Its number in the profile."""
    span: int
    """From the start of the first operation to the end of the last one."""
    busy: int
    """The time in which any operation runs."""
    exclusive: Sequence[int]
    """The time in which exactly the classes of a bit mask run, by bit mask; the bit of a class is its value.
    """

    def running(self, wanted: Collection[Category], *, without: Collection[Category] = ()) -> int:
        """Return the time in which all ``wanted`` classes run, and none of ``without``."""
        present, absent = (sum(1 << category for category in chosen) for chosen in (wanted, without))
        return sum(
            time
            for mask, time in enumerate(self.exclusive)
            if mask & present == present and not mask & absent
        )


@computed_once
def device_times(timeline: Timeline) -> list[DeviceTime]:
    """Return the times of each device that has operations."""
    devices = sorted({device for table in _tables(timeline) for device in distinct(table.device).tolist()})
    return [_device_time(timeline, device) for device in devices]


def category_intervals(operations: Operations, category: Category, device: int | None = None) -> Intervals:
    """Return the merged intervals of the operations of one category, on one device or on all.

    Fused kernels are compute and communication.
    """
    in_category = operations.category == category
    if category in (Category.COMP, Category.COMM):
        in_category |= operations.category == Category.FUSED
    if device is not None:
        in_category &= operations.device == device
    return union(operations.start[in_category], operations.end[in_category])


def working_intervals(timeline: Timeline, category: Category, device: int | None = None) -> Intervals:
    """Return the merged intervals of all operations of one category, on one device or on all."""
    return union_of(*(category_intervals(table, category, device) for table in _tables(timeline)))


def _tables(timeline: Timeline) -> tuple[Operations, ...]:
    return timeline.kernels, timeline.memops, timeline.graphs


def _device_time(timeline: Timeline, device: int) -> DeviceTime:
    rows = [(table, table.device == device) for table in _tables(timeline) if device in table.device]
    first = min(int(table.start[part].min()) for table, part in rows)
    last = max(int(table.end[part].max()) for table, part in rows)
    merged = [working_intervals(timeline, category, device) for category in PARTS_OF_WORK]
    return DeviceTime(
        device,
        # Negative only if the single operation ends before it starts: then it takes no time.
        span=max(last - first, 0),
        busy=length(*map(np.concatenate, zip(*merged, strict=True))),
        exclusive=exclusive(*merged),
    )
