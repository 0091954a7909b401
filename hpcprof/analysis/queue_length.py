"""How far the host runs ahead of each stream of the GPU."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.analysis.outcome import Outcome, nothing
from hpcprof.analysis.streams import NO_CALL, Extent, launch_calls, streams
from hpcprof.timeline import Ints, Timeline


def queue_length(timeline: Timeline) -> Outcome:
    """Summarize each stream's queue: operations whose launch call has begun and that have not.

    The length changes twice an operation, up when its call begins and down when it starts on the
    GPU; ``count`` is the number of changes, and the other columns are statistics of the length after
    each (not weighted by time), as in HolisticTraceAnalysis' queue length summary. ``stddev`` is the
    sample's (n - 1); percentiles interpolate linearly. Operations whose launch call was not recorded
    do not count.
    """
    file = timeline.origin.path.name
    operations = timeline.columns_of_operations(Extent)
    if not len(operations):
        return nothing(f"no CUDA kernels or memory operations in {file}")
    call = launch_calls(timeline)
    if np.all(call == NO_CALL):
        return nothing(f"no operation of {file} has a recorded launch call")
    rows = []
    for device, stream, everything in streams(timeline):
        members = everything[call[everything] != NO_CALL]
        if not len(members):
            continue
        length = _lengths(np.concatenate((timeline.calls.start[call[members]], operations.start[members])))
        quartiles = np.percentile(length, (25, 50, 75))
        rows.append(
            {
                "device": device,
                "stream": stream,
                "count": len(length),
                "mean": round(float(length.mean()), 2),
                "stddev": round(float(length.std(ddof=1)), 2),
                "min": int(length.min()),
                **dict(zip(("p25", "p50", "p75"), quartiles.tolist(), strict=True)),
                "max": int(length.max()),
            }
        )
    return Outcome(pd.DataFrame(rows))


def _lengths(time: Ints) -> NDArray[np.int32]:
    """Return the length of a queue after each change; all launches stand before all starts."""
    change = np.repeat(np.array((1, -1), np.int8), len(time) // 2)
    # Where both happen at once, the launch comes first: the order is stable.
    return np.cumsum(change[np.argsort(time, kind="stable")], dtype=np.int32)
