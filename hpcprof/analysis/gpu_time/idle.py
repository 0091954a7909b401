"""The time in which a stream of the GPU is idle, by cause."""

from __future__ import annotations

import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, columns_of, no_rows
from hpcprof.analysis.steps.streams import NEVER, OperationTimes, launch_starts, streams, why_no_launches
from hpcprof.profiles.timeline import Ints, Timeline

KERNEL_WAIT_NS = 30_000
"""A shorter gap is the cost of launching one kernel after another.

HolisticTraceAnalysis documents 30 ns, but its code compares microseconds.
"""

CAUSES = ("host_wait", "kernel_wait", "other")


def idle(timeline: Timeline) -> Outcome:
    """Divide the gaps between the operations of each stream by cause.

    A gap is ``host_wait`` if the next operation's launch call began only after the previous operation had
    ended. Otherwise it is ``kernel_wait`` if it is shorter than `KERNEL_WAIT_NS`, and ``other`` if not. Each
    stream of a device has a row per cause. ``share_pct`` is percent of the stream's gaps with two decimals,
    None if the stream is never idle. A gap next to an operation whose launch call was not recorded is left
    out, because its cause is unknown.
    """
    file = timeline.origin.path.name
    if reason := why_no_launches(timeline):
        return no_rows(reason)
    operations, launched = timeline.columns_of_operations(OperationTimes), launch_starts(timeline)
    totals: dict[tuple[int, int], Ints] = {}
    gaps = used = 0
    for device, stream, rows in streams(timeline):
        launch = launched[rows]
        known = (launch[1:] != NEVER) & (launch[:-1] != NEVER)
        ended = np.maximum.accumulate(operations.end[rows])[:-1]
        length = np.maximum(operations.start[rows][1:] - ended, 0) * known
        late = launch[1:] > ended
        short = length < KERNEL_WAIT_NS
        gaps, used = gaps + len(known), used + int(np.count_nonzero(known))
        if known.any():
            total = totals.setdefault((device, stream), np.zeros(len(CAUSES), np.int64))
            host, kernel = length[late].sum(), length[short & ~late].sum()
            total += (host, kernel, length.sum() - host - kernel)
    if not gaps:
        return no_rows(f"no stream of {file} has two operations")
    left_out = f"{gaps - used} of {gaps} gaps in {file} are left out, because a launch call was not recorded"
    found = [
        {
            "device": device,
            "stream": stream,
            "cause": cause,
            "idle_ns": int(ns),
            "share_pct": _share(int(ns), int(total.sum())),
        }
        for (device, stream), total in totals.items()
        for cause, ns in zip(CAUSES, total, strict=True)
    ]
    return Outcome(columns_of(found), left_out if used < gaps else "")


def _share(time: int, whole: int) -> float | None:
    return round(100 * time / whole, 2) if whole else None
