"""Change points of a series of runs, with the probability of each.

The series is a product partition (Barry and Hartigan 1993): it consists of segments, each with a level and a
noise of its own.

1. Outliers are pulled to the median of their neighbours (`_winsorized_series`).
2. The prior of a segment is normal-inverse-gamma, so that its marginal likelihood has a closed form
   (Student's t). The noise is autoregressive of first order, since runs on one node or in one week resemble
   each other: a level that wanders is no change.
3. The posterior over all partitions and correlations is exact, by dynamic programming in O(n²).
4. Places whose probability, with that of their neighbours, reaches `MIN_PROBABILITY` may be changes.
5. Real noise is skewed, unlike the model's, and a test after each run meets rare values often. The runs
   before and after a change are therefore also compared by a rank test, which assumes no distribution. Its
   level falls with the length of the series (`_p_value_ratio`).
"""

from collections.abc import Sequence
from itertools import pairwise
from math import comb

import msgspec
import numpy as np

from hpcprof.common.robust import MAD_TO_DEVIATION
from hpcprof.profiles.timeline import Floats

MIN_PROBABILITY = 0.7
"""Minimum probability of a change."""

FEWEST = 5
"""Minimum length of a series with change points."""

MAX_VALUES = 1000
"""Maximum number of values examined, which takes a second; a longer series keeps its last ones."""

_PER_VALUE, _PER_SERIES = 0.01, 0.25
"""Prior probability of a change before each value, and maximum expected number of changes in a series.

People look after each run, so at a long series they look often. Without the limit, each look would add to the
chance of a false alarm.
"""

_USUAL_CHANGE = 0.1
"""Prior standard deviation of levels, as a logarithm: most changes of interest are below 10 %."""

_FREEDOM = 4.0
"""The weight of the noise of all values in that of a segment, as a number of values."""

_MAX_OUTLIER_SD = 3.0
"""Maximum distance of a value from the median of its neighbours, in standard deviations; it is clipped."""

_MIN_REPLACED_SD = 5.0
"""Minimum distance, in standard deviations, of a value that is replaced by that median."""

_WINDOW = 3
"""Number of neighbours on each side: three outliers of seven values do not move their median."""

_CORRELATIONS = (0.0, 0.5, 0.8)
"""Possible correlations of neighbouring runs, equally probable beforehand."""

_MIN_LAST_VALUES = 3
"""Minimum values of the last level."""

_MAX_COMPARED_RUNS = 100
"""Maximum number of runs on each side of a change in the rank test."""

_MIN_DISTANCE = 2
"""Distance of two changes above which both may count."""

_MIN_NOISE = 1e-4
"""Minimum noise, as a logarithm, without which equal values would make any other value a change."""


class ChangePoint(msgspec.Struct, frozen=True):
    """A change of the level."""

    position: int
    """The position of the first value after it."""
    probability: float
    """The probability that the level changes there or one value earlier or later."""
    before: float
    after: float
    """The medians of the values from the change before and up to the change after."""


def change_points(values: Sequence[float]) -> list[ChangePoint]:
    """Return the changes of the level of a series of positive values, in their order.

    Outliers are no change of the level unless there are four of them, or three that agree at the end of the
    series, where a change has to be noticed soon. Fewer last values are never a change: in looks after each
    run, some would often be off by chance.
    """
    series = np.log(np.asarray(values, float)[-MAX_VALUES:])
    if len(series) < FEWEST:
        return []
    changes = level_changes(series, change_probabilities(series))
    bounds = [0, *changes, len(series)]
    levels = [float(np.exp(np.median(series[a:b]))) for a, b in pairwise(bounds)]
    skipped = len(values) - len(series)
    return [
        ChangePoint(place + skipped, probability, levels[i], levels[i + 1])
        for i, (place, probability) in enumerate(changes.items())
    ]


