"""The cost of late ranks in each step, and its interval."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from hpcprof.analysis.statistics.confidence_intervals import (
    common_correlation,
    correlation_with_next,
    expected_correlation,
    series_interval,
)
from hpcprof.analysis.statistics.grouped import Floats

CONFIDENCE = 0.99
"""The intervals of all ranks hold together with this probability."""

MIN_STEPS = 4
"""Fewer steps than this have no interval."""

_ERRORS, _OWN_ERRORS = 1.0, 0.3
"""The correlation of steps may be larger than measured by so many standard errors: of all ranks, of one."""

_ASSUMED_STEPS = 20
"""The weight of an assumed correlation of neighbouring steps, as a number of steps."""

_AT_ONCE = 512
"""The series judged at a time: those of thousands of ranks take much memory."""

SeriesT = TypeVar("SeriesT", bound=Hashable)


@dataclass(frozen=True)
class StepCosts:
    """The cost of one rank's lateness in each of its n steps, in ns.

    Attributes
    ----------
    cost : ndarray of float64, shape (n,)
        In the collectives to which the rank comes late beyond the uncertainty of the clocks.
    most : ndarray of float64, shape (n,)
        In all collectives to which it came late in this step, by chance or not.
    late : ndarray of float64, shape (n,)
        In all collectives, less what it was early to others by.
    clock : ndarray of float64, shape (n,)
        What the clocks may add or hide.
    """

    cost: Floats
    most: Floats
    late: Floats
    clock: Floats


def cost_intervals(costs: Mapping[SeriesT, StepCosts]) -> dict[SeriesT, tuple[float, float]]:
    """Return the interval of the cost per step of each series with enough steps, in ns.

    Each gets its part of the error probability, so that all intervals hold together.
    """
    judged = {key: one for key, one in costs.items() if len(one.cost) >= MIN_STEPS}
    found: dict[SeriesT, tuple[float, float]] = {}
    for steps in sorted({len(one.cost) for one in judged.values()}):
        alike = [key for key, one in judged.items() if len(one.cost) == steps]
        some = [alike[at : at + _AT_ONCE] for at in range(0, len(alike), _AT_ONCE)]
        found_in = [common_correlation(np.stack([judged[key].late for key in keys])) for keys in some]
        mean = np.average(found_in, axis=0, weights=[len(keys) for keys in some])
        usual = _usual(mean, len(alike), steps)
        for keys in some:
            found |= _intervals({key: judged[key] for key in keys}, len(judged), usual)
    return found


def _intervals(
    alike: Mapping[SeriesT, StepCosts], judged: int, usual: Floats
) -> dict[SeriesT, tuple[float, float]]:
    """Return the intervals of series with the same number of steps; ``usual`` as in `rank_intervals`."""
    names = ("cost", "most", "late", "clock")
    cost, most, late, clocks = (np.stack([getattr(one, name) for one in alike.values()]) for name in names)
    bounds = [rank_intervals(series, late, judged, usual) for series in (cost, most)]
    middle = np.median(cost, axis=-1)
    clock = np.median(clocks, axis=-1)
    low = np.maximum(0.0, np.minimum(bounds[0][0], middle) - clock)
    high = np.maximum(np.maximum(bounds[0][1], bounds[1][1]), middle) + clock
    return dict(zip(alike, zip(low.tolist(), high.tolist(), strict=True), strict=True))


def rank_intervals(
    series: Floats, late: Floats, judged: int, usual: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return the ends of the interval of each rank's series.

    Neighbouring steps count as correlated as the lateness of all ranks shows, and more where the rank's own
    steps show more. A series of costs alone would show less correlation, because it is 0 where a rank is not
    late.

    Parameters
    ----------
    series, late : ndarray of float64, shape (..., ranks, steps)
        What is judged, and the lateness that it is a part of.
    judged : int
        How many intervals hold together.
    usual : ndarray of float64, optional
        The correlation that the lateness of all ranks lets expect, where these are only some of them.

    Returns
    -------
    low, high : ndarray of float64, shape (..., ranks)
    """
    ranks, steps = series.shape[-2:]
    if usual is None:
        usual = _usual(common_correlation(late), ranks, steps)
    own = np.maximum(correlation_with_next(late), correlation_with_next(series))
    correlation = np.maximum(usual, expected_correlation(own, 1, steps, _ASSUMED_STEPS, usual, _OWN_ERRORS))
    return series_interval(series, 1 - (1 - CONFIDENCE) / judged, correlation)


def _usual(found: Floats, ranks: int, steps: int) -> Floats:
    """Return the correlation to expect of each of these ranks.

    Lateness is against the others, so that of two ranks is one series.
    """
    return expected_correlation(found, ranks / 2, steps, _ASSUMED_STEPS, errors=_ERRORS)
