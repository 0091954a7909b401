"""How far the host runs ahead of each stream of the GPU."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.analysis.outcome import Outcome, nothing
from hpcprof.analysis.streams import NEVER, extents, launch_starts, streams
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
    operations = extents(timeline)
    if not len(operations):
        return nothing(f"no CUDA kernels or memory operations in {file}")
    launched = launch_starts(timeline)
    if np.all(launched == NEVER):
        return nothing(f"no operation of {file} has a recorded launch call")
    rows = []
    for device, stream, everything in streams(timeline):
        members = everything[launched[everything] != NEVER]
        if not len(members):
            continue
        length = _lengths(launched[members], operations.start[members])
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


def _lengths(launched: Ints, begun: Ints) -> NDArray[np.int32]:
    """Return the length of a queue after each change."""
    # Twice a stamp does not overflow (`LATEST`). Where both happen at once, the launch comes first.
    changes = np.concatenate((2 * launched, 2 * begun + 1))
    # Both are nearly in order, and a stable sort merges what is in order.
    changes.sort(kind="stable")
    change = 1 - 2 * (changes & 1).astype(np.int8)
    return np.cumsum(change, dtype=np.int32)
