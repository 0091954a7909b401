"""The difference of the step, in parts that add up to it."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcprof.analysis.comparison.step_difference import step_difference
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.steps.run_step import step_kinds
from tests.unit.analysis.several import run

PARTS = ("compute_ns", "exposed_comm_ns", "wait_for_peer_ns", "exposed_mem_ns", "idle_ns")
Step = tuple[int, ...]


def profiled(name: str, ranks: Sequence[Sequence[Step]], waiting: bool = True) -> RunData:
    """Build a run from the parts of each step of each rank."""
    rows: list[dict[str, object]] = []
    for rank, steps in enumerate(ranks):
        for number, parts in enumerate(steps):
            row: dict[str, object] = {"rank": rank, "step": number, "wall_ns": sum(parts)}
            row |= dict(zip(PARTS, parts, strict=True))
            rows.append(row | ({} if waiting else {"wait_for_peer_ns": None}))
    account = pd.DataFrame(rows)
    start = account.groupby("rank")["wall_ns"].cumsum() - account["wall_ns"]
    kinds = step_kinds(account, start.to_numpy(), start.to_numpy(), set(range(len(ranks))))
    return run(name, tables={"step_account": rows, "step_kinds": kinds})


def differences(a: list[RunData], b: list[RunData]) -> dict[str, int]:
    rows = step_difference(b, a).rows
    return dict(zip(rows["part"], rows["difference_ns"], strict=True))


steps = st.lists(st.tuples(*[st.integers(0, 10**12)] * 5), min_size=1, max_size=9)
sides = st.lists(st.lists(steps, min_size=1, max_size=3), min_size=1, max_size=3)


@settings(max_examples=15, deadline=None)
@given(sides, sides, st.booleans())
def test_the_parts_add_up_to_the_step_on_both_sides_and_in_between(
    a: list[list[list[Step]]], b: list[list[list[Step]]], waiting: bool
) -> None:
    both = [[profiled(f"{i}", ranks, waiting) for i, ranks in enumerate(side)] for side in (a, b)]
    rows = step_difference(both[1], both[0]).rows
    assert rows["part"][0] == "step"
    for column in ("a_ns", "b_ns", "difference_ns"):
        assert all(type(value) is int for value in rows[column])
        assert rows[column][0] == sum(rows[column][1:])


def test_the_step_is_the_elapsed_time_and_its_parts_are_means_over_steps_and_ranks() -> None:
    # The last steps have no end.
    a = profiled("a", [[(50, 0, 0, 0, 50)] * 3, [(90, 0, 0, 0, 10), (110, 0, 0, 0, -10), (500, 0, 0, 0, 0)]])
    b = profiled("b", [[(50, 0, 0, 0, 62)] * 3, [(100, 8, 0, 0, 4)] * 3])
    found = differences([a], [b])
    assert found == {
        **{"step": 12, "compute": 0, "exposed communication": 4, "waiting for peers": 0},
        **{"exposed copies": 0, "idle": 8},
    }


def test_a_quicker_rank_makes_steps_uneven() -> None:
    a = profiled("a", [[(100, 0, 0, 0, 0)] * 3] * 2)
    b = profiled("b", [[(100, 0, 0, 0, 0)] * 3, [(70, 0, 0, 0, 0)] * 3])
    assert differences([a], [b])["outside steps"] == 15


def test_unknown_waiting_counts_as_communication_on_both_sides() -> None:
    a = profiled("a", [[(100, 10, 5, 0, 0)]])
    b = profiled("b", [[(100, 30, 0, 0, 0)]], waiting=False)
    outcome = step_difference([b], [a])
    found = dict(zip(outcome.rows["part"], outcome.rows["difference_ns"], strict=True))
    assert found["exposed communication"] == 15
    assert "waiting for peers" not in found
    assert "includes the waiting for peers" in outcome.reason


def test_repeats_give_an_interval_and_single_runs_a_sentence() -> None:
    one = step_difference([profiled("b", [[(2, 0, 0, 0, 0)]])], [profiled("a", [[(1, 0, 0, 0, 0)]])])
    assert one.rows["ci_low_ns"][0] is None
    assert "exact for these two runs, but another pair of runs may differ" in one.reason
    a, b = (
        [profiled(f"{base}{i}", [[(base + i, 0, 0, 0, 0)]]) for i in (-10, 0, 10)] for base in (1000, 2000)
    )
    row = step_difference(b, a).rows.iloc[0]
    assert row["difference_ns"] == 1000
    # Two sides of three values with a deviation of 10: 2.776 x 10 x sqrt(2 / 3).
    assert (row["ci_low_ns"], row["ci_high_ns"]) == pytest.approx((1000 - 22.7, 1000 + 22.7), abs=1)


def test_runs_without_an_account_have_no_difference() -> None:
    outcome = step_difference([run("b", own=[1])], [run("a", own=[1])])
    assert not len(outcome.rows)
    assert "needs profiles with steps on both sides" in outcome.reason
