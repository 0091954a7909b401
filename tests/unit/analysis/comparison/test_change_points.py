"""Change points of a series, and how sure they are."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import comb

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, multivariate_t

from hpcprof.analysis.comparison import change_points as module
from hpcprof.analysis.comparison.change_points import (
    change_points,
    change_probabilities,
    level_changes,
)


def series(*levels: tuple[int, float], noise: float = 0.01, seed: int = 0) -> list[float]:
    """Build runs whose logarithms vary, so many on each level."""
    random = np.random.default_rng(seed)
    values = np.concatenate([np.full(count, level) for count, level in levels])
    return [float(value) for value in values * np.exp(noise * random.standard_normal(len(values)))]


def test_the_probabilities_are_those_of_all_partitions_with_student_t_likelihoods() -> None:
    values = np.log(series((4, 1.0), (3, 1.04), seed=3))
    noise = module._noise(values)
    pulled = module._winsorized_series(values, noise) - np.median(module._winsorized_series(values, noise))

    def likelihood(part: np.ndarray[tuple[int, ...], np.dtype[np.float64]], correlation: float) -> float:
        apart = np.abs(np.subtract.outer(np.arange(len(part)), np.arange(len(part))))
        # Neighbours of such a series differ as little as independent values with less noise.
        of_noise = noise**2 / (1 - correlation) * correlation**apart
        return float(multivariate_t(np.zeros(len(part)), of_noise + 0.1**2, df=4).pdf(part))

    n = len(values)
    expected, whole = np.zeros(n), 0.0
    for correlation in (0.0, 0.5, 0.8):
        for count in range(n - 2):
            # The last level has three values.
            for cuts in combinations(range(1, n - 2), count):
                bounds = [0, *cuts, n]
                parts = [likelihood(pulled[a:b], correlation) for a, b in pairwise(bounds)]
                weight_of = float(np.prod(parts)) * 0.01**count * 0.99 ** (n - 1 - count)
                expected[list(cuts)] += weight_of
                whole += weight_of
    assert change_probabilities(values) == pytest.approx(expected / whole, abs=1e-6)


def test_several_series_at_once_have_the_probabilities_of_each_alone() -> None:
    values = np.log([series((10, 1.0), (10, 1.0 + 0.02 * seed), seed=seed) for seed in range(4)])
    alone = [change_probabilities(one) for one in values]
    assert change_probabilities(values) == pytest.approx(np.array(alone), abs=1e-9)


@pytest.mark.parametrize(("count", "prior"), [(25, 0.01), (100, 0.0025)])
def test_longer_series_are_not_expected_to_have_more_changes(
    monkeypatch: pytest.MonkeyPatch, count: int, prior: float
) -> None:
    values = np.log(series((count, 1.0), seed=7))
    found = change_probabilities(values)
    monkeypatch.setattr(module, "_PER_SERIES", np.inf)
    monkeypatch.setattr(module, "_PER_VALUE", prior)
    assert found == pytest.approx(change_probabilities(values))


@pytest.mark.parametrize(("before", "after"), [(3, 3), (20, 3), (5, 12), (40, 30), (90, 4)])
def test_ranks_are_compared_by_the_exact_test_of_mann_and_whitney(before: int, after: int) -> None:
    random = np.random.default_rng(5)
    for shift in (0.0, 1.0, -2.0):
        runs = random.standard_normal(before), random.standard_normal(after) + shift
        allowed = 2 / comb(before + after, 3)
        expected = mannwhitneyu(*runs, method="exact").pvalue
        assert min(1.0, module._p_value_ratio(*runs) * allowed) == pytest.approx(expected)
    three_above_all = np.arange(before, dtype=float), before + np.arange(3.0)
    assert module._p_value_ratio(*three_above_all) == pytest.approx(1)


def test_looks_after_each_run_seldom_see_a_change_in_skewed_noise() -> None:
    values = 0.01 * np.random.default_rng(9).exponential(1, (60, 80))
    calm = values
    for end in range(module.FEWEST, 81):
        found = change_probabilities(calm[:, :end])
        calm = calm[[not level_changes(one, of) for one, of in zip(calm[:, :end], found, strict=True)]]
    # Without the comparison of ranks, 11 of 60.
    assert len(values) - len(calm) <= 3


@pytest.mark.parametrize("level", [1.05, 0.95])
def test_a_change_of_five_times_the_noise_is_found_where_it_is(level: float) -> None:
    (found,) = change_points(series((20, 1.0), (10, level)))
    assert found.position == 20
    assert found.probability > 0.95
    assert found.before == pytest.approx(1, abs=0.01)
    assert found.after == pytest.approx(level, abs=0.01)


def test_two_changes_are_found() -> None:
    found = change_points(series((15, 1.0), (15, 1.1), (15, 1.0)))
    assert [one.position for one in found] == [15, 30]


@pytest.mark.parametrize("position", [0, 7, 19])
def test_a_single_run_that_is_far_off_is_no_change(position: int) -> None:
    values = series((20, 1.0))
    values[position] *= 3
    assert change_points(values) == []


@pytest.mark.parametrize("far", [(0, 1), (6, 7), (6, 8, 9), (16, 17), (17, 18), (17, 19), (3, 4, 12, 13)])
def test_a_few_runs_that_are_far_off_are_no_change(far: tuple[int, ...]) -> None:
    values = series((20, 1.0))
    for position in far:
        values[position] *= 1.3
    assert change_points(values) == []


def test_three_last_runs_on_one_level_are_a_change() -> None:
    (found,) = change_points(series((20, 1.0), (3, 1.3)))
    assert found.position == 20
    assert change_points(series((20, 1.0), (2, 1.3))) == []
    assert change_points(series((20, 1.0), (1, 1.3), (1, 1.6))) == []


@pytest.mark.parametrize("off", [1.03, 1.05, 1.3])
def test_the_last_run_alone_is_never_a_change(off: float) -> None:
    for seed in range(20):
        values = series((20, 1.0), seed=seed)
        values[-1] *= off
        assert all(one.position < 18 for one in change_points(values))


def test_a_level_that_wanders_is_seldom_called_a_change() -> None:
    draw = np.random.default_rng(4)
    marked = 0
    for _ in range(40):
        values = draw.standard_normal(60)
        for i in range(1, 60):
            values[i] = 0.8 * values[i - 1] + 0.6 * values[i]
        marked += bool(change_points(np.exp(0.01 * values).tolist()))
    # As if the runs were independent, 36 of 40.
    assert marked <= 3


def test_of_series_with_one_run_in_twenty_far_off_few_are_marked() -> None:
    random = np.random.default_rng(2)
    marked = [
        bool(change_points((np.array(series((60, 1.0), seed=seed)) * (1 + far)).tolist()))
        for seed in range(40)
        for far in [0.3 * (random.random(60) < 0.05)]
    ]
    assert sum(marked) <= 2


def test_a_series_without_change_has_none_even_if_its_values_are_equal_or_few() -> None:
    marked = [bool(change_points(series((20, 1.0), seed=seed))) for seed in range(30)]
    assert sum(marked) <= 2
    assert change_points([1e6] * 50) == []
    assert change_points([1.0, 1.0, 2.0, 2.0]) == []


def test_of_a_long_series_the_last_values_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VALUES", 40)
    (found,) = change_points(series((20, 2.0), (40, 1.0), (20, 1.1)))
    assert found.position == 60
