"""What the times of the steps show by themselves: single steps that take longer, and a level that changes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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
_DRIFT_RATIO = 1.03
_DRIFT_ERRORS = 6.0
_MOST_ALIKE = 0.8


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
    first and the last step are left out, as they are of `spikes`. Steps that get shorter have the same cause:
    the level is not steady.
    """
    wall = series.wall[1:-1].astype(float)
    count = len(wall)
    if count < _FEWEST_FOR_DRIFT:
        return None
    line, change = _line(wall), _level_change(wall)
    first = int(np.flatnonzero(np.diff(change))[0]) + 1 if np.ptp(change) else count
    changes = np.abs(wall - change).sum() <= np.abs(wall - line).sum() and first < count
    level = change if changes else line
    low, high = sorted((float(level[0]), float(level[-1])))
    if high < _DRIFT_RATIO * low:
        return None
    # Of a line through n steps, the variance of the change from end to end is 12 / n of that of a step.
    variance = 1 / first + 1 / (count - first) if changes else 12 / count
    error = _deviation(wall - level) * float(np.sqrt(variance))
    # What is left of few steps is too close to what was fitted to them.
    if high - low < _DRIFT_ERRORS * (1 + _DRIFT_ERRORS / count) * error:
        return None
    worse = series.steps[1:-1][level > (low + high) / 2] if changes else np.empty(0, np.int64)
    excess = float(np.mean(level)) - low
    return Drift(excess, error * excess / (high - low), worse)


def _line(wall: Floats) -> Floats:
    """Return the line of Theil and Sen, which single long steps do not bend."""
    number = np.arange(len(wall))
    first, second = np.triu_indices(len(wall), 1)
    slope = float(np.median((wall[second] - wall[first]) / (second - first)))
    line: Floats = slope * number + np.median(wall - slope * number)
    return line


def _level_change(wall: Floats) -> Floats:
    """Return the two levels, each the median of its steps, that are closest to the steps."""
    fewest = max(_FEWEST_AT_LEVEL, len(wall) // 6)
    found = [
        np.repeat((np.median(wall[:first]), np.median(wall[first:])), (first, len(wall) - first))
        for first in range(fewest, len(wall) - fewest + 1)
    ]
    return min(found, key=lambda level: float(np.abs(wall - level).sum()))


def _deviation(rest: Floats) -> float:
    """Return the standard deviation of what is left of steps, as if neighbours were independent."""
    deviation = 1.4826 * float(np.median(np.abs(rest)))
    limited = np.clip(rest, -3 * deviation, 3 * deviation)
    square = float((limited**2).sum())
    alike = float((limited[1:] * limited[:-1]).sum()) / square if square else 0.0
    alike = min(max(alike, 0.0), _MOST_ALIKE)
    return deviation * float(np.sqrt((1 + alike) / (1 - alike)))
