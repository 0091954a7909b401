"""Memory copies and sets by operation."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, nothing
from hpcprof.analysis.summaries.grouped_statistics import by_text, summarize, texts
from hpcprof.profiles.timeline import Timeline


def memops(timeline: Timeline) -> Outcome:
    """Summarize the durations and sizes of memory operations.

    As ``nsys stats`` does in cuda_gpu_mem_time_sum and cuda_gpu_mem_size_sum. ``total_bytes`` is None
    where an operation's size is unknown. Rows are ordered by total time.
    """
    table = timeline.memops
    if not len(table):
        return nothing(f"no memory operations in {timeline.origin.path.name}")
    names, group = by_text(timeline, table.name)
    summary = summarize(group, table.end - table.start)
    total = np.zeros(len(names), np.int64)
    np.add.at(total, group, table.bytes)
    unknown = set(group[table.bytes < 0].tolist())
    sizes = [None if i in unknown else size for i, size in enumerate(total.tolist())]
    rows = pd.DataFrame(
        {
            "operation": texts(names),
            "count": summary.count,
            "total_ns": summary.total,
            "time_pct": summary.shares(),
            **summary.columns(),
            "total_bytes": pd.Series(sizes, dtype="object"),
        }
    )
    return Outcome(rows)
