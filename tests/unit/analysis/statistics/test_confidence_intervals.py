"""Confidence intervals of the level of a series."""

from __future__ import annotations

import numpy as np
import pytest

from hpcprof.analysis.statistics.confidence_intervals import (
    common_correlation,
    correlation_with_next,
    expected_correlation,
    series_interval,
)


def test_without_correlation_and_trimming_the_interval_is_students() -> None:
    # t(0.975, 4) = 2.7764, and the standard error of 1 to 5 is sqrt(2.5 / 5).
    low, high = series_interval(np.arange(1.0, 6.0), 0.95, np.zeros(()))
    assert (low, high) == pytest.approx((3 - 2.7764 * 0.5**0.5, 3 + 2.7764 * 0.5**0.5), rel=1e-4)


def test_one_outlier_among_ten_values_does_not_widen_the_interval() -> None:
    usual = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    spoiled = np.where(usual == 10, 1e6, usual)
    correlation = np.full((), 0.5)
    found, expected = (series_interval(one, 0.95, correlation) for one in (spoiled, usual))
    assert [*map(float, found)] == [*map(float, expected)]


@pytest.mark.parametrize("values", [6, 20])
def test_intervals_of_series_whose_neighbours_are_alike_hold_the_mean_as_often_as_they_say(
    values: int,
) -> None:
    draw, correlation, trials = np.random.default_rng(values), 0.6, 20_000
    series = draw.standard_normal((trials, values))
    for step in range(1, values):
        series[:, step] = correlation * series[:, step - 1] + 0.8 * series[:, step]
    low, high = series_interval(series, 0.99, np.full(trials, correlation))
    assert 0.99 < np.mean((low < 0) & (high > 0)) < 0.997
    # As if they were independent, far fewer hold it.
    low, high = series_interval(series, 0.99, np.zeros(trials))
    assert np.mean((low < 0) & (high > 0)) < 0.95


def test_the_correlation_of_many_values_is_found_and_that_of_few_is_mixed_with_an_assumption() -> None:
    new = np.random.default_rng(0).standard_normal(20_000)
    series = new.copy()
    for i in range(1, len(series)):
        series[i] = 0.7 * series[i - 1] + new[i]
    found = correlation_with_next(series)
    assert found == pytest.approx(0.7, abs=0.03)
    assert expected_correlation(found, 1, len(series), 20) == pytest.approx(found, abs=0.001)
    # Of five values, Kendall's correction leaves the weight of 4 / 5.
    assert expected_correlation(np.array(0.9), 1, 5, 20) == pytest.approx((0.8 * 0.9 + 20 * 0.5) / 20.8)
    assert expected_correlation(np.array(0.9), 10, 5, 20, 0.1) == pytest.approx((8 * 0.9 + 20 * 0.1) / 28)
    assert expected_correlation(np.array(-0.5), 1, 1000, 20) == 0.0
    assert expected_correlation(np.array(2.0), 1, 1000, 20) == 0.9


def test_a_slow_change_beside_fast_noise_counts_as_more_than_the_next_value_shows() -> None:
    draw = np.random.default_rng(0)
    slow = draw.standard_normal((16, 1000))
    for i in range(1, 1000):
        slow[:, i] = 0.8 * slow[:, i - 1] + 0.6 * slow[:, i]
    series = slow + draw.standard_normal((16, 1000))
    assert correlation_with_next(series).mean() == pytest.approx(0.4, abs=0.03)
    # The mean varies as that of a series whose neighbours correlate with 2 / 3; eight lags show most of it.
    assert 0.55 < common_correlation(series).item() < 2 / 3
    assert common_correlation(series[:, :8]).item() == pytest.approx(
        correlation_with_next(series[:, :8]).mean()
    )
    independent = draw.standard_normal((16, 1000))
    assert common_correlation(independent).item() == pytest.approx(0.0, abs=0.06)


def test_many_skewed_values_have_an_interval_around_their_median() -> None:
    series = np.random.default_rng(2).lognormal(0, 1, (2000, 100))
    low, high = series_interval(series, 0.99, np.zeros(2000))
    assert np.mean((low < 1) & (high > 1)) > 0.95
    assert np.mean(low < np.exp(0.5)) > 0.99


def test_equal_values_have_no_width() -> None:
    assert correlation_with_next(np.ones(5)) == pytest.approx(0.5)
    found = series_interval(np.ones(5), 0.95, np.full((), 0.5))
    assert [*map(float, found)] == [1.0, 1.0]