def level_changes(series: Floats, probability: Floats) -> dict[int, float]:
    """Return the places of the changes of a series in their order, with the probability of each.

    ``series`` are logarithms and ``probability`` what `change_probabilities` returns of them, both of shape
    (n,).
    """
    # The place of a change is rarely certain to one run.
    near_probability = np.convolve(probability, np.ones(3), mode="same").clip(max=1.0)
    places: list[int] = []
    for place in np.lexsort((-probability, -near_probability)).tolist():
        if near_probability[place] >= MIN_PROBABILITY and all(
            abs(place - other) > _MIN_DISTANCE for other in places
        ):
            places.append(place)
    # Among places that are as probable together, the most probable one by itself.
    best = {
        max(range(max(p - 1, 1), min(p + 2, len(series))), key=probability.__getitem__): float(
            near_probability[p]
        )
        for p in places
    }
    while best:
        bounds = [0, *sorted(best), len(series)]
        sides = zip(bounds, bounds[1:], bounds[2:], strict=False)
        doubt = {b: _p_value_ratio(series[a:b], series[b:c]) for a, b, c in sides}
        worst = max(doubt, key=doubt.__getitem__)
        if doubt[worst] <= 1:
            break
        del best[worst]
    return dict(sorted(best.items()))


def _p_value_ratio(before: Floats, after: Floats) -> float:
    """Return the exact, two-sided Mann-Whitney p-value of a change over the allowed p-value.

    The test is Mann and Whitney's (1947). The allowed p-value is the chance that three runs, the fewest on a
    new level, are all above all others, or all below. It falls with the third power of the number of runs, so
    that looks after each run seldom add up to a false alarm.
    """
    before, after = before[-_MAX_COMPARED_RUNS:], after[:_MAX_COMPARED_RUNS]
    higher = np.sign(np.subtract.outer(after, before)) / 2 + 0.5
    few, many = sorted(higher.shape)
    crossing = int(np.ceil(min(higher.sum(), (1 - higher).sum())))
    # Number of orders of the runs with at most this many crossing pairs: a Gaussian binomial coefficient.
    arrangements = np.zeros(crossing + 1)
    arrangements[0] = 1
    for i in range(1, few + 1):
        arrangements[many + i :] -= arrangements[: max(0, len(arrangements) - many - i)].copy()
        for first in range(min(i, len(arrangements))):
            arrangements[first::i] = np.cumsum(arrangements[first::i])
    return float(arrangements.sum()) * comb(few + many, _MIN_LAST_VALUES) / comb(few + many, few)


def change_probabilities(series: Floats) -> Floats:
    """Return the probability of a change of the level before each value of each series; the first is 0.

    Series and result have the shape (..., n).
    """
    noise = _noise(series)
    pulled = _winsorized_series(series, noise)
    probabilities, evidence = zip(
        *(_posterior(_segments(pulled, noise, correlation)) for correlation in _CORRELATIONS), strict=True
    )
    weight = np.exp(np.array(evidence) - np.max(evidence, axis=0))
    probable: Floats = np.einsum("c...,c...n->...n", weight / weight.sum(axis=0), np.array(probabilities))
    return probable


def _posterior(likelihood: Floats) -> tuple[Floats, Floats]:
    """Return the probability of a change before each value, and the log evidence of the likelihoods."""
    n = likelihood.shape[-1] - 1
    prior = min(_PER_VALUE, _PER_SERIES / n)
    stay, change = np.log1p(-prior), np.log(prior)
    likelihood[..., n - _MIN_LAST_VALUES + 1 :, n] = -np.inf
    lengths = np.arange(n + 1)
    # ahead[t]: the values before t, if a segment ends there; behind[t]: those from t on.
    ahead, behind = np.zeros((2, *likelihood.shape[:-1]))
    for end in range(1, n + 1):
        begins = lengths[:end]
        terms = likelihood[..., :end, end] + stay * (end - begins - 1) + change * (begins > 0)
        ahead[..., end] = _log_of_sum(ahead[..., :end] + terms)
    for begin in range(n - 1, -1, -1):
        ends = lengths[begin + 1 :]
        terms = likelihood[..., begin, begin + 1 :] + stay * (ends - begin - 1) + change * (ends < n)
        behind[..., begin] = _log_of_sum(behind[..., begin + 1 :] + terms)
    probability: Floats = np.exp(ahead[..., :n] + behind[..., :n] + change - ahead[..., n:])
    probability[..., 0] = 0.0
    return probability.clip(max=1.0), ahead[..., n]


