"""The step of a run: its series, its kinds, its elapsed time and where that goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcprof.analysis.steps.run_step import PARTS, kinds_of_steps, steady_series, step_kinds, step_series

Parts = tuple[int, ...]


def account(ranks: Sequence[Sequence[Parts]]) -> pd.DataFrame:
    """The rows of ``step_account`` from the parts of each step of each rank."""
    rows = [
        {"rank": rank, "step": step, "wall_ns": sum(parts), **dict(zip(PARTS, parts, strict=True))}
        for rank, steps in enumerate(ranks)
        for step, parts in enumerate(steps)
    ]
    table: pd.DataFrame = pd.DataFrame(rows)
    return table


def kinds(
    ranks: Sequence[Sequence[Parts]], first: Sequence[int] = (), aligned: Sequence[int] = (0, 1, 2, 3)
) -> list[dict[str, Any]]:
    """The rows of ``step_kinds`` of ranks whose steps follow each other from a first front each."""
    table = account(ranks)
    start = table.groupby("rank")["wall_ns"].cumsum() - table["wall_ns"]
    shift = np.array(first or [0] * len(ranks))[table["rank"]]
    return step_kinds(table, start.to_numpy() + shift, start.to_numpy(), set(aligned))


def compute(*times: int) -> list[Parts]:
    """Steps that only compute."""
    return [(time, 0, 0, 0, 0) for time in times]


def test_steps_count_on_the_lowest_rank_where_they_take_longest() -> None:
    rows = pd.DataFrame({"rank": [0, 0, 0, 1, 1, 1], "step": [0, 1, 2] * 2, "wall_ns": [5, 9, 4, 7, 8, 4]})
    series = step_series(rows)
    found = (series.steps.tolist(), series.wall.tolist(), series.ranks.tolist())
    assert found == ([0, 1, 2], [7, 9, 4], [1, 0, 0])


def test_only_steps_that_all_ranks_have_count() -> None:
    ranks = [compute(10, 20, 30), compute(10, 20)]
    assert step_series(account(ranks)).steps.tolist() == [0, 1]
    (every,) = kinds(ranks)
    assert (every["steps"], every["elapsed_ns"]) == (2, 10)


steps = st.lists(st.tuples(*[st.integers(0, 10**9)] * 5), min_size=1, max_size=12)


@settings(max_examples=30, deadline=None)
@given(st.lists(steps, min_size=1, max_size=3), st.lists(st.integers(0, 10**9), min_size=3, max_size=3))
def test_the_parts_of_each_kind_add_up_to_its_elapsed_time(
    ranks: list[list[Parts]], first: list[int]
) -> None:
    for aligned in ((0, 1, 2), (0,)):
        for row in kinds(ranks, first[: len(ranks)], aligned):
            assert sum(row[name] or 0 for name in (*PARTS, "uneven_ns")) == row["elapsed_ns"]
            assert row["uneven_ns"] >= 0


def test_steps_that_follow_each_other_run_from_the_last_front_to_the_last_front() -> None:
    # Lateness that rotates: the longest wall over the ranks is 14, and of three steps one is short.
    late = compute(14, 10, 14, 10), compute(10, 14, 10, 14)
    (every,) = kinds(late)
    assert (every["wall_p50_ns"], every["elapsed_ns"], every["uneven_ns"]) == (14, 13, 1)
    # Rank 1 begins and ends 8 later.
    (every,) = kinds(late, (0, 8))
    assert (every["elapsed_ns"], every["compute_ns"], every["uneven_ns"]) == (12, 12, 0)


def test_the_last_step_without_a_next_front_counts_only_if_it_is_alone() -> None:
    whole = [(10, 0, 0, 0, 20), (12, 0, 0, 0, 22), (10, 0, 0, 0, 0)]
    for count in (2, 3):
        (every,) = kinds([whole[:1] + whole[3 - count + 1 :]])
        length = 30 if count == 2 else 32
        assert (every["steps"], every["counted_steps"], every["elapsed_ns"]) == (count, count - 1, length)
    (alone,) = kinds([whole[2:]])
    assert (alone["elapsed_ns"], alone["idle_ns"]) == (10, 0)


def test_steps_with_time_between_them_run_from_the_first_begin_to_the_last_end() -> None:
    table = account([compute(10, 10, 10), compute(10, 10, 10)])
    start = np.array([0, 15, 30, 4, 19, 34])
    (every,) = step_kinds(table, start, start, {0, 1})
    assert (every["elapsed_ns"], every["compute_ns"], every["uneven_ns"]) == (15, 10, 5)


def test_steps_follow_each_other_by_the_clocks_of_their_ranks() -> None:
    table = account([compute(1000, 1000, 1000)] * 2)
    own_start = np.array([0, 1000, 2000] * 2)
    (every,) = step_kinds(table, own_start * 1003 // 1000, own_start, {0, 1})
    assert (every["steps"], every["counted_steps"]) == (3, 2)


def test_without_a_common_clock_elapsed_time_is_that_of_the_slowest_rank() -> None:
    (every,) = kinds([compute(10, 10), compute(14, 14)], (0, 500), aligned=())
    assert (every["elapsed_ns"], every["uneven_ns"]) == (14, 2)


def test_waiting_is_unknown_only_if_it_is_on_every_rank() -> None:
    table = account([[(5, 4, 0, 0, 0)], [(5, 2, 2, 0, 0)]]).astype({"wait_for_peer_ns": object})
    table.loc[0, "wait_for_peer_ns"] = None
    (one,) = step_kinds(table, np.array([0, 0]), np.array([0, 0]), {0, 1})
    table["wait_for_peer_ns"] = None
    table["exposed_comm_ns"] = 4
    (none,) = step_kinds(table, np.array([0, 0]), np.array([0, 0]), {0, 1})
    assert (one["wait_for_peer_ns"], none["wait_for_peer_ns"]) == (1, None)


def test_steps_of_accumulation_are_a_kind_with_their_share_and_account() -> None:
    steps = [(100 + i, 0, 0, 0, 0) if i % 4 else (100 + i, 40, 0, 0, 0) for i in range(20)]
    every, usual, reducing = kinds([steps])
    assert (every["kind"], every["steps"], every["exposed_comm_ns"]) == (0, 20, 11)
    assert (usual["kind"], usual["share_pct"], usual["exposed_comm_ns"]) == (1, 75, 0)
    assert (reducing["kind"], reducing["steps"], reducing["exposed_comm_ns"]) == (2, 5, 40)
    assert reducing["wall_p50_ns"] == 148
    # The kinds make up the whole, but for the last step.
    total = 14 * usual["elapsed_ns"] + 5 * reducing["elapsed_ns"]
    assert total == pytest.approx(19 * every["elapsed_ns"], abs=20)


def test_steps_of_one_length_with_two_accounts_are_two_kinds() -> None:
    steps = [(60, 35, 0, 0, 5) if i % 2 else (60, 5, 0, 0, 35) for i in range(12)]
    assert kinds_of_steps(account([steps])).tolist() == [1, 2] * 6


def test_three_lengths_are_three_kinds_the_most_frequent_first() -> None:
    times = [*[100] * 8, *[200] * 5, *[300] * 4]
    assert kinds_of_steps(account([compute(*times)])).tolist() == [*[1] * 8, *[2] * 5, *[3] * 4]


def test_steps_of_ranks_without_a_common_number_are_counted_on_each() -> None:
    rows = pd.DataFrame({"rank": [0, 0, 0, 1, 1], "step": [0, 1, 2, 5, 6], "wall_ns": [10, 20, 30, 15, 12]})
    series = step_series(rows)
    assert (series.steps.tolist(), series.wall.tolist()) == ([0, 1], [15, 20])


@pytest.mark.parametrize(
    "times",
    [
        [100, 100, 160, 100, 100, 160, 100, 100, 100, 100],  # two spikes
        [108, *[100] * 8, 108],  # less than a tenth apart
        [*range(100, 140)],  # a trend
        [100, 150],
    ],
)
def test_exceptions_small_differences_trends_and_few_steps_are_no_kinds(times: list[int]) -> None:
    assert set(kinds_of_steps(account([compute(*times)])).tolist()) == {1}


@pytest.mark.parametrize("seed", range(8))
def test_noise_with_one_mode_is_one_kind(seed: int) -> None:
    noise = np.random.default_rng(seed)
    for values in (noise.normal(0, 20, 20), noise.exponential(40, 40), noise.random(12) * 80):
        times = np.rint(1000 * (100 + np.clip(values, -50, 500))).astype(int).tolist()
        assert set(kinds_of_steps(account([compute(*times)])).tolist()) == {1}


def test_only_kinds_that_work_more_lose_their_length_in_the_steady_series() -> None:
    works = [(100, 0, 0, 0, 0) if i % 4 else (140, 0, 0, 0, 0) for i in range(20)]
    idles = [(100, 0, 0, 0, 0) if i % 4 else (100, 0, 0, 0, 40) for i in range(20)]
    assert set(steady_series(account([works])).wall.tolist()) == {100}
    assert set(steady_series(account([idles])).wall.tolist()) == {100, 140}


def test_a_kind_of_steps_that_follow_each_other_keeps_its_length_in_the_steady_series() -> None:
    slower = compute(*[100] * 12, *[140] * 8)
    assert set(steady_series(account([slower])).wall.tolist()) == {100, 140}
    # A single step that is longer by chance makes no other kind of it.
    once = compute(*[100] * 4, 135, *[100] * 7, *[140] * 8)
    assert set(steady_series(account([once])).wall.tolist()) == {100, 135, 140}
