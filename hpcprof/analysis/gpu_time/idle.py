"""Why a stream of the GPU waits."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.steps.streams import NEVER, Extent, launch_starts, streams
from hpcprof.profiles.timeline import Ints, Timeline

KERNEL_WAIT_NS = 30_000
"""A gap below this is what launching one kernel after the other costs.

HolisticTraceAnalysis' documentation says 30 ns, its code compares microseconds.
"""

CAUSES = ("host_wait", "kernel_wait", "other")


def idle(timeline: Timeline) -> Outcome:
    """Divide the gaps between a stream's operations by what they waited for.

    A gap is ``host_wait`` where the next operation's launch call began only after the previous
    operation had ended; else ``kernel_wait`` below `KERNEL_WAIT_NS`; else ``other``. A stream has a row
    for each cause. ``share_pct`` is percent of the stream's gaps, two decimals, None where it never
    waits. Streams of one number on several devices are added. A gap beside an operation whose launch
    call was not recorded is left out, because its cause cannot be told.
    """
    file = timeline.origin.path.name
    operations = timeline.columns_of_operations(Extent)
    if not len(operations):
        return no_rows(f"no CUDA kernels or memory operations in {file}")
    launched = launch_starts(timeline)
    if np.all(launched == NEVER):
        return no_rows(f"no operation of {file} has a recorded launch call")
    totals: dict[int, Ints] = {}
    gaps = used = 0
    for _, stream, rows in streams(timeline):
        launch = launched[rows]
        known = (launch[1:] != NEVER) & (launch[:-1] != NEVER)
        ended = np.maximum.accumulate(operations.end[rows])[:-1]
        length = np.maximum(operations.start[rows][1:] - ended, 0) * known
        late = launch[1:] > ended
        short = length < KERNEL_WAIT_NS
        gaps, used = gaps + len(known), used + int(np.count_nonzero(known))
        if known.any():
            total = totals.setdefault(stream, np.zeros(len(CAUSES), np.int64))
            host, kernel = length[late].sum(), length[short & ~late].sum()
            total += (host, kernel, length.sum() - host - kernel)
    if not gaps:
        return no_rows(f"no stream of {file} has two operations")
    left_out = f"the launch calls beside {gaps - used} of {gaps} gaps in {file} were not recorded"
    table = [
        {"stream": stream, "cause": cause, "idle_ns": int(ns), "share_pct": _share(int(ns), int(total.sum()))}
        for stream, total in totals.items()
        for cause, ns in zip(CAUSES, total, strict=True)
    ]
    frame = pd.DataFrame(table, columns=["stream", "cause", "idle_ns", "share_pct"])
    return Outcome(frame.astype({"share_pct": "object"}), left_out if used < gaps else "")


def _share(time: int, whole: int) -> float | None:
    return round(100 * time / whole, 2) if whole else None
