"""The slope of one time over another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.timeline import Ints

_FEWEST = 20
_NEARLY_ALL = 0.95
_MOST_PAIRS = 400
_CONFIDENCE = 0.99
_SLOPE = 0.5
"""A time that follows another one grows with it: by 1 for each ns, surely by more than this."""


def grows_with(cause: Ints, effect: Ints) -> NDArray[np.bool_]:
    """Return in which of many repetitions something waited for what ended before it; times in ns, shape (n,).

    All or none of those in which the effect is no earlier: one that waits is nearly always later, and grows
    with the cause. The slope is that of Theil and Sen: a few odd repetitions do not decide.
    """
    later = effect >= cause
    chosen = np.linspace(0, len(cause) - 1, min(len(cause), _MOST_PAIRS)).astype(int)
    x, y = cause[chosen], effect[chosen]
    if later.sum() < max(_FEWEST, _NEARLY_ALL * len(cause)) or not np.ptp(x):
        return np.zeros(len(cause), bool)
    from scipy.stats import theilslopes

    # Many equal values make its variance negative, and the interval unknown.
    with np.errstate(invalid="ignore"):
        surely = bool(theilslopes(y, x, alpha=_CONFIDENCE).low_slope > _SLOPE)
    return later & surely
