"""What the lateness of ranks costs in each step, and the interval of the cost."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from hpcprof.analysis.statistics.confidence_intervals import (
    correlation_with_next,
    expected_correlation,
    series_interval,
)
from hpcprof.analysis.statistics.grouped import Floats

CONFIDENCE = 0.99
"""The intervals of all ranks hold together with this probability."""

MIN_STEPS = 4
"""Fewer steps than this have no interval."""

SeriesT = TypeVar("SeriesT", bound=Hashable)


@dataclass(frozen=True)
class StepCosts:
    """What the lateness of one rank cost in each of its n steps, in ns.

    Attributes
    ----------
    cost : ndarray of float64, shape (n,)
        In the collectives to which the rank comes late beyond the uncertainty of the clocks.
    most : ndarray of float64, shape (n,)
        In all collectives to which it came late in this step, by chance or not.
    clock : ndarray of float64, shape (n,)
        What the clocks may add or hide.
    """

    cost: Floats
    most: Floats
    clock: Floats


def cost_intervals(costs: Mapping[SeriesT, StepCosts]) -> dict[SeriesT, tuple[float, float]]:
    """Return the interval of the cost per step of each rank with enough steps, in ns.

    Each rank gets its part of the error probability, so that all intervals hold together.
    """
    judged = {rank: one for rank, one in costs.items() if len(one.cost) >= MIN_STEPS}
    confidence = 1 - (1 - CONFIDENCE) / max(len(judged), 1)
    low = _bounds([one.cost for one in judged.values()], confidence)
    high = _bounds([one.most for one in judged.values()], confidence)
    found = {}
    for (rank, one), bounds, most in zip(judged.items(), low, high, strict=True):
        middle, clock = float(np.median(one.cost)), float(np.median(one.clock))
        found[rank] = (
            max(0.0, min(bounds[0], middle) - clock),
            max(bounds[1], most[1], middle) + clock,
        )
    return found


def _bounds(series: Sequence[Floats], confidence: float) -> list[tuple[float, float]]:
    """Return the interval of each rank's series.

    Neighbouring steps count as correlated as those of the rank, or as those of all ranks if that is more.
    """
    own = [correlation_with_next(values) for values in series]
    together = float(np.mean(own)) if own else 0.0
    usual = expected_correlation(together, sum(map(len, series)) // 2)
    return [
        series_interval(values, confidence, max(usual, expected_correlation(found, len(values))))
        for values, found in zip(series, own, strict=True)
    ]
