"""GPU kernels by name."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, nothing
from hpcprof.analysis.summaries.grouped_statistics import by_text, summarize, texts
from hpcprof.profiles.timeline import Category, Timeline


def kernels(timeline: Timeline) -> Outcome:
    """Summarize the kernels' durations by demangled name, as ``nsys stats`` does in cuda_gpu_kern_sum.

    Rows are ordered by total time. ``class`` is ``comp``, ``comm`` or ``mem``.
    """
    table = timeline.kernels
    if not len(table):
        return nothing(f"no CUDA kernels in {timeline.origin.path.name}")
    names, group = by_text(timeline, table.name)
    summary = summarize(group, table.end - table.start)
    category = np.empty(len(names), np.int64)
    category[group] = table.category
    rows = pd.DataFrame(
        {
            "name": texts(names),
            "instances": summary.count,
            "total_ns": summary.total,
            "time_pct": summary.shares(),
            **summary.columns(),
            "class": texts(Category(c).name.lower() for c in category.tolist()),
        }
    )
    return Outcome(rows)
