"""The slowdown of matched kernels, with its confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcprof.analysis.slowdown.matched_times import MatchedTimes, StepTimes
from hpcprof.analysis.slowdown.within_run import MIN_LAUNCHES
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

EXPECTED_DIFFERENCES = ("arguments", "ranks", "nodes")
"""The facts in which a run without communication differs from one with communication, on purpose."""
SEED = 20_260_101
"""The seed of the resamples: the same runs always give the same interval."""


def percent(part: float, whole: float) -> float:
    """Return a share in percent, rounded to two decimals."""
    return round(100 * float(part) / float(whole), 2)


@dataclass(frozen=True)
class LogRatios:
    """The logarithm of each run's ratio of taken to expected time, and of its resamples.

    ``candidate`` and ``baseline`` have shape (runs, 1 + RESAMPLES): the measured value comes first. It is NaN
    if the run has no steps, and the resamples are NaN if it has too few.
    """

    candidate: Floats
    baseline: Floats

    @classmethod
    def of(cls, matched: MatchedTimes, kernels: Ints, random: np.random.Generator) -> LogRatios:
        """Return the ratios of some kernels together."""
        return cls(
            *(
                np.array([_run(run, kernels, random) for run in side])
                for side in (matched.candidate, matched.baseline)
            )
        )

    def corrected(self, control: LogRatios) -> LogRatios:
        """Return the ratios divided by those of the control, run by run."""
        return LogRatios(self.candidate - control.candidate, self.baseline - control.baseline)

    def interval(self) -> tuple[float | None, float | None]:
        """Return the 95 % interval of the difference between the sides' means; both ends may be None."""
        a, b = (side[~np.isnan(side[:, 0])] for side in (self.candidate, self.baseline))
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
    if len(ratios) >= MIN_LAUNCHES:
        values[1:] = resampled_medians(ratios, random)
    logarithms: Floats = np.log(values)
    return logarithms


def slowdown_columns(
    matched: MatchedTimes, kernels: Ints, control: LogRatios | None, random: np.random.Generator
) -> dict[str, Any]:
    """Return the columns ``alone_n`` to ``ci_high`` for some kernels together.

    Parameters
    ----------
    matched : MatchedTimes
    kernels : ndarray of int64
        The numbers of the kernels.
    control : LogRatios or None
        The ratios of the control, by which the slowdown is divided; None for no correction.
    random : numpy.random.Generator
    """
    measured = LogRatios.of(matched, kernels, random)
    count = int(matched.candidate_count[kernels].sum())
    reference = float(matched.expected[kernels].sum()) / count
    ratios = measured.corrected(control) if control else measured
    ratio = math.exp(np.nanmean(ratios.candidate[:, 0]) - np.nanmean(ratios.baseline[:, 0]))
    low, high = ratios.interval()
    return {
        "alone_n": int(matched.baseline_count[kernels].sum()),
        "alone_med_ns": round(reference * math.exp(np.nanmean(measured.baseline[:, 0])), 1),
        "overlapped_n": count,
        "overlapped_med_ns": round(reference * math.exp(np.nanmean(measured.candidate[:, 0])), 1),
        "slowdown": round(ratio, RATIO_DIGITS),
        "ci_low": None if low is None else round(math.exp(low), RATIO_DIGITS),
        "ci_high": None if high is None else round(math.exp(high), RATIO_DIGITS),
    }
