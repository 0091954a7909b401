"""Steps that take long once, and those that take long at a rate."""

import pytest

from hpcprof.runs.step_time import StepTime, single_long_steps, step_time

USUAL = [100, 101, 99, 100, 102, 98, 100, 101, 99, 100]


@pytest.mark.parametrize(
    ("steps", "once"),
    [
        (USUAL, []),
        ([*USUAL, 5000], [10]),
        ([900, *USUAL, 5000], [0, 11]),  # a first compilation and a set-up: neither is alike
        ([*USUAL, 200, *USUAL, 210], []),  # a checkpoint now and then
        ([*USUAL, 140], []),  # a spike of less than half a step
        ([*USUAL[:4], 5000], []),  # too few steps
        ([*USUAL, 151, 100, 49], []),  # two steps whose first kernels the profile lacks
    ],
)
def test_a_long_step_happens_once_if_no_other_is_alike(steps: list[int], once: list[int]) -> None:
    assert single_long_steps(steps) == once


def test_the_elapsed_time_per_step_leaves_out_what_happened_once() -> None:
    assert step_time([*USUAL, 5000]) == StepTime(100, 100, 11, 10)
    assert step_time([*USUAL, 200, *USUAL, 210]) == StepTime(2410 / 22, 100, 22, 22)
    assert (time := step_time([*USUAL, 5000])) is not None
    assert time.words == "10 of 11 steps of the program"
    assert step_time([]) is None
