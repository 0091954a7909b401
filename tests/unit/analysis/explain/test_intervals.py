"""Intervals contain the truth in nine of ten cases, and say what makes them wide."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hpcprof.analysis.explain.explain import explain_run
from hpcprof.analysis.explain.intervals import Uncertainty, half_width
from hpcprof.analysis.explain.removals import Removals
from hpcprof.analysis.explain.replay import Replay, Times
from hpcprof.analysis.explain.replayable import Replayable, replayable
from hpcprof.analysis.statistics.student import student_quantile
from tests.unit.analysis.explain.programs import (
    MS,
    US,
    Host,
    Instruction,
    Launch,
    Once,
    Place,
    Wait,
    inputs_of,
    simulate,
)


@pytest.mark.parametrize("steps", [4, 6, 20])
def test_nine_of_ten_intervals_or_more_contain_the_mean_and_the_median(steps: int) -> None:
    values = np.random.default_rng(1).standard_normal((500, steps))
    widths = [half_width(one) for one in values]
    for of in (np.mean, np.median):
        assert np.mean(np.abs(of(values, axis=1)) <= widths) >= 0.9
    # Student's interval of the median of as many independent steps, with their true deviation.
    usual = student_quantile(steps - 1, 0.95) * 1.2533 / np.sqrt(steps)
    assert np.median(widths) < 2 * usual


def test_nine_of_ten_intervals_of_twenty_strongly_correlated_steps_contain_the_mean() -> None:
    values = np.random.default_rng(2).standard_normal((600, 20))
    for step in range(1, 20):
        values[:, step] = 0.8 * values[:, step - 1] + 0.6 * values[:, step]
    # As if the correlation were known to be what it seems, it is 79 %.
    assert np.mean([abs(np.mean(one)) <= half_width(one) for one in values]) >= 0.89


def test_steps_that_resemble_their_neighbours_make_an_interval_wider() -> None:
    alternating, grouped = np.array([1.0, -1.0] * 8), np.array([1.0] * 8 + [-1.0] * 8)
    assert half_width(grouped) > 2 * half_width(alternating)


def host_bound(between: int, sleep: int) -> list[Instruction]:
    launches = [part for _ in range(40) for part in (Host(between), Launch(100 * US))]
    return [Place("data", (Host(sleep),)), Place("forward", tuple(launches))]


def test_an_interval_contains_the_saving_without_the_profiler() -> None:
    def saving(between: int) -> float:
        p50 = [
            Replay(built.graph).wall(Replay(built.graph).measured)
            for sleep in (3 * MS, 0)
            if isinstance(
                built := replayable(inputs_of(simulate([host_bound(between, sleep)], 6))), Replayable
            )
        ]
        return p50[0] - p50[1]

    # The profiler adds 60 us to each call: without it, the GPU hides a part of the sleep.
    built = replayable(inputs_of(simulate([host_bound(150 * US, 3 * MS)], 6)))
    assert isinstance(built, Replayable)
    replay = Replay(built.graph)

    def without(times: Times) -> Times:
        return Removals(replay).host_time(times, "data", long=True)

    measured = replay.walls(replay.unchanged)
    by_step = (measured - replay.walls(replay.moments(without(replay.measured)))).astype(float)
    profiled, alone = saving(150 * US), saving(90 * US)
    assert alone < 0.95 * profiled
    for cost, low in ((0, profiled), (60 * US, alone)):
        found = Uncertainty(replay, replay.wall, 0.0, 0.0, cost).saving_interval(
            replay.measured, without, float(np.median(by_step)), by_step
        )
        assert found.low <= low <= profiled <= found.high
        assert (found.by_profiler > 0) == (cost > 0)


def test_an_interval_contains_the_saving_on_another_host() -> None:
    def program(sleep: int) -> list[Instruction]:
        return [Place("data", (Host(sleep),)), Place("forward", (Launch(5 * MS), Wait()))]

    findings = explain_run(inputs_of(simulate([program(3 * MS)], 6)))[0].shown()
    (first,) = (item for item in findings if (item.cause, item.where) == ("host_work", "data"))
    assert first.saving_low_ns and first.saving_high_ns
    # The GPU hides nothing of what the host does in 3 ms here.
    for cost in (3 * MS / 1.4, 3 * MS * 1.45):
        assert first.saving_low_ns <= cost <= first.saving_high_ns


def test_an_interval_of_work_on_the_gpu_is_narrow_whatever_the_host() -> None:
    reduction = Launch(MS, collective=True)
    ranks: list[list[Instruction]] = [[Launch(work * MS), reduction] for work in (10, 15)]
    (first, *_) = explain_run(inputs_of(simulate(ranks, 12)))[0].shown()
    assert first.saving_ns and first.saving_low_ns and first.saving_high_ns
    assert first.cause == "late_rank_gpu"
    assert first.saving_high_ns - first.saving_low_ns < 0.45 * first.saving_ns


def test_few_steps_that_differ_are_too_few_and_more_are_recommended() -> None:
    sleeps = [Once(step, (Host(sleep * MS),)) for step, sleep in enumerate((0, 0, 10, 11, 0, 0))]
    found = explain_run(inputs_of(simulate([[Place("data", tuple(sleeps)), *[Launch(MS)] * 4]], 6)))[0]
    assert not found.shown()
    (said,) = [one for one in found.not_judged if one.what == "host_work"]
    assert re.match(r"it seems to cost \S+ ms of a step in data, but \d+ steps are too few", said.reason)
    assert "6 steps are too few to tell: record " in said.reason
    assert "(--capture-steps 5-" in said.reason


def test_a_saving_to_which_every_step_adds_is_shown_although_they_differ() -> None:
    sleeps = [Once(step, (Host(sleep * MS),)) for step, sleep in enumerate((5, 20, 8, 30, 12))]
    found = explain_run(inputs_of(simulate([[Place("data", tuple(sleeps)), *[Launch(MS)] * 4]], 5)))[0]
    (shown,) = found.shown()
    assert (shown.cause, shown.where) == ("host_work", "data")
    assert shown.saving_ns is not None and shown.saving_low_ns is not None
    assert 0 < shown.saving_low_ns < shown.saving_ns / 2
