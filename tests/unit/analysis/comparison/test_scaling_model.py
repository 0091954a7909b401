"""Models of times by the number of ranks, on times that follow a known one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hpcprof.analysis.comparison.scaling import MIN_SIZES, dominance_thresholds, fit
from hpcprof.profiles.timeline import Floats

SIZES = [2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize(
    ("truth", "exponents"),
    [
        (lambda p: 5e6 + 0 * p, []),
        (lambda p: 1e6 + 3e8 / p, [(-1.0, 0)]),
        (lambda p: 2e6 + 4e5 * np.log2(p), [(0.0, 1)]),
        (lambda p: 1e6 + 2e4 * p, [(1.0, 0)]),
        (lambda p: 1e5 + 3e3 * p * np.log2(p), [(1.0, 1)]),
        (lambda p: 6e8 / p + 1e5 * p, [(-1.0, 0), (1.0, 0)]),
    ],
)
def test_without_noise_the_model_is_the_one_that_made_the_times(
    truth: Callable[[Floats], Floats], exponents: list[tuple[float, int]]
) -> None:
    times = truth(np.array(SIZES, float))
    model = fit(SIZES, times.tolist())
    assert model is not None
    assert sorted((term.power, term.log) for term in model.terms) == exponents
    more = np.array([1024.0])
    assert model.at(more) == pytest.approx(truth(more), rel=1e-3)
    assert model.error < 1e-4


def test_a_constant_time_rarely_grows_under_noise() -> None:
    random = np.random.default_rng(5)
    models = [fit(SIZES, (1e6 * np.exp(0.05 * random.standard_normal(6))).tolist()) for _ in range(60)]
    assert sum(bool(model and model.terms) for model in models) <= 6


def test_fewer_than_four_sizes_give_no_model() -> None:
    assert fit(SIZES[: MIN_SIZES - 1], [1.0, 2.0, 3.0]) is None
    assert fit(SIZES[:MIN_SIZES], [1.0, 2.0, 3.0, 0.0]) is None


@pytest.mark.parametrize(
    "law",
    [lambda p: 200 / p + p, lambda p: 1 / p + 0.3 * p, np.log2, np.sqrt],
    ids=["end", "late", "log", "root"],
)
def test_twice_the_largest_size_is_predicted_from_six_sizes_with_noise(
    law: Callable[[Floats], Floats],
) -> None:
    random, sizes = np.random.default_rng(7), np.array(SIZES, float)
    twice = np.array([2.0 * SIZES[-1]])
    models = [
        fit(SIZES, (1e6 * law(sizes) * np.exp(0.01 * random.standard_normal(6))).tolist()) for _ in range(40)
    ]
    close = [abs(model.at(twice)[0] / (1e6 * law(twice)[0]) - 1) < 0.05 for model in models if model]
    assert sum(close) >= 38


def test_a_part_that_grows_dominates_from_where_it_takes_longer_than_the_rest() -> None:
    random = np.random.default_rng(1)
    sizes = np.array(SIZES, float)
    work, reduction = 6.4e8 / sizes, 4e5 * np.log2(sizes)
    noisy = [(times * np.exp(0.02 * random.standard_normal(6))).tolist() for times in (work, reduction)]
    never, dominance = dominance_thresholds(SIZES, noisy)
    assert dominance is not None
    assert dominance.low is not None and dominance.high is not None
    # 6.4e8 / p is 4e5 * log2(p) at 209 ranks.
    assert dominance.low <= 209 * 1.05
    assert dominance.high >= 209 / 1.05
    assert never is None
    assert dominance_thresholds(SIZES, noisy[:1]) == [None]


def test_a_model_is_written_as_people_write_it() -> None:
    model = fit(SIZES, (1e6 + 3e3 * np.array(SIZES, float) * np.log2(SIZES)).tolist())
    assert str(model) == "1.000 ms + 3.000 µs * p * log2(p)"
