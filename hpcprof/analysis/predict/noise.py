"""The noise of ranks, from the times of a few, for the slowest of many.

1. A time is the sum of the mean of its operation, a lasting difference of the unit (between), a difference
   of the step on all units (common), and a residual (within).
2. Between is the part of the variance of the units' means that the residuals do not explain. Common is
   significant if the totals of the units are correlated; otherwise it is part of the residuals.
3. Residuals are drawn from the measured ones: of operations of the same name and about the same length or, if
   the operations of a step are correlated, whole steps of a unit. The largest ones are drawn from a
   generalized Pareto distribution (Pickands, Balkema and de Haan), so that the largest of many can exceed the
   largest measured one.
4. Rare pauses of single units are no part of that noise: they keep their lengths at any load.
"""

from dataclasses import dataclass

import numpy as np

from hpcprof.profiles.timeline import Floats, Ints

_POOL = 4096
"""Number of simulated steps of a unit; replays sample from them."""
_MIN_TAIL = 8
"""Minimum number of values in the tail, which has as many as the root of all."""
_MIN_COMMON_RATIO = 2.0
"""Minimum ratio of the variance of a step to the sum of those of its operations, if these are correlated."""
_MAX_COMPENSATING_RATIO = 0.25
"""Maximum ratio of these, if operations are slow instead of each other."""
_LARGEST_SHAPE = 0.5
"""Maximum shape of the tail: the mean of the largest of many exists below 1, its variance below 0.5."""
_SIGNIFICANT = 2.5
"""Minimum ratio of a correlation to its standard error."""
_PRIOR_VALUES = 10
"""Number of values that an exponential tail is worth, beside those measured."""
_MIN_STEPS = 8
"""Minimum number of steps in which a pause can be told."""
_PAUSE_GAP = 4.0
"""Minimum ratio of the excess of a pause to the largest ordinary one; a heavy tail has no such gap."""
_MIN_PAUSE = 0.01
"""Minimum excess of a pause over the median, in mean steps."""
_RARE = 0.2
"""Maximum number of pauses in a step of a unit."""
_MIN_ORDINARY = 1e-4
"""Minimum mean distance of ordinary times from the median, in mean steps, in which times are compared."""
_COMMON_LENGTH = 0.5
"""Minimum ratio of the shortest to the longest pause in a step that have one cause."""
_PAUSE_SPREAD = 0.5
"""Standard deviation of the logarithm of a pause's length, if one was measured."""
_MIN_CHI = 0.1
"""Minimum of a drawn chi-square over its degrees of freedom, which bounds the interval of one unit."""


@dataclass(frozen=True, eq=False)
class Noise:
    """The distribution of the times of a unit's operations."""

    mean: Floats
    """Shape (operations,)."""
    rest: Floats
    """Differences from the mean in ns, in steps that were drawn; shape (operations, draws)."""
    pauses: Floats
    """Rare pauses of one unit in ns, in the same steps; shape (operations, draws)."""
    measured: float
    within: float
    """Variance of the units' mean steps, and the part that the residuals explain, over the squared mean step.
    """
    units: int
    steps: int
    """Number of units and of steps that it was measured on."""

    def between(self, generator: np.random.Generator | None = None) -> float:
        """Return the standard deviation of the units' means, over the mean step.

        Lasting differences are believed where the means fit them better than none (Bayes factor, even prior
        odds). Their variance is the measured one, with a prior worth one unit: that of a unit over its
        steps. With a generator, the answer is drawn from this posterior.
        """
        freedom, passing = self.units - 1, self.within * self.steps
        lasts = self._lasting(freedom, passing)
        if (lasts <= 0.5) if generator is None else (generator.random() > lasts):
            return 0.0
        scale = freedom * max(self.measured - self.within, 0.0) + passing
        chi = (freedom + 1) * (1 - 2 / (9 * (freedom + 1))) ** 3  # the median (Wilson and Hilferty)
        if generator is not None:
            chi = max(float(generator.chisquare(freedom + 1)), _MIN_CHI * (freedom + 1))
        return float(np.sqrt(scale / chi))

    def _lasting(self, freedom: int, passing: float) -> float:
        """Return the probability that the units differ by more than the rest explains."""
        if self.within <= 0:
            return float(self.measured > 0)
        ratio = 1 + passing / self.within
        exponent = self.measured / self.within * (1 - 1 / ratio) - np.log(ratio)
        return float(1 / (1 + np.exp(-np.clip(freedom / 2 * exponent, -50, 50))))

    def times(self, factor: Floats | float = 1.0) -> Floats:
        """Return pauses, and ``factor`` times mean and rest, not below 0; shape (operations, draws)."""
        times: Floats = factor * np.maximum(self.mean[:, None] + self.rest, 0.0) + self.pauses
        return times


