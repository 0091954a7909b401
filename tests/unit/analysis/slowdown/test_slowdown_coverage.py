"""The intervals of the slowdown hold the truth as often as they say, in the simulation of ``benchmarks/``."""

from __future__ import annotations

import pytest

from benchmarks.slowdown_coverage import Case, Common, coverage, coverage_against

LEAST = 93.0
TRIALS = 100


@pytest.mark.parametrize("steps", [5, 40])
@pytest.mark.parametrize("common", [Common.STEP, Common.SIDE, Common.WHOLE])
def test_kernels_of_a_step_that_share_a_factor_do_not_narrow_the_intervals(
    steps: int, common: Common
) -> None:
    kernels, total = coverage(Case(steps, common, 0.3, 0.64), TRIALS)
    # Of the total's 100 intervals, 88 hold the truth by chance in one of 100 series at 93 %.
    assert total.intervals == TRIALS and total.percent >= 88
    assert kernels.intervals >= 3 * TRIALS and kernels.percent >= LEAST


@pytest.mark.parametrize("steps", [5, 40])
def test_independent_kernels_do_not_have_much_wider_intervals(steps: int) -> None:
    kernels, _ = coverage(Case(steps, Common.SIDE, 0.5, 0.0), TRIALS)
    assert LEAST <= kernels.percent <= 99.8


@pytest.mark.parametrize("steps", [10, 40])
@pytest.mark.parametrize("noise", ["AR(0.5)", "AR(0.8)"])
def test_steps_that_resemble_their_neighbours_widen_the_intervals(steps: int, noise: str) -> None:
    kernels, total = coverage(Case(steps, Common.SIDE, 0.3, 0.64, noise), TRIALS)
    # As if the steps were independent it is 66 to 88; the kernels of a trial depend on each other.
    assert kernels.percent >= 90 and total.percent >= 85


@pytest.mark.parametrize("steps", [5, 40])
def test_intervals_against_a_baseline_hold_the_truth_with_few_steps(steps: int) -> None:
    kernels, others = coverage_against(Case(steps, Common.SIDE, 0.3, 0.25), 40)
    assert kernels.intervals >= 40 and kernels.percent >= LEAST
    # Four or five rows of each trial, which depend on each other.
    assert others.intervals >= 4 * 40 and others.percent >= 91
