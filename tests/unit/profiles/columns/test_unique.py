"""Numbering distinct values and rows, against numpy's sorting."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.profiles.columns.unique import (
    begins_run,
    ends_run,
    numbered,
    numbered_rows,
    position_in_group,
    rows_by_key,
)

close = st.integers(-3, 12)
anywhere = st.one_of(close, st.integers(-(2**63), 2**63 - 1))


@given(st.one_of(st.lists(close), st.lists(anywhere)))
def test_values_are_numbered_as_unique_does(values: list[int]) -> None:
    column = np.array(values, np.int64)
    distinct, number = numbered(column)
    expected = np.unique(column, return_inverse=True)
    assert distinct.tolist() == expected[0].tolist()
    assert number.tolist() == expected[1].tolist()


@given(st.one_of(st.lists(st.tuples(close, close, close)), st.lists(st.tuples(*[anywhere] * 9))))
def test_rows_are_numbered_in_their_order(rows: list[tuple[int, ...]]) -> None:
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)] or [np.empty(0, np.int64)]
    distinct, number = numbered_rows(*columns)
    assert [tuple(row) for row in distinct.tolist()] == sorted(set(rows))
    assert [tuple(row) for row in distinct[number].tolist()] == rows


def test_so_many_combinations_that_no_integer_numbers_them_are_still_apart() -> None:
    columns = [np.arange(1000) * 7**i % 1009 for i in range(8)]
    distinct, number = numbered_rows(*columns)
    assert len(distinct) == 1000
    assert np.array_equal(distinct[number], np.column_stack(columns))


few = st.integers(-2, 2)


@given(st.lists(st.tuples(few, few)))
def test_equal_rows_are_found_wherever_they_are(rows: list[tuple[int, int]]) -> None:
    parts = rows_by_key(*np.array(rows, np.int64).reshape(-1, 2).T)
    expected = {row: [i for i, other in enumerate(rows) if other == row] for row in sorted(set(rows))}
    assert {tuple(key): places.tolist() for key, places in parts} == expected
    assert [tuple(key) for key, _ in parts] == sorted(expected)


@given(st.lists(st.integers(0, 3)))
def test_a_position_counts_the_earlier_rows_of_the_group(group: list[int]) -> None:
    found = position_in_group(np.array(group, np.int64))
    assert found.tolist() == [group[:i].count(number) for i, number in enumerate(group)]


@given(st.lists(st.tuples(*[st.integers(-(2**31), 2**31 - 1)] * 3)))
def test_columns_of_32_bits_are_numbered_as_those_of_64(rows: list[tuple[int, ...]]) -> None:
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)] or [np.empty(0, np.int64)]
    expected = numbered_rows(*columns)
    narrow: list[Any] = [column.astype(np.int32) for column in columns]
    found = numbered_rows(*narrow)
    assert [array.tolist() for array in found] == [array.tolist() for array in expected]


def test_rows_begin_and_end_runs_of_equal_keys() -> None:
    a, b = np.array([1, 1, 1, 2, 2]), np.array([5, 5, 6, 6, 6])
    assert begins_run(a, b).tolist() == [True, False, True, True, False]
    assert ends_run(a, b).tolist() == [False, True, True, False, True]
    assert begins_run(a[:0]).tolist() == [] == ends_run(a[:0]).tolist()