def noise_of(work: Floats, names: Ints, generator: np.random.Generator, doubt: bool = False) -> Noise:
    """Return the noise of measured times of shape (operations, units, steps), NaN where a unit has none.

    Operations of the same number in ``names``, shape (operations,), have the same noise in relation to their
    means. With ``doubt``, the shape of the tail is drawn from those that explain the measured values.
    """
    mean = np.nanmean(work, axis=(1, 2))
    paused = _pauses(np.where(np.isnan(work), mean[:, None, None], work))
    work = work - paused
    mean = np.nanmean(work, axis=(1, 2))
    filled = np.where(np.isnan(work), mean[:, None, None], work)
    _, units, steps = filled.shape
    whole = max(float(mean.sum()), 1.0)
    total = filled.sum(axis=0)
    residuals = filled - mean[:, None, None]
    excess = total - total.mean(axis=1, keepdims=True)
    if units > 1 and steps > 2:
        common = _correlation(excess)
        if common * np.sqrt(steps) > _SIGNIFICANT:
            # Noise that units share in a step does not make one of them the slowest.
            shared = residuals.mean(axis=1, keepdims=True) - residuals.mean(axis=(1, 2), keepdims=True)
            residuals = residuals - shared
            residuals *= np.sqrt(units / (units - 1))
            excess = residuals.sum(axis=0) - residuals.sum(axis=0).mean(axis=1, keepdims=True)
    within = measured = 0.0
    if steps > 2:
        within = float(excess.var(axis=1, ddof=1).mean()) / steps / whole**2
    if units > 1 and steps > 2:
        measured = float(total.mean(axis=1).var(ddof=1)) / whole**2
        if measured > 2 * within:
            residuals = residuals - residuals.mean(axis=2, keepdims=True)
    differences = _draw_differences(mean, residuals, names, generator, doubt)
    return Noise(mean, differences, _draw_pauses(paused, generator, doubt), measured, within, units, steps)


def _pauses(work: Floats) -> Floats:
    """Return the excess of times over the median of their unit in rare pauses, 0 elsewhere.

    Pauses of about the same length on more than half of the units in one step are common, and left out.
    """
    if work.shape[2] < _MIN_STEPS or not work.size:
        return np.zeros_like(work)
    excess = work - np.median(work, axis=2, keepdims=True)
    step = work.mean(axis=(1, 2)).sum()
    sizes = np.sort(np.abs(excess).reshape(len(work), -1), axis=1)
    usual = sizes[:, : int(np.ceil((1 - _RARE) * sizes.shape[1]))].mean(axis=1)[:, None, None]
    relative = excess / np.maximum(usual, _MIN_ORDINARY * step)
    ordered = np.sort(relative, axis=None)[-int(_RARE * excess[0].size) - 1 :]
    gaps = np.flatnonzero(ordered[1:] >= _PAUSE_GAP * np.maximum(ordered[:-1], 1.0))
    if not gaps.size:
        return np.zeros_like(work)
    pause = (relative >= ordered[gaps[0] + 1]) & (excess >= _MIN_PAUSE * step)
    lengths = np.where(pause, excess, np.nan)
    number = pause.sum(axis=1, keepdims=True)
    few = number <= max(work.shape[1] / 2, 1)
    alike = np.fmin.reduce(lengths, axis=1, keepdims=True) >= _COMMON_LENGTH * np.fmax.reduce(
        lengths, axis=1, keepdims=True
    )
    return np.where(pause & (few | ~alike), excess, 0.0)


