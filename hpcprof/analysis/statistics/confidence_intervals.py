"""Confidence intervals: of means by Welch's t, of a series by its trimmed mean."""

import math

import numpy as np

from hpcprof.analysis.statistics.student import student_quantile
from hpcprof.profiles.timeline import Floats, Ints, Mask

CONFIDENCE = 0.95
NORMAL_90 = 1.645
"""Half width of a 90 % interval of a normal distribution, in standard errors."""

RATIO_DIGITS = 4
"""Decimals of the ratios that have such an interval."""

_ASSUMED_CORRELATION, _MAX_CORRELATION = 0.5, 0.9
"""The correlation of neighbours that is assumed before any is measured, and the highest that is believed."""

_ASSUMED_VALUES, _MIN_CORRELATED = 4, 4
"""The weight of an assumed correlation, and the minimum length of a series with a measured one: in values."""

_OWN_ERRORS = 0.5
"""Number of standard errors added to the measured correlation of one series."""

_MAX_LAG = 8
"""Maximum distance of values whose correlation counts, in places of the series."""

_TRIMMED_PART = 10
"""One part in this many of the values is left out, or pulled in, at each end of a series."""

_FEW_VALUES = 20
"""Maximum number of values of which only this part is left out: of more values more are."""


def welch_interval(a: Floats, b: Floats, confidence: float) -> tuple[float, float]:
    """Return Welch's confidence interval of ``mean(a) - mean(b)``.

    The variances may differ; the degrees of freedom are those of Welch and Satterthwaite. The values are
    independent, at least two of each; ``confidence`` is for example 0.95.
    """
    difference = float(np.mean(a) - np.mean(b))
    error, freedom = welch_error(a, b)
    half = float(student_quantile(freedom, (1 + confidence) / 2)) * error
    return difference - half, difference + half


def welch_error(a: Floats, b: Floats) -> tuple[float, float]:
    """Return the standard error of ``mean(a) - mean(b)`` and its degrees of freedom; see `welch_interval`."""
    parts = (float(np.var(a, ddof=1)) / len(a), len(a) - 1), (float(np.var(b, ddof=1)) / len(b), len(b) - 1)
    return error_of_difference(*parts)


