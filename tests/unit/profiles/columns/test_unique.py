"""Numbering distinct values and rows, against numpy's sorting."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.profiles.columns.unique import numbered, numbered_rows

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
