"""Medians of values that come in clusters, and intervals of their differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t as student

from hpcprof.analysis.statistics.clustered_medians import ClusteredMedians

SIDES = np.zeros(2, np.int64)
DIFFERENCE = np.array([-1.0, 1.0])


def half_width(group: list[int], cluster: list[int], value: list[int]) -> float:
    """Return half the width of the interval of the difference between groups 1 and 0."""
    medians = ClusteredMedians.of(*(np.array(column, np.int64) for column in (group, cluster, value)))
    (half,) = medians.half_widths(SIDES, DIFFERENCE)
    return float(half)


def sample(clusters: int, each: int, common: float, own: float) -> tuple[list[int], list[int], list[int]]:
    """Return both groups of a sample whose clusters have a deviation in common on each side."""
    random = np.random.default_rng(5)
    group, cluster = np.divmod(np.arange(2 * clusters * each), clusters * each)
    cluster = cluster // each
    shared = random.normal(0, common, (2, clusters))
    value = 100_000 + shared[group, cluster] + random.normal(0, own, len(group))
    return group.tolist(), cluster.tolist(), np.rint(value).astype(np.int64).tolist()


def test_the_median_of_an_even_count_is_the_mean_of_the_middle_two() -> None:
    group, cluster = np.repeat([3, 8], [4, 5]), np.arange(9)
    medians = ClusteredMedians.of(group, cluster, np.array([1, 9, 4, 2, 7, 7, 1, 8, 9]))
    assert medians.group.tolist() == [3, 8]
    assert medians.count.tolist() == [4, 5]
    assert medians.median.tolist() == [3.0, 7.0]


def test_values_of_a_cluster_that_move_together_count_as_one() -> None:
    together = half_width(*sample(clusters=20, each=50, common=1000, own=100))
    alone = half_width(*sample(clusters=20, each=1, common=1000, own=100))
    apart = half_width(*sample(clusters=20, each=50, common=0, own=1000))
    assert 0.5 * alone < together < 1.5 * alone
    assert together > 4 * apart


def test_independent_values_have_the_interval_of_their_medians() -> None:
    half = half_width(*sample(clusters=5000, each=4, common=0, own=1000))
    # The error of the median of normal values is sqrt(pi / 2) times that of their mean.
    assert half == pytest.approx(1.96 * 1000 * np.sqrt(np.pi / 2 * 2 / 20_000), rel=0.2)


def test_few_clusters_have_the_quantile_of_few_degrees_of_freedom() -> None:
    group, cluster, value = sample(clusters=3, each=40, common=10_000, own=10)
    medians = ClusteredMedians.of(*(np.array(column) for column in (group, cluster, value)))
    shift = np.zeros((2, 3))
    shift[medians.part_group, medians.part_cluster] = medians.part_shift / (1 - 1 / 3)
    independent = student.ppf(0.975, 2) * np.sqrt(((shift[1] - shift[0]) ** 2).sum())
    # Three values do not tell their correlation, so 0.5 is assumed: their mean varies 11 / 6 times as much,
    # and their own variance is too small by (3 - 11 / 6) / 2.
    assert half_width(group, cluster, value) == pytest.approx(independent * np.sqrt(11 / 6 * 2 / (7 / 6)))


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_clusters_that_resemble_the_next_ones_widen_the_interval(correlation: float) -> None:
    clusters, each = 4000, 20
    random = np.random.default_rng(8)
    shared = random.normal(0, 1000, clusters)
    for i in range(1, clusters):
        shared[i] = correlation * shared[i - 1] + (1 - correlation**2) ** 0.5 * shared[i]
    cluster = np.repeat(np.arange(clusters), each)
    above = 1e6 + shared[cluster] + random.normal(0, 10, clusters * each)
    below = 1e6 + random.normal(0, 10, clusters * each)
    value = np.rint(np.concatenate([below, above])).astype(np.int64).tolist()
    half = half_width(np.repeat([0, 1], clusters * each).tolist(), [*cluster, *cluster], value)
    # The median moves with the signs, whose correlation at a lag is 2 / pi asin(correlation ** lag).
    times = 1 + 2 * sum(2 / np.pi * np.arcsin(correlation**lag) for lag in range(1, 100))
    assert half == pytest.approx(1.96 * 1000 * np.sqrt(np.pi / 2 / clusters * times), rel=0.15)


def test_intervals_of_few_clusters_that_wander_hold_the_truth_in_nine_of_ten_cases() -> None:
    trials, clusters, correlation = 800, 20, 0.8
    value = np.random.default_rng(3).standard_normal((clusters, trials))
    for i in range(1, clusters):
        value[i] = correlation * value[i - 1] + (1 - correlation**2) ** 0.5 * value[i]
    above, below = np.rint(1e6 + 1e3 * value).astype(np.int64).ravel(), np.full(value.size, 10**6)
    trial, cluster = np.tile(np.arange(trials), clusters), np.arange(value.size) // trials
    columns = (np.concatenate([trial, trials + trial]), np.tile(trial * clusters + cluster, 2))
    medians = ClusteredMedians.of(*columns, np.concatenate([above, below]))
    gradient = np.repeat([1.0, -1.0], trials)
    row, begins = np.tile(np.arange(trials), 2), np.arange(0, trials * clusters, clusters)
    half = medians.half_widths(row, gradient, gradient > 0, begins)
    held = np.abs(medians.median[:trials] - medians.median[trials:]) <= half
    # With one standard error added to the correlation, 88.6 %.
    assert np.mean(held) >= 0.9


def test_a_side_in_one_cluster_has_no_interval() -> None:
    value = [10, 11, 12, 13, 14]
    assert np.isnan(half_width([0] * 5 + [1] * 5, [0, 1, 2, 3, 4, 0, 0, 0, 0, 0], value + value))


def test_equal_values_leave_no_doubt() -> None:
    assert half_width([0] * 5 + [1] * 5, [0, 1, 2, 3, 4] * 2, [1000] * 5 + [1500] * 5) == 0.0


def test_clusters_that_cancel_by_chance_do_not_make_an_interval_narrow() -> None:
    # Each cluster has one value above and one below the median.
    value = [90, 110, 91, 109, 92, 108, 93, 107, 94, 106]
    cluster = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert half_width([0] * 10 + [1] * 10, cluster * 2, value * 2) > 5
