"""Interval operations against the slow and obvious way: sets of time units."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.profiles.columns.intervals import (
    coverage,
    difference,
    exclusive,
    grouped_length,
    intersection,
    length,
    outermost,
    properly_nested,
    union,
    union_of,
)
from hpcprof.profiles.timeline import Ints

Pairs = list[tuple[int, int]]

# Ends before starts are allowed on purpose: such an interval is empty.
pairs = st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20)), max_size=12)


def arrays(items: Pairs) -> tuple[Ints, Ints]:
    """Return starts and ends."""
    table = np.array(items, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def units(intervals: tuple[Ints, Ints]) -> set[int]:
    """Return every unit of time that the intervals cover."""
    return {unit for start, end in zip(*intervals, strict=True) for unit in range(start, end)}


def assert_merged(intervals: tuple[Ints, Ints]) -> None:
    """Sorted, not empty, not touching."""
    start, end = intervals
    assert (end > start).all()
    assert (start[1:] > end[:-1]).all()


@given(pairs)
def test_a_union_covers_the_same_units_once(a: Pairs) -> None:
    merged = union(*arrays(a))
    assert_merged(merged)
    assert units(merged) == units(arrays(a))
    assert length(*arrays(a)) == len(units(arrays(a)))


@given(pairs, pairs)
def test_a_union_of_sets_covers_what_any_covers(a: Pairs, b: Pairs) -> None:
    merged = union_of(arrays(a), arrays(b))
    assert_merged(merged)
    assert units(merged) == units(arrays(a)) | units(arrays(b))


@given(pairs)
def test_the_outermost_intervals_are_those_that_no_other_one_contains(a: Pairs) -> None:
    def inside(row: int, other: int) -> bool:
        # Of equal intervals, the first counts as the outer one.
        (start, end), (begin, finish) = a[row], a[other]
        return begin <= start and end <= finish and (a[row] != a[other] or other < row)

    rows = outermost(*arrays(a)).tolist()
    others = {row for row in range(len(a)) for other in range(len(a)) if other != row and inside(row, other)}
    assert rows == sorted({*range(len(a))} - others, key=lambda row: a[row][0])


@given(pairs, pairs)
def test_an_intersection_covers_what_both_cover(a: Pairs, b: Pairs) -> None:
    both = intersection(arrays(a), arrays(b))
    assert_merged(both)
    assert units(both) == units(arrays(a)) & units(arrays(b))


@given(pairs, pairs)
def test_a_difference_covers_what_only_the_first_covers(a: Pairs, b: Pairs) -> None:
    rest = difference(arrays(a), arrays(b))
    assert_merged(rest)
    assert units(rest) == units(arrays(a)) - units(arrays(b))


@given(pairs, pairs)
def test_coverage_counts_the_units_of_each_interval(a: Pairs, b: Pairs) -> None:
    expected = [len(units(arrays([one])) & units(arrays(b))) for one in a]
    assert coverage(*arrays(a), union(*arrays(b))).tolist() == expected


@given(pairs, pairs, pairs)
def test_exclusive_times_are_those_of_each_combination(a: Pairs, b: Pairs, c: Pairs) -> None:
    covered = [units(arrays(each)) for each in (a, b, c)]
    expected = [0] * 8
    for unit in set().union(*covered):
        expected[sum(1 << i for i in range(3) if unit in covered[i])] += 1
    assert exclusive(*(union(*arrays(each)) for each in (a, b, c))) == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-20, 20), st.integers(-20, 20)), max_size=15))
def test_grouped_lengths_are_each_groups_own(items: list[tuple[int, int, int]]) -> None:
    table = np.array(items, np.int64).reshape(-1, 3)
    expected = [length(*arrays([(s, e) for g, s, e in items if g == group])) for group in range(4)]
    assert grouped_length(table[:, 0], table[:, 1], table[:, 2], 4).tolist() == expected


def test_large_stamps_keep_every_nanosecond() -> None:
    late = 1_790_857_026_123_456_789
    assert length(np.array([late, late + 1]), np.array([late + 2, late + 3])) == 3


def test_a_million_intervals_take_no_loop() -> None:
    start = np.arange(1_000_000) * 3
    assert length(start, start + 2) == 2_000_000


@given(pairs)
def test_intervals_nest_if_no_two_cross(items: Pairs) -> None:
    full = [(start, end) for start, end in items if end > start]
    crossing = any(a[0] < b[0] < a[1] < b[1] for a in full for b in full)
    assert properly_nested(*arrays(items)) is not crossing
