"""Student's quantiles against closed forms and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import stdtrit

from hpcprof.analysis.statistics.student import student_quantile

FREEDOMS = np.array([0.3, 0.5, 1, 1.5, 2, 2.7, 3, 5, 10, 39.7, 100, 101, 999, 1e4])


@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.995, 0.999, 1 - 1e-6])
def test_quantiles_are_those_of_scipy(probability: float) -> None:
    found = student_quantile(FREEDOMS, probability)
    assert found == pytest.approx(stdtrit(FREEDOMS, probability), rel=1e-11 if probability <= 0.999 else 1e-8)


def test_one_and_two_degrees_of_freedom_have_closed_forms() -> None:
    tail = 0.025
    expected = [1 / math.tan(math.pi * tail), (1 - 2 * tail) / math.sqrt(2 * tail * (1 - tail))]
    assert student_quantile([1.0, 2.0], 1 - tail) == pytest.approx(expected, rel=1e-14)


def test_many_degrees_of_freedom_are_the_normal_distribution() -> None:
    assert float(student_quantile(math.inf, 0.975)) == pytest.approx(1.959963984540054, rel=1e-15)
    assert float(student_quantile(1e7, 0.975)) == pytest.approx(1.959963984540054, rel=1e-6)


def test_unknown_degrees_of_freedom_have_no_quantile() -> None:
    found = student_quantile([math.nan, 3.0, 0.0, -1.0], 0.975)
    assert np.isnan(found).tolist() == [True, False, True, True]


def test_the_shape_is_that_of_the_degrees_of_freedom() -> None:
    assert student_quantile(np.full((2, 3), 4.0), 0.975).shape == (2, 3)
    assert student_quantile(np.empty(0), 0.975).shape == (0,)
