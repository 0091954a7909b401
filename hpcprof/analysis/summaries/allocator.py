"""What the program's memory allocator held."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, nothing
from hpcprof.profiles.timeline import HOST, Ints, Timeline


def memory_usage(timeline: Timeline) -> Outcome:
    """Summarize each device's allocated and reserved bytes after every allocation and release.

    ``count`` is the number of these; the statistics are over them and not weighted by time.
    Percentiles are values that occurred (the lower of two neighbours). ``device`` is ``host`` for the
    host's memory, of which PyTorch reserves none.
    """
    table, file = timeline.allocations, timeline.origin.path.name
    if not len(table):
        return nothing(
            f"no allocations in {file}: the PyTorch profiler records them with profile_memory=True"
        )
    rows = []
    for device in np.unique(table.device).tolist():
        mine = table.take(table.device == device)
        row = {"device": "host" if device == HOST else str(device), "count": len(mine)}
        rows.append(row | _statistics("allocated", mine.allocated) | _statistics("reserved", mine.reserved))
    return Outcome(pd.DataFrame(rows))


def _statistics(name: str, held: Ints) -> dict[str, int]:
    p50, p95 = np.percentile(held, (50, 95), method="lower").tolist()
    return {
        f"{name}_min_bytes": int(held.min()),
        f"{name}_mean_bytes": round(float(held.mean())),
        f"{name}_p50_bytes": p50,
        f"{name}_p95_bytes": p95,
        f"{name}_max_bytes": int(held.max()),
    }
