"""Estimates from the replicates of two sides: which of them belong together, and what they can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from hpcprof.analysis.statistics.confidence_intervals import CONFIDENCE, welch_error
from hpcprof.analysis.statistics.grouped import Floats

POWER = 0.8
"""The share of comparisons in which a detectable change is found."""

_UNLIKE = 0.01
"""Samples are unlike if samples of one distribution differ as much less often than this."""

_LARGEST_LOG = 700.0
"""The exponential function of more than this overflows soon."""


@dataclass(frozen=True)
class Estimate:
    """A difference of means that follows Student's t; the means are those of logarithms.

    Attributes
    ----------
    difference, error : float
        The difference, and its standard error.
    freedom : float
        The degrees of freedom of the standard error.
    """

    difference: float
    error: float
    freedom: float

    @property
    def ratio(self) -> float:
        """The ratio of the geometric means."""
        return _ratio(self.difference)

    def interval(self) -> tuple[float, float]:
        """Return the 95 % confidence interval of the ratio."""
        half = self._quantile() * self.error
        return _ratio(self.difference - half), _ratio(self.difference + half)

    def detectable_ratio(self) -> float:
        """Return the ratio whose interval lies above 1 in 80 % of comparisons with as much noise."""
        # Only commands that compare runs need scipy, and its import takes longer than most commands.
        from scipy.special import nctdtrinc

        # A noncentral t exceeds the quantile with that probability.
        away = float(nctdtrinc(self.freedom, 1 - POWER, self._quantile()))
        return _ratio(away * self.error)

    def _quantile(self) -> float:
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, (1 + CONFIDENCE) / 2))


def _ratio(logarithm: float) -> float:
    return math.exp(max(-_LARGEST_LOG, min(logarithm, _LARGEST_LOG)))


def independent(a: Floats, b: Floats) -> Estimate:
    """Return the estimate of ``mean(b) - mean(a)`` from independent values, at least two a side.

    The variance is pooled (Student's t), because few values say little about two variances. Equal numbers of
    values make that safe even if the variances differ. With unequal numbers, variances that are not alike
    are not pooled (Welch's t).
    """
    n, m = len(a), len(b)
    difference = float(np.mean(b) - np.mean(a))
    if n != m and not _variances_alike(a, b):
        return Estimate(difference, *welch_error(a, b))
    freedom = float(n + m - 2)
    variance = ((n - 1) * float(np.var(a, ddof=1)) + (m - 1) * float(np.var(b, ddof=1))) / freedom
    return Estimate(difference, math.sqrt(variance * (1 / n + 1 / m)), freedom)


def paired(a: Floats, b: Floats) -> Estimate:
    """Return the estimate of the mean of ``b - a`` from at least two pairs of values."""
    change = b - a
    error = float(np.std(change, ddof=1)) / math.sqrt(len(change))
    return Estimate(float(np.mean(change)), error, len(change) - 1)


def alike(a: Floats, b: Floats) -> bool:
    """Return whether two samples may be of one distribution: their variances (F test) and means (t test)."""
    from scipy.special import stdtr

    if not _variances_alike(a, b):
        return False
    found = independent(a, b)
    if not found.error:
        return not found.difference
    return bool(2 * stdtr(found.freedom, -abs(found.difference) / found.error) >= _UNLIKE)


def _variances_alike(a: Floats, b: Floats) -> bool:
    from scipy.special import fdtr

    of_a, of_b = float(np.var(a, ddof=1)), float(np.var(b, ddof=1))
    if not of_a or not of_b:
        return of_a == of_b
    below = float(fdtr(len(a) - 1, len(b) - 1, of_a / of_b))
    return 2 * min(below, 1 - below) >= _UNLIKE


def turns(a: Sequence[datetime | None], b: Sequence[datetime | None]) -> list[tuple[int, int]]:
    """Return the pairs of replicates that took turns, as indices into ``a`` and ``b``.

    In the order of time, the first two are one of each side, the next two as well, and so on. There are no
    pairs if that is not so, or if times are unknown or equal.
    """
    known = [(when, side, i) for side, times in enumerate((a, b)) for i, when in enumerate(times) if when]
    if len(a) != len(b) or len(known) != len(a) + len(b) or len({when for when, _, _ in known}) < len(known):
        return []
    ordered = sorted(known)
    # Within a pair, side a comes first.
    twos = [sorted(ordered[i : i + 2], key=lambda one: one[1]) for i in range(0, len(ordered), 2)]
    if any((first[1], second[1]) != (0, 1) for first, second in twos):
        return []
    return [(first[2], second[2]) for first, second in twos]
