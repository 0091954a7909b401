"""Steps that take long once, and those that take long at a rate."""

from __future__ import annotations

import numpy as np
import pytest

from hpcprof.analysis.steps.once import happened_once, once_ns

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
    ],
)
def test_a_long_step_happens_once_if_no_other_is_alike(steps: list[int], once: list[int]) -> None:
    assert np.flatnonzero(happened_once(np.array(steps))).tolist() == once


def test_the_excess_of_what_happened_once_is_that_over_the_median() -> None:
    assert once_ns(np.array([*USUAL, 5000])) == 4900
