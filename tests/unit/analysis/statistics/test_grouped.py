"""Grouped statistics."""

from __future__ import annotations

import statistics
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.statistics.grouped import round_half_up, summarize

values = st.integers(-(10**13), 10**13)


@given(st.lists(st.lists(values, min_size=1, max_size=9), min_size=1, max_size=6))
def test_statistics_equal_those_of_the_standard_library(groups: list[list[int]]) -> None:
    group = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    summary = summarize(group, np.concatenate([np.array(g, np.int64) for g in groups]))
    assert summary.total.tolist() == [sum(g) for g in groups]
    assert summary.count.tolist() == [len(g) for g in groups]
    assert summary.median.tolist() == [statistics.median(g) for g in groups]
    assert summary.minimum.tolist() == [min(g) for g in groups]
    assert summary.maximum.tolist() == [max(g) for g in groups]
    assert summary.average.tolist() == [sum(g) / len(g) for g in groups]
    deviation = [statistics.stdev(g) if len(g) > 1 else 0.0 for g in groups]
    assert summary.deviation.tolist() == pytest.approx(deviation, rel=1e-9, abs=1e-3)


def test_totals_stay_exact_beyond_the_digits_of_a_double() -> None:
    summary = summarize(np.zeros(3, np.int64), np.array([2**53, 1, 1]))
    assert summary.total.tolist() == [2**53 + 2]


def test_values_too_far_apart_for_one_key_are_sorted_all_the_same() -> None:
    group = np.array([1, 0, 1, 0])
    summary = summarize(group, np.array([2**62, -(2**62), 5, 7]))
    assert (summary.minimum.tolist(), summary.maximum.tolist()) == ([-(2**62), 5], [7, 2**62])


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.25, 0.3), (1.05, 1.1), (2.45, 2.5), (0.05, 0.1), (-0.25, -0.3), (7.0, 7.0), (1.249, 1.2)],
)
def test_halves_are_rounded_up_on_the_decimal_digits(value: float, shown: float) -> None:
    assert round_half_up(np.array([value])).tolist() == [shown]


@given(st.floats(-4e12, 4e12))
def test_rounding_is_half_up_on_the_shortest_decimal(value: float) -> None:
    expected = Decimal(repr(value)).quantize(Decimal("0.1"), ROUND_HALF_UP)
    assert round_half_up(np.array([value])).tolist() == [float(expected)]


@given(st.lists(st.tuples(st.sampled_from([-1, 0, 7, 8, 2**40, -(2**40)]), values), min_size=1))
def test_groups_may_have_any_numbers(rows: list[tuple[int, int]]) -> None:
    summary = summarize(*np.array(rows, np.int64).T)
    groups = {number: [v for n, v in rows if n == number] for number in sorted({n for n, _ in rows})}
    assert summary.group.tolist() == list(groups)
    assert summary.total.tolist() == [sum(each) for each in groups.values()]
    assert summary.median.tolist() == [statistics.median(each) for each in groups.values()]


def test_nothing_has_no_groups() -> None:
    summary = summarize(np.empty(0, np.int64), np.empty(0, np.int64))
    assert [len(column) for column in (summary.group, summary.total, summary.deviation)] == [0, 0, 0]
