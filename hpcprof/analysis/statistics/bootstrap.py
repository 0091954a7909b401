"""How sure a median is, by resampling (bootstrap)."""

from __future__ import annotations

import numpy as np

from hpcprof.analysis.summaries.grouped_statistics import Floats
from hpcprof.profiles.timeline import Ints

RESAMPLES = 2000
CONFIDENCE = 0.95


def resampled_medians(ordered: Ints | Floats, random: np.random.Generator) -> Floats:
    """Return the medians of `RESAMPLES` bootstrap resamples of a sample, shape (RESAMPLES,).

    Nothing is resampled value by value: the k-th smallest of n draws from the sorted sample is the
    sample's value at the k-th smallest of n uniform numbers, which follows the beta distribution with
    k and n - k + 1. So time and memory do not depend on n.

    Parameters
    ----------
    ordered : ndarray of int64 or float64, shape (n,)
        The sample in ascending order, n > 0.
    random : numpy.random.Generator
    """
    n = len(ordered)
    k = (n + 1) // 2
    low = random.beta(k, n - k + 1, RESAMPLES)
    if n % 2:
        return _at(ordered, low)
    # The next one is the smallest of n - k uniform numbers between the k-th and 1.
    high = low + (1 - low) * random.beta(1, n - k, RESAMPLES)
    return (_at(ordered, low) + _at(ordered, high)) / 2


def _at(ordered: Ints | Floats, share: Floats) -> Floats:
    place = np.minimum((share * len(ordered)).astype(np.int64), len(ordered) - 1)
    return ordered[place].astype(np.float64)


def percentile_interval(values: Floats) -> tuple[float, float]:
    """Return the 95 % percentile interval of resampled values."""
    low, high = np.quantile(values, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(low), float(high)
