"""Breakdown of GPU time: its parts, overlap of communication and compute, and what runs together."""

from __future__ import annotations

from itertools import combinations

from hpcprof.analysis.framework.outcome import Outcome, Values, columns_of, no_rows
from hpcprof.analysis.framework.text_columns import object_array
from hpcprof.analysis.gpu_time.device_time import DeviceTime, device_times
from hpcprof.profiles.timeline import Category, Timeline

PARTS = ("compute", "exposed_comm", "exposed_mem", "idle")
_SETS_OF_CLASSES = [chosen for size in (1, 2, 3) for chosen in combinations(Category, size)]


def breakdown(timeline: Timeline) -> Outcome:
    """Divide the span of the GPU's work, from the start of the first operation to the end of the last one.

    Compute is the union of the compute kernels. Exposed communication is the communication outside compute,
    exposed memory the copies and sets outside both, and idle the rest. With several devices the figures are
    sums over devices. ``*_pct`` are percent of the span, with two decimals.
    """
    file = timeline.origin.path.name
    devices = device_times(timeline)
    if not devices:
        return no_rows(f"no CUDA kernels or memory operations in {file}")
    row = _divided(devices)
    return Outcome(columns_of([row]), "" if row["span_ns"] else f"the operations in {file} take no time")


def device_breakdown(timeline: Timeline) -> Outcome:
    """Divide the span of the work of each device, as `breakdown` does for all devices of a rank."""
    file = timeline.origin.path.name
    devices = device_times(timeline)
    if not devices:
        return no_rows(f"no CUDA kernels or memory operations in {file}")
    idle = [device.device for device in devices if not device.span]
    why = f"the operations on device {', '.join(map(str, idle))} of {file} take no time" if idle else ""
    return Outcome(columns_of([{"device": one.device} | _divided([one]) for one in devices]), why)


def _divided(devices: list[DeviceTime]) -> dict[str, int | float | None]:
    """Return the span of devices, its parts, and their percent of it; sums over the devices."""
    span = sum(device.span for device in devices)
    parts = {name: sum(times) for name, *times in zip(PARTS, *map(_parts, devices), strict=True)}
    row: dict[str, int | float | None] = {"span_ns": span}
    row |= {f"{name}_ns": time for name, time in parts.items()}
    row |= {f"{name}_pct": round(100 * time / span, 2) if span else None for name, time in parts.items()}
    return row


def _parts(device: DeviceTime) -> tuple[int, ...]:
    """Return the time of each of `PARTS`; they add up to the span."""
    return (
        device.running([Category.COMP]),
        device.running([Category.COMM], without=[Category.COMP]),
        device.running([Category.MEM], without=[Category.COMP, Category.COMM]),
        device.span - device.busy,
    )


def overlap(timeline: Timeline) -> Outcome:
    r"""Return how much of the communication time has compute running at the same time.

    ``overlap_pct`` is 100 · \|union(comp) ∩ union(comm)\| / \|union(comm)\| with two decimals, from the
    sums over devices. It is None, with a reason, if there is no communication.
    """
    file = timeline.origin.path.name
    if not len(timeline.kernels) and not len(timeline.graphs):
        return no_rows(f"no CUDA kernels in {file}")
    devices = device_times(timeline)
    communication = sum(device.running([Category.COMM]) for device in devices)
    overlapped = sum(device.running([Category.COMM, Category.COMP]) for device in devices)
    share = round(100 * overlapped / communication, 2) if communication else None
    rows: dict[str, Values] = {
        "comm_ns": [communication],
        "overlapped_ns": [overlapped],
        "overlap_pct": [share],
    }
    return Outcome(rows, "" if communication else f"no communication kernels in {file}")


def kernel_classes(timeline: Timeline) -> Outcome:
    """Divide the busy time into exclusive buckets, one for each set of classes that run together.

    ``classes`` joins them by ``+``: in ``comp+comm``, compute and communication run and memory operations do
    not. ``pct`` is percent of the busy time, with two decimals. A set that never occurs has no row. With
    several devices the figures are sums over devices. The buckets are those of HolisticTraceAnalysis'
    kernel breakdown.
    """
    file = timeline.origin.path.name
    devices = device_times(timeline)
    if not devices:
        return no_rows(f"no CUDA kernels or memory operations in {file}")
    total = {
        chosen: sum(device.running(chosen, without=set(Category) - set(chosen)) for device in devices)
        for chosen in _SETS_OF_CLASSES
    }
    busy = sum(total.values())
    present = {chosen: time for chosen, time in total.items() if time}
    if not present:
        return no_rows(f"the operations in {file} take no time")
    rows: dict[str, Values] = {
        "classes": object_array("+".join(c.name.lower() for c in chosen) for chosen in present),
        "ns": list(present.values()),
        "pct": [round(100 * time / busy, 2) for time in present.values()],
    }
    return Outcome(rows)
