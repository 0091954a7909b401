"""Intervals of means of few values, such as one value a run: Welch's t."""

from __future__ import annotations

import math

import numpy as np

from hpcprof.analysis.summaries.grouped_statistics import Floats


def interval(a: Floats, b: Floats, confidence: float) -> tuple[float, float]:
    """Return Welch's confidence interval of ``mean(a) - mean(b)``.

    The variances may differ; the degrees of freedom are those of Welch and Satterthwaite.

    Parameters
    ----------
    a, b : ndarray of float, shapes (n,) and (m,)
        Independent values, at least two each.
    confidence : float
        For example 0.95.
    """
    # Of the commands only those that compare runs need it, and its import takes longer than most of them.
    from scipy.special import stdtrit

    difference = float(np.mean(a) - np.mean(b))
    of_a, of_b = float(np.var(a, ddof=1)) / len(a), float(np.var(b, ddof=1)) / len(b)
    variance = of_a + of_b
    if variance == 0.0:
        return difference, difference
    # In shares of the variance, since the square of a tiny variance would be zero.
    shares = (of_a / variance) ** 2 / (len(a) - 1) + (of_b / variance) ** 2 / (len(b) - 1)
    half = float(stdtrit(1 / shares, (1 + confidence) / 2)) * math.sqrt(variance)
    return difference - half, difference + half
