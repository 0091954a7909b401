"""What chosen kernels take in some runs over what the same occurrences take in others, with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcprof.analysis.slowdown.matched_times import MatchedTimes, StepTimes
from hpcprof.analysis.slowdown.within_run import FEWEST
from hpcprof.analysis.statistics.confidence_intervals import (
    CONFIDENCE,
    RATIO_DIGITS,
    RESAMPLES,
    percentile_interval,
    resampled_medians,
    welch_interval,
)
from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.profiles.timeline import Ints

MEANT = ("arguments", "ranks", "nodes")
"""In what a run without communication differs from one with it, on purpose."""
SEED = 20_260_101
"""Of the resamples, so that the same runs always give the same interval."""


def percent(part: float, whole: float) -> float:
    """Return a share in percent, to two decimals."""
    return round(100 * float(part) / float(whole), 2)


@dataclass(frozen=True)
class Sides:
    """The logarithm of each run's ratio, and of resamples of it; NaN where it has no or too few steps.

    ``a`` and ``b`` have shape (runs, 1 + RESAMPLES): the measured value comes first.
    """

    a: Floats
    b: Floats

    @classmethod
    def of(cls, matched: MatchedTimes, kernels: Ints, random: np.random.Generator) -> Sides:
        """Return the values of some kernels together."""
        return cls(
            *(np.array([_run(run, kernels, random) for run in side]) for side in (matched.a, matched.b))
        )

    def corrected(self, control: Sides) -> Sides:
        """Return each run's values over those of its control."""
        return Sides(self.a - control.a, self.b - control.b)

    def ends(self) -> tuple[float | None, float | None]:
        """Return the 95 % interval of the difference of the sides' means."""
        a, b = (side[~np.isnan(side[:, 0])] for side in (self.a, self.b))
        found = []
        resampled = a[:, 1:].mean(axis=0) - b[:, 1:].mean(axis=0)
        if not np.isnan(resampled).any():
            found.append(percentile_interval(resampled))
        if min(len(a), len(b)) > 1:
            found.append(welch_interval(a[:, 0], b[:, 0], CONFIDENCE))
        if not found:
            return None, None
        return min(low for low, _ in found), max(high for _, high in found)


def _run(times: StepTimes, kernels: Ints, random: np.random.Generator) -> Floats:
    ratios = times.ratios(kernels)
    values = np.full(1 + RESAMPLES, np.nan)
    if len(ratios):
        values[0] = np.median(ratios)
    if len(ratios) >= FEWEST:
        values[1:] = resampled_medians(ratios, random)
    logarithms: Floats = np.log(values)
    return logarithms


def figures(
    matched: MatchedTimes, kernels: Ints, control: Sides | None, random: np.random.Generator
) -> dict[str, Any]:
    """Return the columns of figures of some kernels together, from ``alone_n`` to ``ci_high``.

    ``control`` are the ratios of the kernels that the slowdown is corrected by, None for no correction.
    """
    measured = Sides.of(matched, kernels, random)
    count = int(matched.count_a[kernels].sum())
    reference = float(matched.expected[kernels].sum()) / count
    sides = measured.corrected(control) if control else measured
    ratio = math.exp(np.nanmean(sides.a[:, 0]) - np.nanmean(sides.b[:, 0]))
    low, high = sides.ends()
    return {
        "alone_n": int(matched.count_b[kernels].sum()),
        "alone_med_ns": round(reference * math.exp(np.nanmean(measured.b[:, 0])), 1),
        "overlapped_n": count,
        "overlapped_med_ns": round(reference * math.exp(np.nanmean(measured.a[:, 0])), 1),
        "slowdown": round(ratio, RATIO_DIGITS),
        "ci_low": None if low is None else round(math.exp(low), RATIO_DIGITS),
        "ci_high": None if high is None else round(math.exp(high), RATIO_DIGITS),
    }