def _log_of_sum(terms: Floats) -> Floats:
    """Return the logarithm of the sum of numbers of which the logarithms are given, along the last axis."""
    maximum = terms.max(axis=-1, keepdims=True)
    maximum[np.isneginf(maximum)] = 0.0
    with np.errstate(divide="ignore"):
        log_of_sum: Floats = np.log(np.exp(terms - maximum).sum(axis=-1)) + maximum[..., 0]
    return log_of_sum


def _noise(series: Floats) -> Floats:
    """Return the standard deviation of a value, from neighbouring ones: changes of the level are few."""
    steps = np.abs(np.diff(series))
    return np.maximum(MAD_TO_DEVIATION * np.median(steps, axis=-1) / 2**0.5, _MIN_NOISE)


def _winsorized_series(series: Floats, noise: Floats) -> Floats:
    """Return the series with outliers pulled to the median of their neighbours."""
    noise = noise[..., None]
    padded = np.pad(series, [(0, 0)] * (series.ndim - 1) + [(_WINDOW, _WINDOW)], mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _WINDOW + 1, axis=-1)
    middle = np.median(windows, axis=-1)
    # At the ends, reflected values would count twice. A new level has begun if the last values agree.
    middle[..., :2] = np.median(series[..., : _WINDOW + 2], axis=-1, keepdims=True)
    last = series[..., -_MIN_LAST_VALUES:]
    agree = np.ptp(last, axis=-1, keepdims=True) <= _MAX_OUTLIER_SD * 2**0.5 * noise
    usual = np.median(series[..., -_WINDOW - 2 :], axis=-1, keepdims=True)
    middle[..., -2:] = np.where(agree, np.mean(last, axis=-1, keepdims=True), usual)
    off = series - middle
    return np.where(
        np.abs(off) > _MIN_REPLACED_SD * noise,
        middle,
        middle + np.clip(off, -_MAX_OUTLIER_SD * noise, _MAX_OUTLIER_SD * noise),
    )


def _segments(series: Floats, noise: Floats, correlation: float) -> Floats:
    """Return the log marginal likelihood of the values from i up to j, shape (..., n + 1, n + 1), for i < j.

    Less ``correlation`` times the value before, the values are independent; the first one of a segment has no
    value before. ``noise`` is the standard deviation from the differences of neighbours (`_noise`).
    """
    from scipy.special import gammaln

    n = series.shape[-1]
    centered = series - np.median(series, axis=-1, keepdims=True)
    new = np.zeros_like(series)
    new[..., 1:] = centered[..., 1:] - correlation * centered[..., :-1]
    none = np.zeros((*series.shape[:-1], 1))
    sums, squares = (np.concatenate((none, np.cumsum(x, axis=-1)), axis=-1) for x in (new, new**2))
    count = np.maximum(np.arange(n + 1)[None, :] - np.arange(n + 1)[:, None], 1)
    # Coefficient of the level in the first value and in each later value, after scaling to unit noise.
    first_weight, others_weight = 1 - correlation**2, 1 - correlation
    first = np.concatenate((centered, none), axis=-1)[..., None]
    second = np.minimum(np.arange(n + 1) + 1, n)
    level = first_weight * first + others_weight * (sums[..., None, :] - sums[..., second, None])
    square = first_weight * first**2 + squares[..., None, :] - squares[..., second, None]
    prior_weight = first_weight + others_weight**2 * (count - 1)
    # The differences of neighbours are smaller than the noise by the correlation.
    variance = noise[..., None, None] ** 2 * (1 + correlation)
    shape, scale = _FREEDOM / 2, _FREEDOM / 2 * variance
    weight = variance / _USUAL_CHANGE**2
    rate = scale + (square - level**2 / (weight + prior_weight)).clip(min=0) / 2
    after = shape + np.arange(n + 1) / 2
    segments: Floats = (
        (gammaln(after) - gammaln(shape))[count]
        + shape * np.log(scale)
        - after[count] * np.log(rate)
        + 0.5 * np.log(first_weight * weight / (weight + prior_weight))
        - count / 2 * np.log(2 * np.pi)
    )
    return segments
