"""Steps that take long once: the set-up of a communicator, a first compilation, a single checkpoint.

1. A step is long if it exceeds the median by `MIN_EXCESS` of it, and by `MIN_DEVIATIONS` standard deviations
   of the other steps (by their median absolute deviation).
2. A long step happens once if no other long step has an excess within a factor of `ALIKE` of its own.
   Several of a kind are a rate, such as a checkpoint in each tenth step.
"""

import numpy as np

from hpcprof.analysis.statistics.robust import MAD_TO_DEVIATION
from hpcprof.profiles.timeline import Ints, Mask

MIN_EXCESS = 0.5
"""Minimum excess of a long step over the median, as a share of the median."""

MIN_DEVIATIONS = 10
"""Minimum excess of a long step in standard deviations of the other steps."""

ALIKE = 4.0
"""Maximum ratio of the excesses of long steps of one kind."""

MIN_STEPS = 6
"""Minimum number of steps of a series in which a long step stands out."""


def happened_once(wall: Ints) -> Mask:
    """Return which steps take long once.

    Parameters
    ----------
    wall : ndarray of int64, shape (steps,)
        Wall times in ns.
    """
    once = np.zeros(len(wall), bool)
    if len(wall) < MIN_STEPS:
        return once
    median = float(np.median(wall))
    excess = wall - median
    spread = MAD_TO_DEVIATION * float(np.median(np.abs(excess)))
    long = np.flatnonzero(excess > max(MIN_EXCESS * median, MIN_DEVIATIONS * spread))
    order = long[np.argsort(excess[long])]
    apart = np.diff(np.log(excess[order])) > np.log(ALIKE)
    once[order] = np.append(True, apart) & np.append(apart, True)
    return once


def once_ns(wall: Ints) -> float:
    """Return by how much the steps that take long once exceed the median of ``wall``, in ns in all."""
    once = happened_once(wall)
    return float(np.sum(wall[once] - np.median(wall))) if once.any() else 0.0
