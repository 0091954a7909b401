"""Breakdown of GPU time: its parts, overlap of communication and compute, and what runs together."""

import math
from itertools import combinations

import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, Values, columns_of, no_rows, none_in
from hpcprof.analysis.gpu_time.device_time import DeviceTime, device_times
from hpcprof.analysis.steps.streams import NEVER, launch_starts, streams, why_no_launches
from hpcprof.profiles.columns.unique import object_array
from hpcprof.profiles.timeline import PARTS_OF_WORK, Category, Ints, Timeline

PARTS = ("compute", "exposed_comm", "exposed_mem", "idle")
_SETS_OF_CLASSES = [chosen for size in (1, 2, 3) for chosen in combinations(PARTS_OF_WORK, size)]


def breakdown(timeline: Timeline) -> Outcome:
    """Divide the span of the GPU's work, from the start of the first operation to the end of the last one.

    Compute is the union of the compute kernels. Exposed communication is the communication outside compute,
    exposed memory the copies and sets outside both, and idle the rest. With several devices the figures are
    sums over devices. ``*_pct`` are percent of the span, with two decimals.
    """
    file = timeline.origin.path.name
    devices = device_times(timeline)
    if not devices:
        return none_in(timeline, "CUDA kernels or memory operations")
    row = _account_row(devices)
    reason = f"the times are sums over {len(devices)} devices" if len(devices) > 1 else ""
    return Outcome(columns_of([row]), reason if row["span_ns"] else f"the operations in {file} take no time")


def device_breakdown(timeline: Timeline) -> Outcome:
    """Divide the span of the work of each device, as `breakdown` does for all devices of a rank."""
    file = timeline.origin.path.name
    devices = device_times(timeline)
    if not devices:
        return none_in(timeline, "CUDA kernels or memory operations")
    idle = [device.device for device in devices if not device.span]
    reason = f"the operations on device {', '.join(map(str, idle))} of {file} take no time" if idle else ""
    return Outcome(
        columns_of([{"device": device.device} | _account_row([device]) for device in devices]), reason
    )