def error_of_difference(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    """Return the standard error of a difference, and its degrees of freedom (Welch and Satterthwaite).

    ``a`` and ``b`` have the squared standard error of each side, and its degrees of freedom.
    """
    variance = a[0] + b[0]
    if variance == 0.0:
        return 0.0, a[1] + b[1]
    # Shares of the variance, because the square of a tiny variance would underflow to zero.
    return math.sqrt(variance), 1 / sum((part / variance) ** 2 / freedom for part, freedom in (a, b))


def correlation_with_next(series: Floats) -> Floats:
    """Return the correlation of a series' values with the next ones, corrected for its bias in short series.

    Extreme values are pulled in before, as in `series_interval`. The correction is Kendall's, of order 1 / n.
    Series of shape (..., n) with at least four values have correlations of shape (...).
    """
    n = series.shape[-1]
    corrected: Floats = (n * _correlation(series, 1) + 1) / (n - 3)
    return corrected


def common_correlation(series: Floats) -> Floats:
    """Return the `neighbour_correlation` of series that vary in the same way, from their mean correlations.

    Series of shape (..., series, n) with at least four values have correlations of shape (..., 1).
    """
    n = np.array(series.shape[-1])
    next_ones, *later = (
        _correlation(series, lag).mean(axis=-1, keepdims=True)
        for lag in range(1, max(2, int(number_of_lags(n)) + 1))
    )
    return neighbour_correlation(next_ones, next_ones + sum(later), n)


def number_of_lags(length: Ints | Floats) -> Ints:
    """Return the number of next values that each value of a series of this length is compared with."""
    return np.minimum(_MAX_LAG, length // 5).astype(np.int64)


def neighbour_correlation(next_ones: Floats, total: Floats, length: Ints | Floats) -> Floats:
    """Return the correlation of neighbours in a series, the larger of two estimates.

    One estimate is the correlation with the next value, corrected as in `correlation_with_next`. The other
    one, from ten values on, is the correlation of an autoregressive series whose mean has the variance that
    the correlations at several lags imply: slow changes below fast noise hardly show at lag 1. ``next_ones``
    is the correlation at lag 1, and ``total`` the sum of the correlations up to lag `number_of_lags`.
    """
    correlation: Floats = (length * next_ones + 1) / np.maximum(length - 3, 1)
    several = number_of_lags(length)
    # Measured around the mean of the series itself, each correlation is too small.
    times = (1 + 2 * total).clip(min=0) / (1 - (2 * several + 1) / length)
    return np.where(several > 1, np.maximum(correlation, (times - 1) / (times + 1)), correlation)


def expected_correlation(
    measured: Floats,
    series: Ints | float,
    length: Ints | Floats | int,
    weight: float,
    assumed: Floats | float = _ASSUMED_CORRELATION,
    errors: float = 0.0,
) -> Floats:
    """Return the correlation to expect where ``measured`` was measured on some independent series.

    A few values hardly tell it, so it is mixed with ``weight`` values of an assumed correlation. ``errors``
    is the number of standard errors of the result that are added.
    """
    # Kendall's correction makes the error of short series larger.
    values = series * np.maximum(length - 3, 0) ** 2 / length
    total = values * measured + weight * assumed + errors * np.sqrt(values)
    return np.clip(total / (values + weight), 0.0, _MAX_CORRELATION)


def own_correlation(series: Floats) -> Floats:
    """Return the correlation of neighbours to expect in one series, which may be larger than it seems.

    The series has the shape (n,), the result ().
    """
    n = len(series)
    measured = common_correlation(series[None])[0] if n >= _MIN_CORRELATED else np.zeros(())
    return expected_correlation(measured, 1, n, _ASSUMED_VALUES, errors=_OWN_ERRORS)


def variance_of_mean(n: Ints | Floats | int, correlation: Floats) -> Floats:
    """Return the variance of the mean of n correlated values, in variances of the mean of independent ones.

    The variance of the values is the sample's; it is too small for a few alike values.
    """
    complement = 1 - correlation
    bias = 1 + 2 * correlation / complement - 2 * correlation * (1 - correlation**n) / (n * complement**2)
    return bias * (n - 1) / (n - bias)


def correlated_freedom(freedom: Floats | float, correlation: Floats) -> Floats:
    """Return the degrees of freedom that a variance of correlated values has left.

    Within a tenth of Satterthwaite's for correlations up to 0.6 from four values on.
    """
    square = correlation**2
    return np.minimum((freedom * (1 - square) + 4 * square) / (1 + square), freedom)


def correlation_factor(deviations: Floats) -> float:
    """Return the factor by which the correlation of neighbours widens an interval.

    ``deviations`` are the distances of a series' values from its level. Few values do not determine the
    correlation; they count as independent.
    """
    n = len(deviations)
    if n < _MIN_CORRELATED:
        return 1.0
    correlation = expected_correlation(correlation_with_next(deviations), 1, n, _ASSUMED_VALUES, assumed=0.0)
    return float(np.sqrt(variance_of_mean(n, correlation)))


def series_interval(series: Floats, confidence: float, correlation: Floats) -> tuple[Floats, Floats]:
    """Return the ends of a confidence interval of the level of a series whose neighbours are alike.

    It is Yuen's interval of the mean without the lowest and the highest tenth of the values, so that single
    outliers do not widen it. More are left out of more than 20 values, because the mean of skewed values is
    not their median, as many values would show. Its width is that of an autoregressive series of first order:
    such values determine their mean and variance less well than independent values.

    ``series`` has at least two values each, shape (..., n); ``confidence`` is for example 0.95, and
    ``correlation`` that of neighbouring values, less than 1. This and the ends have shape (...).
    """
    n = series.shape[-1]
    # The bias by skewness falls with the square of the kept share, so it stays alike beside the error.
    share = (1 - 2 / _TRIMMED_PART) * (_FEW_VALUES / max(n, _FEW_VALUES)) ** 0.25
    cut = n // _TRIMMED_PART if n <= _FEW_VALUES else int(n * (1 - share) / 2)
    count = n - 2 * cut
    level = np.sort(series, axis=-1)[..., cut : n - cut].mean(axis=-1)
    variance = _winsorize(series, cut).var(axis=-1, ddof=1) * (n - 1) / (count * (count - 1))
    widened = variance_of_mean(count, correlation)
    freedom = correlated_freedom(count - 1, correlation)
    half = student_quantile(freedom, (1 + confidence) / 2) * np.sqrt(variance * widened)
    return level - half, level + half


def _correlation(series: Floats, lag: int) -> Floats:
    """Return the correlation of a series' values with those ``lag`` later; 0 where all values are equal."""
    values = _winsorize(series, series.shape[-1] // _TRIMMED_PART)
    deviations = values - values.mean(axis=-1, keepdims=True)
    squares = np.sum(deviations * deviations, axis=-1)
    products = np.sum(deviations[..., lag:] * deviations[..., :-lag], axis=-1)
    correlation: Floats = np.divide(products, squares, out=np.zeros_like(squares), where=squares > 0)
    return correlation


def _winsorize(series: Floats, cut: int) -> Floats:
    """Return the series with its ``cut`` lowest and highest values set to the next one."""
    ordered, n = np.sort(series, axis=-1), series.shape[-1]
    return np.clip(series, ordered[..., cut, None], ordered[..., n - 1 - cut, None])


_MIN_LATER, _MIN_LATER_SHARE = 20, 0.95
"""Minimum repetitions in which an effect that waits is later than its cause: number, and share of all."""

_MIN_SLOPE, _SLOPE_CONFIDENCE = 0.5, 0.99
"""Minimum growth of a time that follows another, in ns for each ns of that (1 without noise), and the
confidence of it."""

_MAX_SLOPE_VALUES = 400
"""Maximum number of repetitions that the slope is computed from: it compares all pairs of them."""


def grows_with(cause: Ints, effect: Ints) -> Mask:
    """Return the repetitions in which an effect waited for its cause, shape (n,); times are in ns.

    The answer is the same for all repetitions in which the effect is not earlier than the cause: an effect
    that waits is nearly always later, and grows with the cause. The slope is that of Theil and Sen: a few odd
    repetitions do not decide.
    """
    later = effect >= cause
    chosen = np.linspace(0, len(cause) - 1, min(len(cause), _MAX_SLOPE_VALUES)).astype(int)
    x, y = cause[chosen], effect[chosen]
    if later.sum() < max(_MIN_LATER, _MIN_LATER_SHARE * len(cause)) or not np.ptp(x):
        return np.zeros(len(cause), bool)
    from scipy.stats import theilslopes

    # Many equal values make its variance negative, and the interval unknown.
    with np.errstate(invalid="ignore"):
        surely = bool(theilslopes(y, x, alpha=_SLOPE_CONFIDENCE).low_slope > _MIN_SLOPE)
    return later & surely
