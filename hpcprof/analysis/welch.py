"""Intervals of means of few values, such as one value a run: Welch's t."""

from __future__ import annotations

import math

import numpy as np

from hpcprof.analysis.summary import Floats

_GRID = 20_001


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
    difference = float(np.mean(a) - np.mean(b))
    of_a, of_b = float(np.var(a, ddof=1)) / len(a), float(np.var(b, ddof=1)) / len(b)
    variance = of_a + of_b
    if variance == 0.0:
        return difference, difference
    # In shares of the variance, since the square of a tiny variance would be zero.
    shares = (of_a / variance) ** 2 / (len(a) - 1) + (of_b / variance) ** 2 / (len(b) - 1)
    half = t_quantile((1 + confidence) / 2, 1 / shares) * math.sqrt(variance)
    return difference - half, difference + half


def t_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t for ``probability`` of 0.5 or more and at least 1 degree of freedom.

    With t = sqrt(freedom) tan(u), the density is proportional to cos(u) ** (freedom - 1) on a half circle:
    its integral is tabulated and inverted. Four digits or better up to a probability of 0.9999.
    """
    # Beyond this angle the density is below exp(-72), however many the degrees of freedom.
    reach = min(math.pi / 2, 12 / math.sqrt(freedom))
    angle = np.linspace(0.0, reach, _GRID)
    density = np.cos(angle) ** (freedom - 1)
    mass = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    found = np.interp((2 * probability - 1) * mass[-1], mass, angle)
    return math.sqrt(freedom) * math.tan(float(found))
