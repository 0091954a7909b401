"""Estimates from the replicates of two sides: which of them belong together, and what they can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

import numpy as np

from hpcprof.analysis.statistics.confidence_intervals import CONFIDENCE, widening
from hpcprof.analysis.statistics.grouped import Floats

POWER = 0.8
"""The share of comparisons in which a detectable change is found."""

_UNLIKE = 0.01
"""Samples are unlike if samples of one distribution differ as much less often than this."""

_TREND = 0.1
"""A series may have a trend if series without one show as much less often than this."""

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

    With equal numbers of values the variance is pooled (Student's t), because few values say little about two
    variances, and a difference between these does no harm. Else each side has its own (Welch's t), but that
    of the side with fewer values is steadied by the other's.
    """
    n, m = len(a), len(b)
    difference = float(np.mean(b) - np.mean(a))
    of_a, of_b = float(np.var(a, ddof=1)), float(np.var(b, ddof=1))
    if n == m:
        return Estimate(difference, math.sqrt((of_a + of_b) / n), float(2 * n - 2))
    many, few = ((of_a, n), (of_b, m)) if n > m else ((of_b, m), (of_a, n))
    return _unequal(difference, (many[0], 1 / many[1], many[1] - 1), few)


def extrapolated(values: Floats, places: Floats, others: Floats, place: float) -> tuple[Floats, Estimate]:
    """Return a series without its steady drift, and the estimate of ``mean(others)`` less its level.

    The drift of the series is taken out, so that it has the level that it would have at ``place``.

    Parameters
    ----------
    values, places : ndarray of float, shape (n,)
        At least three values, and their places in time.
    others : ndarray of float
        At least two values, whose mean place is ``place``.
    """
    apart = places - np.mean(places)
    slope = float(apart @ values / (apart @ apart))
    level = values + slope * (place - places)
    noise = float(np.sum((level - np.mean(level)) ** 2)) / (len(values) - 2)
    leverage = 1 / len(values) + float((place - np.mean(places)) ** 2 / (apart @ apart))
    few = float(np.var(others, ddof=1)), len(others)
    found = _unequal(float(np.mean(others) - np.mean(level)), (noise, leverage, len(values) - 2), few)
    # Runs that resemble the run before tell less than as many independent ones.
    wider = widening(level - np.mean(level))
    return level, replace(found, error=found.error * wider)


def _unequal(difference: float, many: tuple[float, float, float], few: tuple[float, int]) -> Estimate:
    """Return the estimate of a difference whose sides have a noise of their own (Welch's t).

    ``many`` has the variance of a value, how much of it the mean has, and its degrees of freedom; ``few`` the
    variance and the number of values.
    """
    of_few, freedom = _steadied(*few, many[0])
    parts = of_few / few[1], many[0] * many[1]
    variance = sum(parts)
    if not variance:
        return Estimate(difference, 0.0, many[2] + few[1] - 1)
    # Welch and Satterthwaite, by shares because the square of a tiny variance would underflow.
    shares = (parts[0] / variance) ** 2 / freedom + (parts[1] / variance) ** 2 / many[2]
    return Estimate(difference, math.sqrt(variance), 1 / shares)


def paired(a: Floats, b: Floats, noise: float | None = None) -> Estimate:
    """Return the estimate of the mean of ``b - a`` from at least two pairs of values.

    ``noise`` is the standard deviation of such values as far as it is known from others.
    """
    change = b - a
    count = len(change)
    variance, freedom = float(np.var(change, ddof=1)), float(count - 1)
    if noise is not None:
        variance, freedom = _steadied(variance, count, 2 * noise**2)
    return Estimate(float(np.mean(change)), math.sqrt(variance / count), freedom)


def _steadied(variance: float, count: int, usual: float) -> tuple[float, float]:
    """Return the variance of a few values and its degrees of freedom, where one is usual.

    The usual one counts as much as one value more, but never makes the variance smaller: the values may vary
    more than usual, and few of them would not show it.
    """
    return max(variance, (usual + (count - 1) * variance) / count), float(count)


def noise_of(values: Floats) -> float:
    """Return the standard deviation of a series from its neighbouring values, so that a drift adds little."""
    return math.sqrt(float(np.mean(np.diff(values) ** 2)) / 2)


def drifts(values: Floats) -> bool:
    """Return whether a series of at least three values may have a trend (t test of the slope)."""
    from scipy.special import stdtr

    place = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(place @ values / (place @ place))
    left = values - np.mean(values) - slope * place
    freedom = len(values) - 2
    error = math.sqrt(float(left @ left) / freedom / float(place @ place))
    if not error:
        return slope != 0
    return bool(2 * stdtr(freedom, -abs(slope) / error) < _TREND)


def alike(a: Floats, b: Floats) -> bool:
    """Return whether two samples may be of one distribution: their variances (F test) and means (t test)."""
    return _variances_alike(a, b) and _may_be_none(independent(a, b))


def continues(before: Floats, places: Floats, values: Floats, place: float) -> bool:
    """Return whether values may continue a series with a steady drift; the parameters of `extrapolated`."""
    level, found = extrapolated(before, places, values, place)
    return _variances_alike(values, level) and _may_be_none(found)


def _may_be_none(found: Estimate) -> bool:
    from scipy.special import stdtr

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


class Order(Enum):
    """The order in which the replicates of two sides were taken, by what a drift does to it."""

    BALANCED = "balanced"
    ONE_FIRST = "one side is the first of each pair"
    BLOCKED = "one side is before the other"
    OTHER = "other, or unknown"


def order(a: Sequence[datetime | None], b: Sequence[datetime | None]) -> Order:
    """Return the order of the replicates; see `Order`."""
    if pairs := turns(a, b):
        first = [bool((x := a[i]) and (y := b[j]) and x < y) for i, j in pairs]
        return Order.ONE_FIRST if all(first) or not any(first) else Order.BALANCED
    known_a, known_b = ([when for when in side if when] for side in (a, b))
    if len(known_a) < len(a) or len(known_b) < len(b) or not known_a or not known_b:
        return Order.OTHER
    apart = max(known_a) < min(known_b) or max(known_b) < min(known_a)
    return Order.BLOCKED if apart else Order.OTHER


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
