"""GPU kernels by name, grid and block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.memoize import once
from hpcprof.analysis.framework.outcome import Outcome, nothing
from hpcprof.analysis.summaries.grouped_statistics import by_text, summarize, texts
from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.profiles.timeline import Category, Ints, Timeline


@dataclass(frozen=True)
class Shapes:
    """The distinct kernels by name, grid and block, in ascending order, as columns of text."""

    name: pd.Series[Any]
    grid: pd.Series[Any]
    block: pd.Series[Any]

    def __len__(self) -> int:
        return len(self.name)

    def columns(self) -> dict[str, Any]:
        """Return the columns ``name``, ``grid`` and ``block`` of a table."""
        return {"name": self.name, "grid": self.grid, "block": self.block}


@once
def by_shape(timeline: Timeline) -> tuple[Shapes, Ints]:
    """Return name, grid and block of the distinct kernels, and the number of each row of kernels."""
    table = timeline.kernels
    names, name = by_text(timeline, table.name)
    keys, group = numbered_rows(name, *table.grid.T, *table.block.T)
    shapes = Shapes(
        texts(names[keys[:, 0]]), texts(_dimensions(keys[:, 1:4])), texts(_dimensions(keys[:, 4:7]))
    )
    return shapes, group


def kernels_by_shape(timeline: Timeline) -> Outcome:
    """Summarize the kernels as `kernels` does, apart for each grid and block.

    As ``nsys stats`` does in cuda_gpu_kern_gb_sum. ``grid`` and ``block`` are x, y and z, joined by
    spaces. Rows are ordered by total time.
    """
    table = timeline.kernels
    if not len(table):
        return nothing(f"no CUDA kernels in {timeline.origin.path.name}")
    shapes, group = by_shape(timeline)
    summary = summarize(group, table.end - table.start)
    category = np.empty(len(shapes), np.int64)
    category[group] = table.category
    rows = pd.DataFrame(
        {
            "name": shapes.name,
            "instances": summary.count,
            "total_ns": summary.total,
            "time_pct": summary.shares(),
            **summary.columns(),
            "class": texts(Category(c).name.lower() for c in category.tolist()),
            "grid": shapes.grid,
            "block": shapes.block,
        }
    )
    return Outcome(rows)


def _dimensions(sizes: Ints) -> list[str]:
    return [" ".join(map(str, size)) for size in sizes.tolist()]
