"""Joins, against a comparison of every row with every other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.profiles.columns.joins import launch_pairs, matches, pair_keys
from hpcprof.profiles.readers.nsys.reader import read
from hpcprof.profiles.timeline import NO_CORRELATION, NO_PROCESS
from tests.data import generated_exports

small = st.integers(-2, 4)
wide = st.sampled_from([-(2**62), -1, 0, 5, 2**62])
# Those that differ by 2**32 are one in 32 bits.
keys = st.one_of(small, st.sampled_from([3 - 2**32, -(2**31), 2**31 - 1, 2**31, 3 + 2**32, 2**62]))


@given(st.lists(small, max_size=20), st.lists(keys, max_size=20))
def test_matches_are_all_pairs_of_equal_keys_in_the_order_of_the_left(
    left: list[int], right: list[int]
) -> None:
    found = matches(np.array(left, np.int64), np.array(right, np.int64))
    pairs = [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a == b]
    assert list(zip(*(rows.tolist() for rows in found), strict=True)) == pairs


@given(st.lists(st.tuples(wide, wide)), st.lists(st.tuples(wide, wide)))
def test_keys_are_equal_where_pairs_are(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    first, second = (np.array(rows, np.int64).reshape(-1, 2).T for rows in (a, b))
    keys = np.concatenate(pair_keys((first[0], first[1]), (second[0], second[1]))).tolist()
    rows = a + b
    assert all((keys[i] == keys[j]) == (rows[i] == rows[j]) for i in range(len(rows)) for j in range(i))


def test_launches_are_joined_by_process_and_correlation(tmp_path: Path) -> None:
    generated_exports.write(tmp_path / "rank0.sqlite", 3)
    timeline = read(tmp_path / "rank0.sqlite")
    operations, calls = timeline.operations(), timeline.calls
    named = [
        (i, j)
        for i in range(len(operations))
        for j in range(len(calls))
        if operations.process[i] == calls.process[j] != NO_PROCESS
        and operations.correlation[i] == calls.correlation[j] != NO_CORRELATION
    ]
    assert sorted(zip(*(rows.tolist() for rows in launch_pairs(timeline)), strict=True)) == named
