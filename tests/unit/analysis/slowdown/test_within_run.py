"""The slowdown of kernels while communication runs, within one run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpcprof.analysis.slowdown.kernel_instances import place_kernels
from hpcprof.analysis.slowdown.within_run import TOTAL, slowdown
from hpcprof.profiles.timeline import StepRange, Timeline
from tests.unit.analysis.timelines import COMM, COMP, timeline


def run(factor: float, n: int = 40, covered: float = 1.0, noise: int = 20) -> Timeline:
    """Build kernels of about 1000 ns alone, and as many that communication covers and slows."""
    random = np.random.default_rng(7)
    rows: list[tuple[int, ...]] = []
    for i in range(n):
        at = 10_000 * i
        rows.append((at, at + 1000 + int(random.integers(-noise, noise + 1)), COMP))
        slow = round((1000 + int(random.integers(-noise, noise + 1))) * factor)
        rows.append((at + 5000, at + 5000 + slow, COMP))
        rows.append((at + 5000, at + 5000 + round(slow * covered), COMM))
    return timeline(rows)


@pytest.mark.parametrize("factor", [1.0, 1.5, 0.8])
def test_a_planted_slowdown_is_found_within_its_interval(factor: float) -> None:
    rows = slowdown(run(factor)).rows
    assert rows["name"].tolist() == [TOTAL, "kernel"]
    for row in rows.to_dict("records"):
        assert row["ci_low"] <= factor <= row["ci_high"]
        assert row["ci_high"] - row["ci_low"] < 0.07
        assert (row["alone_n"], row["overlapped_n"]) == (40, 40)


def test_kernels_are_compared_within_their_phase() -> None:
    # In the backward phase the kernel has twice the work, and there alone lies the communication.
    operations: list[tuple[int, ...]] = []
    ranges: list[tuple[int, int, str]] = []
    for step in range(40):
        at = 100_000 * step
        ranges += [(at, at + 90_000, "iteration")]
        ranges += [(at, at + 40_000, "forward"), (at + 40_000, at + 90_000, "backward")]
        operations += [(at + 10 + 2000 * i, at + 1010 + 2000 * i, COMP, at + 5 + 2000 * i) for i in range(10)]
        operations += [(at + 50_000, at + 52_000, COMP, at + 49_990)]
        operations += [(at + 60_000, at + 63_000, kind, at + 59_990) for kind in (COMP, COMM)]
    rows = slowdown(timeline(operations, ranges)).rows.set_index("name")
    assert rows.loc["kernel", ["alone_n", "overlapped_n", "slowdown"]].tolist() == [40, 40, 1.5]


def steps_with(overlapped: list[int]) -> Timeline:
    """Build steps of ten kernels alone and so many overlapped ones, which are half as fast."""
    random = np.random.default_rng(8)
    operations: list[tuple[int, ...]] = []
    ranges: list[tuple[int, int, str]] = []
    for step, count in enumerate(overlapped):
        at = 1_000_000 * step
        ranges.append((at, at + 500_000, "iteration"))
        for i in range(10 + count):
            begun, slow = at + 600_000 + 10_000 * i, 1 + (i >= 10)
            took = slow * (1000 + int(random.integers(-20, 21)))
            kinds = (COMP, COMM)[:slow]
            operations += [(begun, begun + took, kind, at + 100 + i) for kind in kinds]
    return timeline(operations, ranges)


def test_an_interval_needs_both_sides_in_more_than_one_step() -> None:
    (row, _) = slowdown(steps_with([6, 0, 0, 0, 0])).rows.to_dict("records")
    assert row["slowdown"] == pytest.approx(2, rel=0.03)
    assert row["ci_low"] is None and row["ci_high"] is None
    (row, _) = slowdown(steps_with([6, 6, 6, 6, 6])).rows.to_dict("records")
    assert 1.9 < row["ci_low"] <= 2 <= row["ci_high"] < 2.1


def test_kernels_belong_to_the_step_that_launched_them() -> None:
    # All of them run after the end of their step.
    assert np.bincount(place_kernels(steps_with([2, 3, 0])).step).tolist() == [0, 12, 13, 10]


def test_without_steps_blocks_of_consecutive_kernels_are_the_sample() -> None:
    without = replace(run(1.5), step_range=StepRange(""))
    assert np.bincount(place_kernels(without).step).tolist() == [8] * 10


def test_the_same_profile_always_gives_the_same_interval() -> None:
    assert slowdown(run(1.3)).rows.equals(slowdown(run(1.3)).rows)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (timeline([(0, 10, COMP)]), "no communication kernels"),
        (timeline([], [(0, 5, "iteration")]), "no CUDA kernels"),
        (run(1.5, covered=0.8), "covered by communication to 90 % or more"),
        (run(1.5, n=4), "5 times while communication ran and at least 5 times alone"),
    ],
)
def test_what_cannot_be_compared_gives_no_row_and_a_reason(case: Timeline, reason: str) -> None:
    outcome = slowdown(case)
    assert len(outcome.rows) == 0
    assert reason in outcome.reason


def test_ranks_whose_kernels_never_overlap_have_no_slowdown(sequence_parallel: Timeline) -> None:
    assert len(slowdown(sequence_parallel).rows) == 0
