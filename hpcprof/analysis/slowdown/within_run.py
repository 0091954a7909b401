"""How much slower a kernel runs beside communication, within one run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.slowdown.kernel_instances import NONE, Instances, instances
from hpcprof.analysis.statistics.confidence_intervals import (
    RATIO_DIGITS,
    percentile_interval,
    resampled_medians,
)
from hpcprof.analysis.statistics.grouped import Floats, sort_within_groups
from hpcprof.profiles.timeline import Category, Ints, Timeline

FEWEST = 5
"""Fewer kernels than these on a side give no row."""
TOTAL = "(total)"
"""Stands for the name in the row over all kernels."""


_SEED = 20_260_101


def slowdown(timeline: Timeline) -> Outcome:
    """Compare the kernels that communication overlaps with the same kernels running alone.

    The same kernel is the same name, grid and block, launched in the same phase of a step. With two or
    more phases, each side's median is the mean of the phases' medians, weighted by the number of
    overlapped kernels in the phase. ``slowdown`` is the ratio of the two medians, with the 95 % percentile
    interval of 2000 bootstrap resamples inside each phase and side. A phase counts from 5 kernels a side
    on. The first row is the total: what all these overlapped kernels took over what they would have taken
    alone. The other rows are ordered by the time lost.
    """
    file = timeline.origin.path.name
    if not len(timeline.kernels):
        return no_rows(f"no CUDA kernels in {file}")
    if not (timeline.kernels.category == Category.COMM).any():
        return no_rows(f"no communication kernels in {file}")
    placed = instances(timeline)
    if not placed.overlapped.any():
        return no_rows(f"no compute kernel of {file} is covered by communication to 90 % or more")
    rows = _compare(placed)
    if not rows:
        return no_rows(
            f"no kernel of {file} ran {FEWEST} times beside communication and {FEWEST} times alone "
            "in one phase"
        )
    return Outcome(pd.DataFrame(rows))


def _compare(placed: Instances) -> list[dict[str, Any]]:
    """Return the total's row and the kernels' rows, none where nothing can be compared."""
    random = np.random.default_rng(_SEED)
    kernels: dict[int, _Sides] = {}
    for shape, overlapped, alone in _strata(placed):
        sides = _sides(overlapped, alone, random)
        kernels[shape] = kernels[shape] + sides if shape in kernels else sides
    if not kernels:
        return []
    total = reduce(_Sides.__add__, kernels.values())
    rows = [{"name": TOTAL, "grid": "", "block": ""} | total.row()]
    columns = placed.shapes.columns()
    for shape in sorted(kernels, key=lambda shape: -kernels[shape].lost):
        rows.append({key: column[shape] for key, column in columns.items()} | kernels[shape].row())
    return rows


def _strata(placed: Instances) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield shape, durations overlapped and durations alone, ascending, of each shape and phase.

    Only where there are enough on both sides.
    """
    phases = int(placed.phase.max(initial=NONE)) + 2
    cell = placed.shape * phases + (placed.phase - NONE)
    size = len(placed.shapes) * phases
    compared = (np.bincount(cell[placed.overlapped], minlength=size) >= FEWEST) & (
        np.bincount(cell[placed.alone], minlength=size) >= FEWEST
    )
    rows = np.flatnonzero(compared[cell] & (placed.overlapped | placed.alone))
    sides, duration, ends = sort_within_groups(
        2 * cell[rows] + placed.overlapped[rows], placed.duration[rows]
    )
    bounds = [0, *ends.tolist()]
    # Each has both sides, first that of the kernels alone.
    for i in range(0, len(sides), 2):
        alone, overlapped = (duration[bounds[side] : bounds[side + 1]] for side in (i, i + 1))
        yield int(sides[i]) // 2 // phases, overlapped, alone


@dataclass(frozen=True)
class _Sides:
    """The time of overlapped kernels, and the time of as many of the same kernels alone.

    Both have the measured value first and then one value a resample, shape (1 + RESAMPLES,).
    """

    overlapped_n: int
    alone_n: int
    overlapped: Floats
    alone: Floats

    def __add__(self, other: _Sides) -> _Sides:
        """Return both together."""
        return _Sides(
            self.overlapped_n + other.overlapped_n,
            self.alone_n + other.alone_n,
            self.overlapped + other.overlapped,
            self.alone + other.alone,
        )

    @property
    def lost(self) -> float:
        """The nanoseconds that the overlapped kernels took longer."""
        return float(self.overlapped[0] - self.alone[0])

    def row(self) -> dict[str, Any]:
        """Return the columns of figures."""
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


def _sides(overlapped: Ints, alone: Ints, random: np.random.Generator) -> _Sides:
    n = len(overlapped)
    return _Sides(n, len(alone), *(n * _medians(side, random) for side in (overlapped, alone)))


def _medians(ordered: Ints, random: np.random.Generator) -> Floats:
    n = len(ordered)
    median = ordered[[(n - 1) // 2, n // 2]].mean()
    return np.append(median, resampled_medians(ordered, random))
