"""Confidence intervals: of medians by bootstrap, of means of few values by Welch's t."""

from __future__ import annotations

import math

import numpy as np

from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.profiles.timeline import Ints

RESAMPLES = 2000
CONFIDENCE = 0.95
RATIO_DIGITS = 4
"""Decimals of the ratios that have such an interval."""


def resampled_medians(ordered: Ints | Floats, random: np.random.Generator) -> Floats:
    """Return the medians of `RESAMPLES` bootstrap resamples of a sample, shape (RESAMPLES,).

    No single values are drawn: the k-th smallest of n draws from the sorted sample is the sample's value at
    the k-th smallest of n uniform numbers, which follows the beta distribution with parameters k and
    n - k + 1. So time and memory do not depend on n.

    Parameters
    ----------
    ordered : ndarray of int64 or float64, shape (n,)
        The sample in ascending order, n > 0.
    random : numpy.random.Generator
    """
    n = len(ordered)
    k = (n + 1) // 2
    low = random.beta(k, n - k + 1, RESAMPLES)
    if n % 2:
        return _at(ordered, low)
    # The next number is the smallest of n - k uniform numbers between the k-th and 1.
    high = low + (1 - low) * random.beta(1, n - k, RESAMPLES)
    return (_at(ordered, low) + _at(ordered, high)) / 2


def _at(ordered: Ints | Floats, share: Floats) -> Floats:
    place = np.minimum((share * len(ordered)).astype(np.int64), len(ordered) - 1)
    return ordered[place].astype(np.float64)


def percentile_interval(values: Floats) -> tuple[float, float]:
    """Return the 95 % percentile interval of resampled values."""
    low, high = np.quantile(values, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(low), float(high)


def welch_interval(a: Floats, b: Floats, confidence: float) -> tuple[float, float]:
    """Return Welch's confidence interval of ``mean(a) - mean(b)``.

    The variances may differ; the degrees of freedom are those of Welch and Satterthwaite.

    Parameters
    ----------
    a, b : ndarray of float, shapes (n,) and (m,)
        Independent values, at least two each.
    confidence : float
        For example 0.95.
    """
    # Imported here, because the import takes longer than most commands.
    from scipy.special import stdtrit

    difference = float(np.mean(a) - np.mean(b))
    of_a, of_b = float(np.var(a, ddof=1)) / len(a), float(np.var(b, ddof=1)) / len(b)
    variance = of_a + of_b
    if variance == 0.0:
        return difference, difference
    # Shares of the variance, because the square of a tiny variance would underflow to zero.
    shares = (of_a / variance) ** 2 / (len(a) - 1) + (of_b / variance) ** 2 / (len(b) - 1)
    half = float(stdtrit(1 / shares, (1 + confidence) / 2)) * math.sqrt(variance)
    return difference - half, difference + half
