"""The slowdown of matched kernels, with its confidence interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcprof.analysis.slowdown.matched_times import MatchedTimes
from hpcprof.analysis.slowdown.within_run import MIN_LAUNCHES
from hpcprof.analysis.statistics.clustered_medians import ClusteredMedians
from hpcprof.analysis.statistics.confidence_intervals import CONFIDENCE, RATIO_DIGITS, welch_interval
from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.profiles.timeline import Ints

EXPECTED_DIFFERENCES = ("arguments", "ranks", "nodes")
"""The facts in which a run without communication differs from one with communication, on purpose."""

_RATIO_UNIT = 1 << 30
"""Ratios become integers by this factor, because `ClusteredMedians` takes integers."""


def percent(part: float, whole: float) -> float:
    """Return a share in percent, rounded to two decimals."""
    return round(100 * float(part) / float(whole), 2)


@dataclass(frozen=True)
class StepRatios:
    """The ratios of taken to expected time of each run, as steps (numbers from 0) and their ratios."""

    candidate: list[tuple[Ints, Floats]]
    baseline: list[tuple[Ints, Floats]]

    @classmethod
    def of(cls, matched: MatchedTimes, kernels: Ints) -> StepRatios:
        """Return the ratios of some kernels together."""
        return cls(*([run.ratios(kernels) for run in side] for side in (matched.candidate, matched.baseline)))

    def estimate(self, control: StepRatios | None) -> tuple[float, float | None, float | None]:
        """Return the mean logarithm of the candidate runs' medians, less that of the baseline runs.

        With a control, its own is subtracted. The 95 % interval follows; both of its ends may be None.
        """
        a = _Side(self.candidate, control.candidate if control else None)
        b = _Side(self.baseline, control.baseline if control else None)
        level = float(a.levels.mean() - b.levels.mean())
        found = []
        if a.enough and b.enough and not math.isnan(half := _half_width(a, b)):
            found.append((level - half, level + half))
        if min(len(a.levels), len(b.levels)) > 1:
            found.append(welch_interval(a.levels, b.levels, CONFIDENCE))
        if not found:
            return level, None, None
        return level, min(low for low, _ in found), max(high for _, high in found)


class _Side:
    """The runs of a side that have steps of the kernels and of the control.

    Attributes
    ----------
    runs : list of list of (steps, ratios)
        For each run the ratios of the kernels and, if there is a control, its ratios.
    levels : ndarray of float64, shape (runs,)
        The logarithm of each run's median, less that of the control.
    enough : bool
        Whether each run has enough steps for an interval.
    """

    def __init__(
        self, own: Sequence[tuple[Ints, Floats]], control: Sequence[tuple[Ints, Floats]] | None
    ) -> None:
        parts = [own] if control is None else [own, control]
        self.runs = [list(run) for run in zip(*parts, strict=True) if all(len(steps) for steps, _ in run)]
        levels = [_medians(run) for run in self.runs]
        self.levels = np.array([one[0] - one[1:].sum() for one in levels])
        counts = [len(steps) for run in self.runs for steps, _ in run]
        self.enough = min(counts, default=0) >= MIN_LAUNCHES


def _half_width(candidate: _Side, baseline: _Side) -> float:
    """Return half the width of the 95 % interval of the difference between the sides' mean levels.

    The steps are the sample. A step of the kernels and the same step of the control vary together.
    """
    columns: list[list[Ints]] = [[], [], []]
    gradient: list[float] = []
    is_candidate: list[bool] = []
    first, begins = 0, []
    for side, sign in ((candidate, 1), (baseline, -1)):
        for run in side.runs:
            begins.append(first)
            for part, (steps, ratios) in enumerate(run):
                scaled = np.rint(ratios * _RATIO_UNIT).astype(np.int64)
                group = np.full(len(steps), len(gradient))
                for column, values in zip(columns, (group, first + steps, scaled), strict=True):
                    column.append(values)
                gradient.append((-sign if part else sign) / len(side.runs) / float(np.median(scaled)))
                is_candidate.append(sign > 0)
            first += 1 + max(int(steps.max()) for steps, _ in run)
    medians = ClusteredMedians.of(*(np.concatenate(column) for column in columns))
    one_row = np.zeros(len(gradient), np.int64)
    sides = np.array(is_candidate)
    return float(medians.half_widths(one_row, np.array(gradient), sides, np.array(begins))[0])


def _medians(runs: Sequence[tuple[Ints, Floats]]) -> Floats:
    """Return the logarithm of each run's median ratio; NaN for a run without steps."""
    return np.log([np.median(ratios) if len(ratios) else math.nan for _, ratios in runs])


def slowdown_columns(matched: MatchedTimes, kernels: Ints, control: StepRatios | None) -> dict[str, Any]:
    """Return the columns ``alone_n`` to ``ci_high`` for some kernels together.

    Parameters
    ----------
    control : StepRatios or None
        The ratios of the control, by which the slowdown is divided; None for no correction.
    """
    measured = StepRatios.of(matched, kernels)
    count = int(matched.candidate_count[kernels].sum())
    reference = float(matched.expected[kernels].sum()) / count
    level, low, high = measured.estimate(control)
    return {
        "alone_n": int(matched.baseline_count[kernels].sum()),
        "alone_med_ns": round(reference * math.exp(np.nanmean(_medians(measured.baseline))), 1),
        "overlapped_n": count,
        "overlapped_med_ns": round(reference * math.exp(np.nanmean(_medians(measured.candidate))), 1),
        "slowdown": round(math.exp(level), RATIO_DIGITS),
        "ci_low": None if low is None else round(math.exp(low), RATIO_DIGITS),
        "ci_high": None if high is None else round(math.exp(high), RATIO_DIGITS),
    }
