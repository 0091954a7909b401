"""GPU kernels by name, grid and block."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hpcprof.analysis.outcome import Outcome, nothing
from hpcprof.analysis.summary import by_text, summarize, texts
from hpcprof.numbering import numbered_rows
from hpcprof.timeline import Category, Ints, Timeline


def kernels_by_shape(timeline: Timeline) -> Outcome:
    """Summarize the kernels as `kernels` does, apart for each grid and block.

    As ``nsys stats`` does in cuda_gpu_kern_gb_sum. ``grid`` and ``block`` are x, y and z, joined by
    spaces. Rows are ordered by total time.
    """
    table = timeline.kernels
    if not len(table):
        return nothing(f"no CUDA kernels in {timeline.origin.path.name}")
    names, name = by_text(timeline, table.name)
    keys, group = numbered_rows(name, *table.grid.T, *table.block.T)
    summary = summarize(group, table.end - table.start, len(keys))
    category = np.empty(len(keys), np.int64)
    category[group] = table.category
    rows = pd.DataFrame(
        {
            "name": texts(names[keys[:, 0]]),
            "instances": summary.count,
            "total_ns": summary.total,
            "time_pct": summary.shares(),
            **summary.columns(),
            "class": texts(Category(c).name.lower() for c in category.tolist()),
            "grid": texts(_dimensions(keys[:, 1:4])),
            "block": texts(_dimensions(keys[:, 4:7])),
        }
    )
    return Outcome(rows.iloc[np.lexsort((summary.count, -summary.total))].reset_index(drop=True))


def _dimensions(sizes: Ints) -> list[str]:
    return [" ".join(map(str, size)) for size in sizes.tolist()]
