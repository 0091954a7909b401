"""The noise of ranks, from the times of a few: what the slowest of many takes follows from it.

1. A time is the mean of its operation, plus what the unit always takes more (between), plus what all units
   take more in a step (common), plus the rest (within).
2. Between is the part of the variance of the units' means that the rest does not explain. Common is
   significant if the totals of the units rise and fall together; else it is part of the rest.
3. The rest is drawn from the measured ones: of operations of the same name and about the same length or,
   where the operations of a step are correlated, whole steps of a unit. The largest ones are drawn from a
   generalized Pareto distribution (Pickands, Balkema and de Haan), so that the largest of many can exceed
   what was measured.
"""

from dataclasses import dataclass

import numpy as np

from hpcprof.profiles.timeline import Floats, Ints

_POOL = 4096
"""Number of drawn steps of a unit, from which replays draw."""
_FEWEST_TAIL = 8
"""Minimum number of values in the tail, which has as many as the root of all."""
_TOGETHER = 2.0
"""Minimum ratio of the variance of a step to the sum of those of its operations, if these are correlated."""
_INSTEAD = 0.25
"""Maximum ratio of these, if operations are slow instead of each other."""
_LARGEST_SHAPE = 0.5
"""Maximum shape of the tail: the mean of the largest of many exists below 1, its variance below 0.5."""
_SIGNIFICANT = 2.5
"""Minimum ratio of a correlation to its standard error."""
_LEAST_CHI = 0.1
"""Minimum of a drawn variance ratio, which bounds the interval of two units."""


@dataclass(frozen=True, eq=False)
class Noise:
    """The distribution of the times of a unit's operations.

    Attributes
    ----------
    mean : ndarray of float64, shape (operations,)
    rest : ndarray of float64, shape (operations, draws)
        Differences from the mean in ns, in steps that were drawn.
    measured, within : float
        Variance of the mean steps of the units, over that of the mean step, and what the rest explains of it.
    units : int
        Number of units that it was measured on.
    """

    mean: Floats
    rest: Floats
    measured: float
    within: float
    units: int

    def between(self, generator: np.random.Generator | None = None) -> float:
        """Return the standard deviation of the units' means, over the mean step.

        With a generator, draw one that explains the measured ones as well: few units tell little of it.
        """
        freedom = self.units - 1
        if freedom < 1:
            return 0.0
        factor = 1.0 + 0.5 / freedom  # of a standard deviation of few values, squared and nearly unbiased
        if generator is not None:
            factor = freedom / max(float(generator.chisquare(freedom)), _LEAST_CHI * freedom)
        return float(np.sqrt(max(factor * self.measured - 2 * self.within, 0.0)))

    def times(self) -> Floats:
        """Return mean and rest, not below 0; shape (operations, draws)."""
        times: Floats = np.maximum(self.mean[:, None] + self.rest, 0.0)
        return times


def noise_of(work: Floats, names: Ints, generator: np.random.Generator) -> Noise:
    """Return the noise of measured times of shape (operations, units, steps), NaN where a unit has none.

    Operations of the same number in ``names``, shape (operations,), have the same noise in relation to their
    means.
    """
    mean = np.nanmean(work, axis=(1, 2))
    filled = np.where(np.isnan(work), mean[:, None, None], work)
    _, units, steps = filled.shape
    whole = max(float(mean.sum()), 1.0)
    total = filled.sum(axis=0)
    rest = filled - mean[:, None, None]
    own = total - total.mean(axis=1, keepdims=True)
    if units > 1 and steps > 2:
        common = _correlation(own)
        if common * np.sqrt(steps) > _SIGNIFICANT:
            # What the units have in common in a step does not make one of them the slowest.
            shared = rest.mean(axis=1, keepdims=True) - rest.mean(axis=(1, 2), keepdims=True)
            rest = rest - shared
            rest *= np.sqrt(units / (units - 1))
            own = rest.sum(axis=0) - rest.sum(axis=0).mean(axis=1, keepdims=True)
    within = measured = 0.0
    if units > 1 and steps > 2:
        within = float(own.var(axis=1, ddof=1).mean()) / steps / whole**2
        measured = float(total.mean(axis=1).var(ddof=1)) / whole**2
        if measured > 2 * within:
            rest = rest - rest.mean(axis=2, keepdims=True)
    return Noise(mean, _drawn(mean, rest, names, generator), measured, within, units)


def _drawn(mean: Floats, rest: Floats, names: Ints, generator: np.random.Generator) -> Floats:
    """Return drawn differences from the mean, shape (operations, draws)."""
    flat = rest.reshape(len(mean), -1)
    alone = float(flat.var(axis=1).sum())
    together = float(flat.sum(axis=0).var()) / max(alone, 1.0)
    if together > _TOGETHER or 0 < together < _INSTEAD:
        # Operations of a unit are slow together, or instead of each other: whole steps are drawn, with one
        # place in the tail.
        columns, place = generator.integers(flat.shape[1], size=_POOL), generator.random(_POOL)
        return np.array([_with_tail(row, row[columns], place) for row in flat])
    pool = np.empty((len(mean), _POOL))
    relative = flat / np.maximum(mean, 1.0)[:, None]
    length = np.rint(np.log2(np.maximum(mean, 1.0))).astype(np.int64)
    _, kinds = np.unique(np.stack([names, length]), axis=1, return_inverse=True)
    for kind in range(kinds.max() + 1):
        rows = np.flatnonzero(kinds.ravel() == kind)
        values = relative[rows].ravel()
        for row in rows.tolist():
            drawn = values[generator.integers(len(values), size=_POOL)]
            pool[row] = _with_tail(values, drawn, generator.random(_POOL)) * mean[row]
    return pool


def _correlation(series: Floats) -> float:
    """Return the mean correlation of rows with each other."""
    deviation = series.std(axis=1)
    if not deviation.all():
        return 0.0
    matrix = np.atleast_2d(np.corrcoef(series))
    return float(matrix[np.triu_indices(len(series), 1)].mean())


def _with_tail(values: Floats, drawn: Floats, place: Floats) -> Floats:
    """Return drawn values, of which the largest are at some place of a fitted tail."""
    count = int(np.sqrt(len(values)))
    if count < _FEWEST_TAIL:
        return drawn
    threshold = float(np.partition(values, -count - 1)[-count - 1])
    excess = values[values > threshold] - threshold
    if not len(excess) or excess.mean() <= 0:
        return drawn
    large = drawn > threshold
    drawn[large] = threshold + _pareto(excess, place[large])
    return drawn


def _pareto(excess: Floats, place: Floats) -> Floats:
    """Return quantiles of a generalized Pareto distribution, fitted by probability-weighted moments.

    The shape is drawn towards 0, that of an exponential tail, as if ten more values had told it (Hosking and
    Wallis, 1987).
    """
    ordered = np.sort(excess)
    count = len(ordered)
    first = float(ordered.mean())
    second = float((ordered * (count - 1 - np.arange(count)) / max(count - 1, 1)).mean())
    shape = 2 - first / (first - 2 * second) if first > 2 * second else _LARGEST_SHAPE
    shape = float(np.clip(shape * count / (count + 10), -_LARGEST_SHAPE, _LARGEST_SHAPE))
    scale = first * (1 - shape)
    tail = np.maximum(1 - place, 1e-6)
    quantiles: Floats = scale * (tail**-shape - 1) / shape if abs(shape) > 1e-3 else -scale * np.log(tail)
    return quantiles
