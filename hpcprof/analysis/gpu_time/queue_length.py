"""How far the host runs ahead of each stream of the GPU."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.steps.streams import NEVER, Extent, launch_starts, streams
from hpcprof.profiles.timeline import Ints, Timeline


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
        return no_rows(f"no CUDA kernels or memory operations in {file}")
    launched = launch_starts(timeline)
    if np.all(launched == NEVER):
        return no_rows(f"no operation of {file} has a recorded launch call")
    rows = []
    for device, stream, members in streams(timeline):
        launch, start = launched[members], operations.start[members]
        known = launch != NEVER
        if not known.any():
            continue
        length, count = _lengths(launch[known], start[known])
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
    return Outcome(pd.DataFrame(rows))


def _lengths(launched: Ints, begun: Ints) -> tuple[Ints, Ints]:
    """Return the lengths that a queue has, ascending, and after how many changes it has each."""
    # Twice a stamp does not overflow (`LATEST`). Where both happen at once, the launch comes first.
    changes = np.concatenate((launched, begun))
    changes *= 2
    changes[len(launched) :] += 1
    # Both are nearly in order, and a stable sort merges what is in order.
    changes.sort(kind="stable")
    changes &= 1
    length = np.cumsum(1 - 2 * changes.astype(np.int8), dtype=np.int32)
    length.sort()
    first = np.flatnonzero(np.append(True, length[1:] != length[:-1]))
    return length[first].astype(np.int64), np.diff(first, append=len(length))


def _percentile(length: Ints, count: Ints, percent: int) -> float:
    """Interpolate linearly between the two lengths next to a place in all of them."""
    place = percent / 100 * (int(count.sum()) - 1)
    below, above = length[np.searchsorted(np.cumsum(count), (int(place), math.ceil(place)), side="right")]
    return float(below + (above - below) * (place - int(place)))
