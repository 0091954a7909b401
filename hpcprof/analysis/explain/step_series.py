"""What the times of the steps show by themselves: single steps that take longer, and a level that changes."""

from __future__ import annotations

import numpy as np

from hpcprof.analysis.steps.run_step import StepSeries
from hpcprof.profiles.timeline import Ints

_FEWEST_FOR_SPIKES = 5
_SPIKE_RATIO = 1.25
_SPIKE_DEVIATIONS = 8
MOST_SPIKES = 0.34
"""If a larger share of the steps is far off, they are no exceptions."""

_FEWEST_FOR_DRIFT = 12
_DRIFT_RATIO = 1.03
_DRIFT_Z = 4.0


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


def drift(series: StepSeries) -> float:
    """Return by how much the last third of the steps takes longer than the first, in ns; 0 if that is chance.

    It counts if it is 3 % and the trend is significant (Mann and Kendall's test, z of 4, without the first
    step). Steps that get shorter have the same cause: the level is not steady.
    """
    wall = series.wall[1:].astype(float)
    count = len(wall)
    if count < _FEWEST_FOR_DRIFT:
        return 0.0
    sign = np.sign(wall[None, :] - wall[:, None])
    score = float(np.triu(sign, 1).sum())
    deviation = float(np.sqrt(count * (count - 1) * (2 * count + 5) / 18))
    third = count // 3
    first, last = float(np.median(wall[:third])), float(np.median(wall[-third:]))
    ratio = max(first, last) / max(min(first, last), 1.0)
    return last - first if abs(score) / deviation >= _DRIFT_Z and ratio >= _DRIFT_RATIO else 0.0
