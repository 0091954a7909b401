"""Quantiles of Student's distribution without scipy: its import takes a tenth of a small collect."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from hpcprof.profiles.timeline import Floats

_MOST_ROUNDS, _MOST_TERMS = 100, 1_000
_CLOSE = 1e-15
_SMALL_STEP = 1e-9
"""After so small a step of Newton's, the error left is that of the tail: each squares the one before."""
_TINY = 1e-300
_LARGE = 50.0

_log_gamma = np.frompyfunc(math.lgamma, 1, 1)


def student_quantile(freedom: ArrayLike, probability: float) -> Floats:
    """Return what Student's distribution exceeds with a probability of ``1 - probability``.

    The relative error is below 1e-11 up to 10,000 degrees of freedom and probabilities of 0.999, else 1e-9.
    An infinite ``freedom`` is the normal distribution, and what is not positive has no quantile. The
    probability is above one half.
    """
    given = np.asarray(freedom, np.float64)
    normal = NormalDist().inv_cdf(probability)
    result = np.full(given.shape, normal)
    result[~(given > 0)] = math.nan
    finite = np.isfinite(given) & (given > 0)
    v = given[finite]
    constant = np.exp(_gamma_step(v / 2)) / np.sqrt(v * math.pi)
    t = np.full(len(v), normal)
    # The tail is convex: from below, Newton's steps approach the quantile without passing it.
    for _ in range(_MOST_ROUNDS):
        density = constant * np.exp(-(v + 1) / 2 * np.log1p(t * t / v))
        step = (_tail(t, v) - (1 - probability)) / density
        t = t + step
        if (np.abs(step) <= _SMALL_STEP * t).all():
            break
    result[finite] = t
    return result


def _gamma_step(x: Floats) -> Floats:
    """Return the logarithm of the gamma function at ``x + 1 / 2`` less that at ``x``."""
    small = np.minimum(x, _LARGE)
    difference = np.asarray(_log_gamma(small + 0.5) - _log_gamma(small), np.float64)
    # Of large numbers, the difference would have few digits (DLMF 5.11.8).
    series = np.log(x) / 2 - 1 / (8 * x) + 1 / (192 * x**3) - 1 / (640 * x**5)
    found: Floats = np.where(x < _LARGE, difference, series)
    return found


def _tail(t: Floats, v: Floats) -> Floats:
    """Return the probability of values above ``t`` > 0, by the incomplete beta function."""
    x, y, a, b = v / (v + t * t), t * t / (v + t * t), v / 2, np.full_like(v, 0.5)
    scale = np.exp(_gamma_step(a) - a * np.log1p(t * t / v) + np.log(y / math.pi) / 2)
    # The fraction converges quickly on one side of the mean.
    left = x < (a + 1) / (a + b + 2)
    fraction = _fraction(np.where(left, a, b), np.where(left, b, a), np.where(left, x, y))
    found: Floats = np.where(left, scale * fraction / a, 1 - scale * fraction / b) / 2
    return found


def _fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    """Return the continued fraction of the incomplete beta function by Lentz (DLMF 8.17.22)."""
    c, d = np.ones_like(x), 1 / _nonzero(1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            c, d = _nonzero(1 + term / c), 1 / _nonzero(1 + term * d)
            found = found * c * d
        if (np.abs(c * d - 1) <= _CLOSE).all():
            break
    return found


def _nonzero(values: Floats) -> Floats:
    return np.where(np.abs(values) < _TINY, _TINY, values)
