"""Outliers and change points in the times of the steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcprof.analysis.statistics.confidence_intervals import widening
from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.analysis.steps.run_step import StepSeries
from hpcprof.profiles.timeline import Ints

_FEWEST_FOR_SPIKES = 5
_SPIKE_RATIO = 1.25
_SPIKE_DEVIATIONS = 8
MOST_SPIKES = 0.34
"""If a larger share of the steps is far off, they are no exceptions."""

_FEWEST_FOR_DRIFT = 10
_FEWEST_AT_LEVEL = 3
_MOST_LEVELS = 1_000
"""The time to find a level grows with the square of the steps."""

_DRIFT_RATIO = 1.03
_DRIFT_ERRORS = 6.0


def spikes(series: StepSeries) -> Ints:
    """Return the rows of the steps that take much longer than the others.

    The first step of a capture does not count: the profiler starts in it, and queues are empty. The last one
    runs to its own end instead of to the next front, and often waits for the GPU: it counts only beside
    others.

    A spike takes a quarter longer than the median and is eight deviations above it; the deviation is that of
    the median distance. If a third of the steps are far off, they are no exceptions.
    """
    wall = series.wall[1:].astype(float)
    if len(wall) < _FEWEST_FOR_SPIKES:
        return np.empty(0, np.int64)
    usual = float(np.median(wall))
    deviation = 1.4826 * float(np.median(np.abs(wall - usual)))
    high = np.flatnonzero((wall > _SPIKE_RATIO * usual) & (wall - usual > _SPIKE_DEVIATIONS * deviation))
    none = len(high) > MOST_SPIKES * len(wall) or high.tolist() == [len(wall) - 1]
    found: Ints = np.empty(0, np.int64) if none else high + 1
    return found


class Drift(NamedTuple):
    """A level of the steps that changes.

    Attributes
    ----------
    excess : float
        How much longer the mean step takes than a step at the better end, in ns.
    error : float
        The standard error of ``excess``, from how far the steps are from the level.
    steps : ndarray of int64
        The steps at the worse level; empty if the level drifts.
    """

    excess: float
    error: float
    steps: Ints


def drift(series: StepSeries) -> Drift | None:
    """Return the change of the level of the steps; None if that is chance.

    The level is a line, or one level up to some step and another from there on, whichever is closer to the
    steps. Its change counts if it is 3 % and six of its standard errors, which the correlation of
    neighbouring steps makes larger (``benchmarks/drift.py`` shows how often that happens by chance). The
    first and the last step are left out, and spikes. Of many steps, neighbours count as one by their median.
    Steps that get shorter have the same cause: the level is not steady.
    """
    rows = np.setdiff1d(np.arange(1, len(series.wall) - 1), spikes(series))
    rows, wall = _blocks(rows, series.wall[rows].astype(float))
    count = len(rows)
    if count < _FEWEST_FOR_DRIFT:
        return None
    every = np.arange(len(series.wall))
    line, first = _line(rows, wall), _first_of_level(wall)
    below, above = np.median(wall[:first]), np.median(wall[first:])
    change, lines = np.where(every < rows[first], below, above), np.polyval(line, every).astype(float)
    changes = np.abs(wall - change[rows]).sum() <= np.abs(wall - lines[rows]).sum()
    level: Floats = change if changes else lines
    low, high = float(level.min()), float(level.max())
    if high < _DRIFT_RATIO * low:
        return None
    # Of a line through n steps, the variance of the change from end to end is 12 / n of that of a step.
    variance = 1 / first + 1 / (count - first) if changes else 12 / count
    error = _deviation(wall - level[rows]) * float(np.sqrt(variance))
    # What is left of few steps is too close to what was fitted to them.
    if high - low < _DRIFT_ERRORS * (1 + _DRIFT_ERRORS / count) * error:
        return None
    worse = series.steps[level > (low + high) / 2] if changes else np.empty(0, np.int64)
    excess = float(np.mean(level)) - low
    return Drift(excess, error * excess / (high - low), worse)


def _blocks(rows: Ints, wall: Floats) -> tuple[Ints, Floats]:
    """Return steps and their times, or blocks of neighbours by the middle one and the median time."""
    size = -(-len(rows) // _MOST_LEVELS) or 1
    whole = slice(len(rows) % size, None)
    middle = rows[whole].reshape(-1, size)[:, size // 2]
    return middle, np.median(wall[whole].reshape(-1, size), axis=1)


def _line(number: Ints, wall: Floats) -> tuple[float, float]:
    """Return the slope and the height at 0 of the line of Theil and Sen, which single steps do not bend."""
    first, second = np.triu_indices(len(wall), 1)
    slope = float(np.median((wall[second] - wall[first]) / (number[second] - number[first])))
    return slope, float(np.median(wall - slope * number))


def _first_of_level(wall: Floats) -> int:
    """Return the step from which on another level is closest to the steps; each level is a median."""
    fewest = max(_FEWEST_AT_LEVEL, len(wall) // 6)
    possible = range(fewest, len(wall) - fewest + 1)
    return min(possible, key=lambda first: _distance(wall[:first]) + _distance(wall[first:]))


def _distance(wall: Floats) -> float:
    return float(np.abs(wall - np.median(wall)).sum())


def _deviation(rest: Floats) -> float:
    """Return the standard deviation of what is left of steps, as if neighbours were independent."""
    return 1.2533 * float(np.mean(np.abs(rest))) * widening(rest)
