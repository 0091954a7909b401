"""Single steps that take longer are told from what steps always do."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.explain.step_series import drift, spikes
from hpcprof.analysis.steps.run_step import StepSeries, step_series
from hpcprof.profiles.timeline import Floats

MS = 1_000_000


@pytest.mark.parametrize(
    ("long", "found"),
    [((3,), [3]), ((3, 7), [3, 7]), ((0,), []), ((9,), []), ((4, 9), [4, 9]), ((1, 3, 5, 7), [])],
)
def test_a_long_step_is_a_spike_unless_it_is_the_first_or_the_last_or_one_of_many(
    long: tuple[int, ...], found: list[int]
) -> None:
    wall = [300 if step in long else 100 for step in range(10)]
    series = step_series(pd.DataFrame({"rank": 0, "step": range(10), "wall_ns": wall}))
    assert series.steps[spikes(series)].tolist() == found


def series_of(wall: Floats) -> StepSeries:
    every = np.arange(len(wall))
    return StepSeries(every, wall.astype(np.int64), every)


NOISE = np.random.default_rng(1).normal(0, 0.3 * MS, 20)


@pytest.mark.parametrize("more", [3, 8])
def test_a_drift_costs_what_the_mean_step_takes_more_than_a_step_at_the_better_end(more: int) -> None:
    for level in (np.linspace(0, more, 20), np.linspace(more, 0, 20)):
        found = drift(series_of((50 + level) * MS + NOISE))
        assert found is not None and not len(found.steps)
        assert found.excess == pytest.approx(more * MS / 2, rel=0.15)


@pytest.mark.parametrize("first", [5, 10, 15])
def test_a_change_of_the_level_names_the_steps_that_take_longer(first: int) -> None:
    for high in (np.arange(20) >= first, np.arange(20) < first):
        found = drift(series_of((50 + 4 * high) * MS + NOISE))
        assert found is not None
        assert found.steps.tolist() == np.flatnonzero(high).tolist()
        assert abs(found.excess - 4 * MS * high.mean()) < 3 * found.error


@pytest.mark.parametrize(("first", "is_drift"), [(11, False), (40, True)])
def test_a_gpu_that_is_quicker_for_a_moment_does_not_drift(first: int, is_drift: bool) -> None:
    quicker = np.arange(60) < first
    assert (drift(series_of((7.1 - 0.6 * quicker) * MS + NOISE.repeat(3) / 10)) is not None) == is_drift
    assert drift(series_of((6.5 + 0.6 * quicker) * MS + NOISE.repeat(3) / 10)) is not None


def test_no_clock_makes_steps_take_twice_as_long() -> None:
    assert drift(series_of((13 - 6.5 * (np.arange(60) < 11)) * MS + NOISE.repeat(3) / 10)) is not None


def test_steps_that_shrink_to_nothing_do_less_work_and_no_drift_exceeds_a_step() -> None:
    growing = np.linspace(5, 100, 600) ** 1.6 * 1_000
    assert drift(series_of(growing[::-1])) is None
    found = drift(series_of(growing))
    assert found is not None and 0 < found.excess < growing.mean() - growing.min() / 2


def test_noise_spikes_and_few_steps_are_no_drift() -> None:
    assert drift(series_of(50 * MS + NOISE)) is None
    assert drift(series_of(50 * MS + NOISE + 90 * MS * np.isin(np.arange(20), (4, 15)))) is None
    assert drift(series_of(np.linspace(50, 60, 11) * MS)) is None


def test_steps_that_wander_by_themselves_are_no_drift_and_a_change_among_them_is() -> None:
    wandering = 0
    for seed in range(14):
        draw = np.random.default_rng(seed)
        walk, noise = np.cumsum(draw.standard_normal(240)), draw.standard_normal(240)
        wandering += drift(series_of(50 * MS * (1 + 0.04 * (walk / walk.std() + noise)))) is not None
        later = np.arange(240) > 100
        for level in (0.05 * later, 0.08 * np.arange(240) / 240):
            assert drift(series_of(50 * MS * (1 + level + 0.02 * noise))) is not None
    assert wandering <= 3