def _account_row(devices: list[DeviceTime]) -> dict[str, int | float | None]:
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
    r"""Return the part of the communication time during which compute runs.

    ``overlap_pct`` is 100 · \|union(comp) ∩ union(comm)\| / \|union(comm)\| with two decimals, from the
    sums over devices. It is None, with a reason, if there is no communication.
    """
    file = timeline.origin.path.name
    if not len(timeline.kernels) and not len(timeline.graphs):
        return none_in(timeline, "CUDA kernels")
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
        return none_in(timeline, "CUDA kernels or memory operations")
    total = {
        chosen: sum(device.running(chosen, without=set(PARTS_OF_WORK) - set(chosen)) for device in devices)
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


MAX_KERNEL_WAIT_NS = 30_000
"""Limit of a gap that is the cost of launching one kernel after another.

HolisticTraceAnalysis documents 30 ns, but its code compares microseconds.
"""

CAUSES = ("host_wait", "kernel_wait", "other")


def idle(timeline: Timeline) -> Outcome:
    """Divide the gaps between the operations of each stream by cause.

    A gap is ``host_wait`` if the next operation's launch call began only after the previous operation had
    ended. Otherwise it is ``kernel_wait`` if it is shorter than `MAX_KERNEL_WAIT_NS`, and ``other`` if not.
    Each stream of a device has a row per cause. ``share_pct`` is percent of the stream's gaps with two
    decimals, None if the stream is never idle. A gap next to an operation whose launch call was not recorded
    is left out, because its cause is unknown.
    """
    file = timeline.origin.path.name
    if reason := why_no_launches(timeline):
        return no_rows(reason)
    (start, end), launched = timeline.of_operations("start", "end"), launch_starts(timeline)
    totals: dict[tuple[int, int], Ints] = {}
    gaps = used_gaps = 0
    for device, stream, rows in streams(timeline):
        launch = launched[rows]
        has_launch = (launch[1:] != NEVER) & (launch[:-1] != NEVER)
        ended = np.maximum.accumulate(end[rows])[:-1]
        length = np.maximum(start[rows][1:] - ended, 0) * has_launch
        late = launch[1:] > ended
        short = length < MAX_KERNEL_WAIT_NS
        gaps, used_gaps = gaps + len(has_launch), used_gaps + int(np.count_nonzero(has_launch))
        if has_launch.any():
            total = totals.setdefault((device, stream), np.zeros(len(CAUSES), np.int64))
            host, kernel = length[late].sum(), length[short & ~late].sum()
            total += (host, kernel, length.sum() - host - kernel)
    if not gaps:
        return no_rows(f"no stream of {file} has two operations")
    left_out = (
        f"{gaps - used_gaps} of {gaps} gaps in {file} are left out, because a launch call was not recorded"
    )
    rows_of_devices = [
        {
            "device": device,
            "stream": stream,
            "cause": cause,
            "idle_ns": int(ns),
            "share_pct": round(100 * int(ns) / int(total.sum()), 2) if total.any() else None,
        }
        for (device, stream), total in totals.items()
        for cause, ns in zip(CAUSES, total, strict=True)
    ]
    return Outcome(columns_of(rows_of_devices), left_out if used_gaps < gaps else "")


def queue_length(timeline: Timeline) -> Outcome:
    """Summarize the length of each stream's queue: the operations that are launched but have not started.

    The length increases when the launch call of an operation begins, and decreases when the operation
    starts on the GPU. ``count`` is the number of these changes. The other columns are statistics of the
    length after each change, not weighted by time, as in HolisticTraceAnalysis' queue length summary.
    ``stddev`` is that of the sample (n - 1); percentiles interpolate linearly. Operations whose launch call
    was not recorded do not count.
    """
    if reason := why_no_launches(timeline):
        return no_rows(reason)
    (begun,), launched = timeline.of_operations("start"), launch_starts(timeline)
    rows = []
    for device, stream, members in streams(timeline):
        launch, start = launched[members], begun[members]
        has_launch = launch != NEVER
        if not has_launch.any():
            continue
        length, count = _lengths(launch[has_launch], start[has_launch])
        n, mean = int(count.sum()), int(length @ count) / int(count.sum())
        rows.append(
            {
                "device": device,
                "stream": stream,
                "count": n,
                "mean": round(mean, 2),
                "stddev": round(math.sqrt(float((length - mean) ** 2 @ count) / (n - 1)), 2),
                "min": int(length[0]),
                **{f"p{percent}": _percentile(length, count, percent) for percent in (25, 50, 75)},
                "max": int(length[-1]),
            }
        )
    return Outcome(columns_of(rows))


def _lengths(launched: Ints, begun: Ints) -> tuple[Ints, Ints]:
    """Return the lengths of a queue, ascending, and the number of changes after which it has each."""
    # Twice a time stamp does not overflow (`LATEST`). At equal times the launch comes first.
    changes = np.concatenate((launched, begun))
    changes *= 2
    changes[len(launched) :] += 1
    # Both parts are nearly sorted, and a stable sort merges sorted runs quickly.
    changes.sort(kind="stable")
    changes &= 1
    length = np.cumsum(1 - 2 * changes.astype(np.int8), dtype=np.int32)
    length.sort()
    first = np.flatnonzero(np.append(True, length[1:] != length[:-1]))
    return length[first].astype(np.int64), np.diff(first, append=len(length))


def _percentile(length: Ints, count: Ints, percent: int) -> float:
    place = percent / 100 * (int(count.sum()) - 1)
    below, above = length[np.searchsorted(np.cumsum(count), (int(place), math.ceil(place)), side="right")]
    return float(below + (above - below) * (place - int(place)))
