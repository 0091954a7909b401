"""Confidence intervals: of means by Welch's t, of a series by its trimmed mean."""

from __future__ import annotations

import math

import numpy as np

from hpcprof.analysis.statistics.grouped import Floats

CONFIDENCE = 0.95
RATIO_DIGITS = 4
"""Decimals of the ratios that have such an interval."""

_LEAST_CORRELATION, _MOST_CORRELATION = 0.5, 0.9
_ASSUMED_VALUES = 20
_TRIMMED = 10


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
    error, freedom = welch_error(a, b)
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * error
    return difference - half, difference + half


def welch_error(a: Floats, b: Floats) -> tuple[float, float]:
    """Return the standard error of ``mean(a) - mean(b)`` and its degrees of freedom; see `welch_interval`."""
    of_a, of_b = float(np.var(a, ddof=1)) / len(a), float(np.var(b, ddof=1)) / len(b)
    variance = of_a + of_b
    if variance == 0.0:
        return 0.0, len(a) + len(b) - 2
    # Shares of the variance, because the square of a tiny variance would underflow to zero.
    shares = (of_a / variance) ** 2 / (len(a) - 1) + (of_b / variance) ** 2 / (len(b) - 1)
    return math.sqrt(variance), 1 / shares


def correlation_with_next(series: Floats) -> Floats:
    """Return the correlation of a series' values with the next ones, corrected for its bias in short series.

    Extreme values are pulled in before, as in `series_interval`. The correction is Kendall's, of order 1 / n.

    Parameters
    ----------
    series : ndarray of float, shape (..., n)
        Series of at least four values.

    Returns
    -------
    ndarray of float, shape (...)
    """
    values = _winsorized(series)
    apart = values - values.mean(axis=-1, keepdims=True)
    total = np.sum(apart * apart, axis=-1)
    next_ones = np.sum(apart[..., 1:] * apart[..., :-1], axis=-1)
    found = np.divide(next_ones, total, out=np.zeros_like(total), where=total > 0)
    n = series.shape[-1]
    corrected: Floats = (n * found + 1) / (n - 3)
    return corrected


def expected_correlation(found: Floats, values: int) -> Floats:
    """Return the correlation to expect where ``found`` was measured on a number of values.

    A few values hardly tell it, so it is mixed with 20 assumed values whose correlation is 0.5, and is never
    less than that.
    """
    mixed = (values * found + _ASSUMED_VALUES * _LEAST_CORRELATION) / (values + _ASSUMED_VALUES)
    return np.clip(mixed, _LEAST_CORRELATION, _MOST_CORRELATION)


def series_interval(series: Floats, confidence: float, correlation: Floats) -> tuple[Floats, Floats]:
    """Return the ends of a confidence interval of the level of a series whose neighbours are alike.

    It is Yuen's interval of the mean without the lowest and the highest tenth of the values, so that single
    outliers do not widen it. Its width is that of an autoregressive series of first order: such values tell
    less than as many independent ones about their mean, and also about their variance.

    Parameters
    ----------
    series : ndarray of float, shape (..., n)
        Series of at least two values.
    confidence : float
        For example 0.95.
    correlation : ndarray of float, shape (...)
        That of neighbouring values, less than 1.

    Returns
    -------
    low, high : ndarray of float, shape (...)
    """
    # See `welch_interval` on the import.
    from scipy.special import stdtrit

    n = series.shape[-1]
    cut = n // _TRIMMED
    kept = n - 2 * cut
    level = np.sort(series, axis=-1)[..., cut : n - cut].mean(axis=-1)
    variance = _winsorized(series).var(axis=-1, ddof=1) * (n - 1) / (kept * (kept - 1))
    widened = _variance_of_mean(kept, correlation)
    # The variance of a few alike values is too small by this.
    widened *= (kept - 1) / (kept - widened)
    # Within a tenth of Satterthwaite's degrees of freedom for correlations up to 0.6 from four values on.
    square = correlation**2
    freedom = np.minimum(((kept - 1) * (1 - square) + 4 * square) / (1 + square), kept - 1)
    half = stdtrit(freedom, (1 + confidence) / 2) * np.sqrt(variance * widened)
    return level - half, level + half


def _variance_of_mean(n: int, correlation: Floats) -> Floats:
    """Return how many times that of independent values the variance of the mean of n such values is."""
    apart = 1 - correlation
    found: Floats = 1 + 2 * correlation / apart - 2 * correlation * (1 - correlation**n) / (n * apart**2)
    return found


def _winsorized(series: Floats) -> Floats:
    """Return the series with its lowest and highest tenth set to the next value."""
    ordered, n = np.sort(series, axis=-1), series.shape[-1]
    cut = n // _TRIMMED
    return np.clip(series, ordered[..., cut, None], ordered[..., n - 1 - cut, None])