def _draw_pauses(paused: Floats, generator: np.random.Generator, doubt: bool) -> Floats:
    """Return drawn pauses, shape (operations, draws): smoothed measured lengths at their rate."""
    drawn = np.zeros((len(paused), _POOL))
    for row, times in zip(drawn, paused.reshape(len(paused), -1), strict=True):
        lengths = times[times > 0]
        if len(lengths):
            spread = _PAUSE_SPREAD * len(lengths) ** -0.2
            factor = np.exp(spread * generator.standard_normal(_POOL) - spread**2 / 2)
            if doubt:
                factor *= np.exp(_PAUSE_SPREAD / len(lengths) ** 0.5 * generator.standard_normal())
            strikes = generator.random(_POOL) < len(lengths) / len(times)
            row[strikes] = (factor * generator.choice(lengths, _POOL))[strikes]
    return drawn


def _draw_differences(
    mean: Floats, residuals: Floats, names: Ints, generator: np.random.Generator, doubt: bool
) -> Floats:
    """Return drawn differences from the mean, shape (operations, draws)."""
    flat = residuals.reshape(len(mean), -1)
    alone = float(flat.var(axis=1).sum())
    together = float(flat.sum(axis=0).var()) / max(alone, 1.0)
    if together > _MIN_COMMON_RATIO or 0 < together < _MAX_COMPENSATING_RATIO:
        # Operations of a unit are slow together, or instead of each other: whole steps are drawn, with one
        # place in the tail.
        columns, place = generator.integers(flat.shape[1], size=_POOL), generator.random(_POOL)
        error = float(generator.standard_normal()) if doubt else 0.0
        return np.array([_with_tail(row, row[columns], place, error) for row in flat])
    pool = np.empty((len(mean), _POOL))
    relative = flat / np.maximum(mean, 1.0)[:, None]
    length = np.rint(np.log2(np.maximum(mean, 1.0))).astype(np.int64)
    _, kinds = np.unique(np.stack([names, length]), axis=1, return_inverse=True)
    for kind in range(kinds.max() + 1):
        rows = np.flatnonzero(kinds.ravel() == kind)
        values = relative[rows].ravel()
        error = float(generator.standard_normal()) if doubt else 0.0
        for row in rows.tolist():
            drawn = values[generator.integers(len(values), size=_POOL)]
            pool[row] = _with_tail(values, drawn, generator.random(_POOL), error) * mean[row]
    return pool


def _correlation(series: Floats) -> float:
    deviation = series.std(axis=1)
    if not deviation.all():
        return 0.0
    matrix = np.atleast_2d(np.corrcoef(series))
    return float(matrix[np.triu_indices(len(series), 1)].mean())


def _with_tail(values: Floats, drawn: Floats, place: Floats, error: float) -> Floats:
    """Return drawn values, the largest of which are replaced by draws from a fitted Pareto tail.

    ``error`` shifts the shape of the tail, in standard errors.
    """
    ordered = np.sort(values)
    count = int(np.sqrt(len(values)))
    if count < _MIN_TAIL:
        return drawn
    threshold = ordered[-count - 1]
    excess = ordered[-count:] - threshold
    if excess.mean() <= 0:
        return drawn
    large = drawn > threshold
    drawn[large] = threshold + _pareto(excess, place[large], error)
    return drawn


def _shape(ordered: Floats) -> float:
    """Return the shape of a generalized Pareto distribution by probability-weighted moments, below 1."""
    count = len(ordered)
    first = float(ordered.mean())
    second = float((ordered * (count - 1 - np.arange(count)) / max(count - 1, 1)).mean())
    return 2 - first / (first - 2 * second) if first > 2 * second else 1.0


def _pareto(excess: Floats, place: Floats, error: float) -> Floats:
    """Return quantiles of a generalized Pareto distribution, fitted by probability-weighted moments.

    The shape is shrunk towards 0, the shape of an exponential tail, with a prior weight of ten values
    (Hosking and Wallis, 1987); its standard error is (1 + shape) / sqrt(values) (Smith, 1987).
    """
    count = len(excess)
    shape = min(_shape(excess), _LARGEST_SHAPE) * count / (count + _PRIOR_VALUES)
    shape += error * (1 + shape) / np.sqrt(count + _PRIOR_VALUES)
    shape = float(np.clip(shape, -_LARGEST_SHAPE, _LARGEST_SHAPE))
    scale = float(excess.mean()) * (1 - shape)
    tail = np.maximum(1 - place, 1e-6)
    return scale * (tail**-shape - 1) / shape if abs(shape) > 1e-3 else -scale * np.log(tail)
