"""Joins, against every row beside every other; and what is shared between analyses."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.framework.memoize import once
from hpcprof.profiles.columns.joins import launch_pairs, matches, pair_keys
from hpcprof.profiles.readers.nsys.reader import read
from hpcprof.profiles.timeline import NO_CORRELATION, NO_PROCESS, Timeline
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
    columns = [tuple(np.array([row[i] for row in rows], np.int64) for i in (0, 1)) for rows in (a, b)]
    keys = np.concatenate(pair_keys(columns[0], columns[1])).tolist()
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


def test_a_shared_result_is_computed_once_and_freed_with_its_timeline(tmp_path: Path) -> None:
    generated_exports.write(tmp_path / "rank0.sqlite", 3)
    timeline = read(tmp_path / "rank0.sqlite")
    calls = []

    @once
    def longest(timeline: Timeline) -> int:
        calls.append(1)
        return int((timeline.calls.end - timeline.calls.start).max())

    assert longest(timeline) == longest(timeline)
    assert len(calls) == 1
    launch_pairs(timeline)
    alive = weakref.ref(timeline)
    del timeline
    gc.collect()
    assert alive() is None


def test_a_result_of_two_frames_is_computed_once_for_these_and_freed_with_either() -> None:
    frames = [pd.DataFrame({"a": [number]}) for number in range(3)]
    calls = []

    @once
    def total(left: pd.DataFrame, right: pd.DataFrame) -> int:
        calls.append(1)
        return int(left["a"].sum() + 2 * right["a"].sum())

    assert [total(frames[0], frames[1]), total(frames[0], frames[1])] == [2, 2]
    assert len(calls) == 1
    assert [total(frames[1], frames[0]), total(frames[0], frames[2])] == [1, 4]
    assert len(calls) == 3
    # Another frame may come to stand where the freed one stood.
    for number in range(50):
        assert total(frames[0], pd.DataFrame({"a": [number]})) == 2 * number
