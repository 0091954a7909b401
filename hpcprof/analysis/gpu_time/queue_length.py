"""The queue of each stream of the GPU: how far the host runs ahead."""

from __future__ import annotations

import math

import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, columns_of, no_rows
from hpcprof.analysis.steps.streams import NEVER, OperationTimes, launch_starts, streams, why_no_launches
from hpcprof.profiles.timeline import Ints, Timeline


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
    operations, launched = timeline.columns_of_operations(OperationTimes), launch_starts(timeline)
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
    """Return a percentile of the lengths, interpolated linearly between neighbours."""
    place = percent / 100 * (int(count.sum()) - 1)
    below, above = length[np.searchsorted(np.cumsum(count), (int(place), math.ceil(place)), side="right")]
    return float(below + (above - below) * (place - int(place)))
