"""How much slower a kernel runs while communication runs, within one run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.slowdown.kernel_instances import OUTSIDE, KernelInstances, place_kernels
from hpcprof.analysis.statistics.confidence_intervals import (
    RATIO_DIGITS,
    percentile_interval,
    resampled_medians,
)
from hpcprof.analysis.statistics.grouped import Floats, sort_within_groups
from hpcprof.profiles.timeline import Category, Ints, Timeline

MIN_LAUNCHES = 5
"""A comparison needs at least this many launches on each side."""
TOTAL = "(total)"
"""The name in the row over all kernels."""


_SEED = 20_260_101


def slowdown(timeline: Timeline) -> Outcome:
    """Compare the kernels that communication overlaps with the same kernels running alone.

    Kernels are the same if they have the same name, grid and block and were launched in the same phase of a
    step. A phase counts if it has at least 5 launches on each side. If several phases count, each side's
    median is the mean of their medians, weighted by the number of overlapped launches. ``slowdown`` is the
    ratio of both medians; its 95 % interval is the percentile interval of 2000 bootstrap resamples within
    each phase and side. The first row is the total: the time of all these overlapped kernels over the time
    that they would have taken alone. The other rows are sorted by the time lost.
    """
    file = timeline.origin.path.name
    if not len(timeline.kernels):
        return no_rows(f"no CUDA kernels in {file}")
    if not (timeline.kernels.category == Category.COMM).any():
        return no_rows(f"no communication kernels in {file}")
    placed = place_kernels(timeline)
    if not placed.overlapped.any():
        return no_rows(f"no compute kernel of {file} is covered by communication to 90 % or more")
    rows = _compare(placed)
    if not rows:
        return no_rows(
            f"no kernel of {file} ran at least {MIN_LAUNCHES} times while communication ran and at least "
            f"{MIN_LAUNCHES} times alone, in the same phase"
        )
    return Outcome(pd.DataFrame(rows))


def _compare(placed: KernelInstances) -> list[dict[str, Any]]:
    """Return the row of the total and those of the kernels; none if nothing can be compared."""
    random = np.random.default_rng(_SEED)
    kernels: dict[int, _KernelTimes] = {}
    for shape, overlapped, alone in _strata(placed):
        sides = _kernel_times(overlapped, alone, random)
        kernels[shape] = kernels[shape] + sides if shape in kernels else sides
    if not kernels:
        return []
    total = reduce(_KernelTimes.__add__, kernels.values())
    rows = [{"name": TOTAL, "grid": "", "block": ""} | total.row()]
    columns = placed.shapes.columns()
    for shape in sorted(kernels, key=lambda shape: -kernels[shape].lost):
        rows.append({key: column[shape] for key, column in columns.items()} | kernels[shape].row())
    return rows


def _strata(placed: KernelInstances) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield each shape with its overlapped and its alone durations, ascending, once per phase.

    Phases with too few launches on a side are left out.
    """
    phases = int(placed.phase.max(initial=OUTSIDE)) + 2
    cell = placed.shape * phases + (placed.phase - OUTSIDE)
    size = len(placed.shapes) * phases
    compared = (np.bincount(cell[placed.overlapped], minlength=size) >= MIN_LAUNCHES) & (
        np.bincount(cell[placed.alone], minlength=size) >= MIN_LAUNCHES
    )
    rows = np.flatnonzero(compared[cell] & (placed.overlapped | placed.alone))
    sides, duration, ends = sort_within_groups(
        2 * cell[rows] + placed.overlapped[rows], placed.duration[rows]
    )
    bounds = [0, *ends.tolist()]
    # The groups alternate: first the kernels that ran alone, then the overlapped ones.
    for i in range(0, len(sides), 2):
        alone, overlapped = (duration[bounds[side] : bounds[side + 1]] for side in (i, i + 1))
        yield int(sides[i]) // 2 // phases, overlapped, alone


@dataclass(frozen=True)
class _KernelTimes:
    """The time of overlapped kernels, and the time of as many of the same kernels alone, in ns.

    Both have shape (1 + RESAMPLES,): the measured value comes first, then the resamples.
    """

    overlapped_n: int
    alone_n: int
    overlapped: Floats
    alone: Floats

    def __add__(self, other: _KernelTimes) -> _KernelTimes:
        """Return the times of both together."""
        return _KernelTimes(
            self.overlapped_n + other.overlapped_n,
            self.alone_n + other.alone_n,
            self.overlapped + other.overlapped,
            self.alone + other.alone,
        )

    @property
    def lost(self) -> float:
        """How much longer the overlapped kernels took, in ns."""
        return float(self.overlapped[0] - self.alone[0])

    def row(self) -> dict[str, Any]:
        """Return the columns ``alone_n`` to ``ci_high``."""
        ratio = self.overlapped / self.alone
        low, high = percentile_interval(ratio[1:])
        return {
            "alone_n": self.alone_n,
            "alone_med_ns": round(float(self.alone[0]) / self.overlapped_n, 1),
            "overlapped_n": self.overlapped_n,
            "overlapped_med_ns": round(float(self.overlapped[0]) / self.overlapped_n, 1),
            "slowdown": round(float(ratio[0]), RATIO_DIGITS),
            "ci_low": round(low, RATIO_DIGITS),
            "ci_high": round(high, RATIO_DIGITS),
        }


def _kernel_times(overlapped: Ints, alone: Ints, random: np.random.Generator) -> _KernelTimes:
    n = len(overlapped)
    return _KernelTimes(n, len(alone), *(n * _medians(side, random) for side in (overlapped, alone)))


def _medians(ordered: Ints, random: np.random.Generator) -> Floats:
    n = len(ordered)
    median = ordered[[(n - 1) // 2, n // 2]].mean()
    return np.append(median, resampled_medians(ordered, random))
