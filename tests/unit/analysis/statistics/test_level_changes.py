"""The lower bound of a series whose level may change once."""

from __future__ import annotations

import numpy as np

from hpcprof.analysis.statistics.level_changes import lower_bound


def bounds(series: np.ndarray) -> np.ndarray:
    return lower_bound(series, series, 0.99, 20, 0.75, (1.5, 0.5))


def test_a_level_that_jumps_is_as_certain_as_one_that_stays() -> None:
    noise = np.random.default_rng(0).normal(0, 0.2, (1, 43))
    jump = np.where(np.arange(43) < 20, 0.60, 0.88) * 100
    (bound,) = bounds(noise + jump)
    # The weaker of the two levels, less a few errors.
    assert 58.5 < bound < 60


def test_levels_of_which_one_is_around_zero_are_not_above_it() -> None:
    noise = np.random.default_rng(1).normal(0, 1, (200, 40))
    assert np.all(bounds(noise + np.where(np.arange(40) < 15, 0, 8)) < 0)


def test_slow_noise_is_rarely_above_zero() -> None:
    random, series = np.random.default_rng(2), np.empty((2000, 20))
    series[:, 0] = random.standard_normal(2000)
    for step in range(1, 20):
        series[:, step] = 0.9 * series[:, step - 1] + np.sqrt(0.19) * random.standard_normal(2000)
    assert np.mean(bounds(series) > 0) < 0.01
