"""Projection and nesting against the slow and obvious way: every range against every call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcprof.analysis.steps.gpu_projection import Projection, in_process, launches, on_thread
from hpcprof.analysis.steps.range_tree import NO_PARENT, levels, tightest
from hpcprof.profiles.readers.nsys.reader import read
from hpcprof.profiles.timeline import Timeline
from tests.data import generated_exports


def slow_projection(timeline: Timeline, same_thread: bool) -> list[tuple[int, int, int] | None]:
    """Return (start, end, launches) of each range, None without operations."""
    operations, calls, ranges = timeline.operations(), timeline.calls, timeline.ranges
    work: dict[tuple[int, int], list[int]] = {}
    for i in range(len(operations)):
        work.setdefault((int(operations.process[i]), int(operations.correlation[i])), []).append(i)
    found: list[tuple[int, int, int] | None] = []
    for r in range(len(ranges)):
        inside: set[int] = set()
        starts: list[int] = []
        ends: list[int] = []
        for c in range(len(calls)):
            same = calls.process[c] == ranges.process[r]
            same = same and (not same_thread or calls.thread[c] == ranges.thread[r])
            own = work.get((int(calls.process[c]), int(calls.correlation[c])))
            if same and own and ranges.start[r] <= calls.start[c] and calls.end[c] <= ranges.end[r]:
                inside.add(int(calls.correlation[c]))
                starts += operations.start[own].tolist()
                ends += operations.end[own].tolist()
        found.append((min(starts), max(ends), len(inside)) if inside else None)
    return found


def as_list(projection: Projection) -> list[tuple[int, int, int] | None]:
    """Return the fast projection in the same form."""
    rows = zip(projection.start.tolist(), projection.end.tolist(), projection.launches.tolist(), strict=True)
    return [row if row[2] else None for row in rows]


@pytest.mark.parametrize("seed", range(25))
def test_both_rules_equal_the_slow_version_on_random_exports(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "rank0.sqlite"
    generated_exports.write(path, seed)
    timeline = read(path)
    launched = launches(timeline)
    assert as_list(on_thread(timeline.ranges, launched)) == slow_projection(timeline, same_thread=True)
    assert as_list(in_process(timeline.ranges, launched)) == slow_projection(timeline, same_thread=False)


def slow_tightest(start: list[int], end: list[int]) -> list[int]:
    """Return each interval's shortest container, the first of equally short ones."""
    result = []
    for i in range(len(start)):
        around = [j for j in range(len(start)) if j != i and start[j] <= start[i] and end[j] >= end[i]]
        result.append(min(around, key=lambda j: (end[j] - start[j], j), default=NO_PARENT))
    return result


def slow_level(parent: list[int], i: int) -> float:
    """Walk to the root; NaN on a cycle."""
    for level in range(len(parent) + 1):
        if parent[i] == NO_PARENT:
            return level
        i = parent[i]
    return float("nan")


intervals = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 12)), max_size=40)


@settings(max_examples=150)
@given(intervals)
def test_parents_and_levels_equal_the_slow_version(items: list[tuple[int, int]]) -> None:
    table = np.array(items, np.int64).reshape(-1, 2)
    start, end = table[:, 0], table[:, 0] + table[:, 1]
    parent = tightest(start, end)
    assert parent.tolist() == slow_tightest(start.tolist(), end.tolist())
    expected = [slow_level(parent.tolist(), i) for i in range(len(items))]
    np.testing.assert_array_equal(levels(parent), np.array(expected, float))


def test_equal_ranges_are_each_others_parent_and_have_no_level() -> None:
    parent = tightest(np.array([0, 5, 5, 6]), np.array([100, 50, 50, 40]))
    assert parent.tolist() == [NO_PARENT, 2, 1, 1]
    np.testing.assert_array_equal(levels(parent), [0, np.nan, np.nan, np.nan])


def test_a_hundred_thousand_nested_ranges_take_no_quadratic_time() -> None:
    n = 100_000
    parent = tightest(np.arange(n), 2 * n - np.arange(n))
    assert parent.tolist() == [NO_PARENT, *range(n - 1)]
    assert levels(parent).tolist() == list(range(n))


def test_one_call_that_launches_several_operations_counts_once(sequence_parallel: Timeline) -> None:
    timeline: Any = sequence_parallel
    projection = on_thread(timeline.ranges, launches(timeline))
    names = timeline.names(timeline.ranges.name)
    steps = [n for n, name in zip(projection.launches.tolist(), names, strict=True) if name == "iteration"]
    assert steps == [6] * 43
