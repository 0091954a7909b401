"""Functions that use the order of columns, against numpy's sorting and searching."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.profiles.columns.ordering import as_of, ascends, by_time, ordered

few = st.integers(-3, 3)
stamps = st.lists(st.integers(-20, 20))


@given(stamps)
def test_what_ascends_is_what_sorting_leaves_alone(values: list[int]) -> None:
    column = np.array(values, np.int64)
    assert ascends(column) == (values == sorted(values))
    assert ordered(column).tolist() == sorted(values)


@given(stamps.map(sorted), st.one_of(stamps, stamps.map(sorted)))
def test_the_entry_that_holds_is_that_of_the_last_value_not_above_the_moment(
    values: list[int], moments: list[int]
) -> None:
    column = np.arange(len(values) + 1) * 10
    found = as_of(np.array(values, np.int64), np.array(moments, np.int64), column, column + 1)
    expected = [10 * sum(value <= moment for value in values) for moment in moments]
    assert [one.tolist() for one in found] == [expected, [entry + 1 for entry in expected]]


@given(st.lists(st.tuples(few, few)))
def test_rows_stand_by_start_then_end_and_equal_ones_as_before(rows: list[tuple[int, int]]) -> None:
    start, end = np.array(rows, np.int64).reshape(-1, 2).T
    assert by_time(start, end).tolist() == sorted(range(len(rows)), key=lambda i: rows[i])
