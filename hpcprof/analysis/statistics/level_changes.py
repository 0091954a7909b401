"""The lower bound of a series whose level may change once.

1. Split the series where two levels explain it best (least squares).
2. Measure the variance and the correlation of neighbours around these two levels. A change of the level looks
   like a correlation of nearly 1 around a single one.
3. The weaker of the two levels has the lower bound: both have to be above it.

The bias of the correlation is that of Kendall (1954) for each of the two levels, and once more for the choice
of the split.
"""

from collections.abc import Sequence

import numpy as np

from hpcprof.analysis.statistics.confidence_intervals import (
    correlated_freedom,
    expected_correlation,
    variance_of_mean,
)
from hpcprof.analysis.statistics.student import student_quantile
from hpcprof.profiles.timeline import Floats, Ints

MIN_VALUES = 16
"""Minimum number of values of a series that is split."""

_MIN_SEGMENT, _MIN_SEGMENT_SHARE = 4, 10
"""Minimum length of a segment: in values, and as one part in this many of the series."""

_BIAS_COUNT = 3
"""The number of biases of the correlation: of two levels and of the choice of the split."""


def lower_bound(
    series: Floats,
    split_by: Floats,
    confidence: float,
    weight: float,
    assumed: float,
    errors: Sequence[float],
) -> Floats:
    """Return a lower bound of the level of each series, which may change once.

    ``series`` are the values. The values of ``split_by`` give the place of the change and the correlation of
    neighbours. Both have the shape (..., series, n) with n of at least `MIN_VALUES`. ``confidence`` is that
    of a two-sided interval, for example 0.95. ``assumed`` is the assumed correlation of neighbours, and
    ``weight`` its weight as a number of values (`expected_correlation`). ``errors`` are the standard errors
    added to the correlation of all series, and to the correlation of a single series. The bounds have shape
    (..., series).
    """
    count, n = series.shape[-2:]
    split = _split_at_change(split_by)
    _, residuals = _around_levels(split_by, split)
    square = np.sum(residuals * residuals, axis=-1)
    inside = np.arange(1, n) != split[..., None]
    products = np.sum(residuals[..., 1:] * residuals[..., :-1] * inside, axis=-1)
    measured = np.divide(products, square, out=np.zeros_like(square), where=square > 0)
    measured = (n * measured + _BIAS_COUNT) / (n - 3 * _BIAS_COUNT)
    mean = measured.mean(axis=-1, keepdims=True)
    usual = expected_correlation(mean, count / 2, n, weight, assumed, errors[0])
    correlation = np.maximum(usual, expected_correlation(measured, 1, n, weight, usual, errors[1]))
    levels, residuals = _around_levels(series, split)
    variance = np.sum(residuals * residuals, axis=-1) / (n - 2)
    quantile = student_quantile(correlated_freedom(n - 2, correlation), (1 + confidence) / 2)
    lengths = np.stack([split, n - split])
    error = np.sqrt(variance * variance_of_mean(lengths, correlation) / lengths)
    bound: Floats = np.min(levels - quantile * error, axis=0)
    return bound


def _split_at_change(series: Floats) -> Ints:
    """Return the length of the first of the two segments whose means explain a series best."""
    n = series.shape[-1]
    least = max(_MIN_SEGMENT, n // _MIN_SEGMENT_SHARE)
    length = np.arange(least, n - least + 1)
    total = np.cumsum(series, axis=-1)
    first = total[..., least - 1 : n - least] / length
    second = (total[..., -1:] - total[..., least - 1 : n - least]) / (n - length)
    split: Ints = length[np.argmax((first - second) ** 2 * length * (n - length), axis=-1)]
    return split


def _around_levels(series: Floats, split: Ints) -> tuple[Floats, Floats]:
    """Return the means of both segments, shape (2, ...), and the values less the mean of their segment."""
    n = series.shape[-1]
    first = np.arange(n) < split[..., None]
    levels = np.stack(
        [np.sum(series * first, axis=-1) / split, np.sum(series * ~first, axis=-1) / (n - split)]
    )
    return levels, series - np.where(first, levels[0][..., None], levels[1][..., None])
