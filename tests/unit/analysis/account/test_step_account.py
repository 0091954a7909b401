"""The account of a step: its parts exclude each other and add up to the wall time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.account.step_account import exposed_communication, step_parts
from hpcprof.profiles.timeline import Timeline
from tests.unit.analysis.over_all_ranks import step_account
from tests.unit.analysis.simulated import LAG, MESSAGE, Program
from tests.unit.analysis.timelines import COMM, COMP, MEM, timeline

STEPS = [(0, 100, "iteration", 0), (100, 200, "iteration", 0)]
PARTS = ["compute_ns", "exposed_comm_ns", "wait_for_peer_ns", "exposed_mem_ns", "idle_ns"]


def parts_of(profile: Timeline) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = step_parts(profile).rows.to_dict("records")  # type: ignore[assignment]
    return rows


def test_a_moment_counts_as_compute_before_communication_before_memory() -> None:
    profile = timeline(
        [
            (10, 50, COMP, 5),
            (40, 70, COMM, 6, 0, 0, 2),
            (60, 90, MEM, 7, 0, 0, 3),
            (110, 150, COMP, 105),
        ],
        STEPS,
    )
    first, last = parts_of(profile)
    assert first == {
        "step": 0,
        "start_ns": 10,
        "wall_ns": 100,
        "compute_ns": 40,
        "exposed_comm_ns": 20,
        "exposed_mem_ns": 20,
        "idle_ns": 20,
    }
    assert (last["wall_ns"], last["compute_ns"], last["idle_ns"]) == (90, 40, 50)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 300),
            st.integers(0, 80),
            st.sampled_from([COMP, COMM, MEM]),
            st.integers(0, 200),
            st.integers(0, 1),
            st.integers(0, 1),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_the_parts_are_never_negative_and_add_up(rows: list[tuple[Any, ...]]) -> None:
    operations = [(start, start + length, *rest) for start, length, *rest in rows]
    for row in parts_of(timeline(operations, STEPS)):
        parts = [row["compute_ns"], row["exposed_comm_ns"], row["exposed_mem_ns"], row["idle_ns"]]
        assert min(parts) >= 0
        assert sum(parts) == row["wall_ns"]


def account(ranks: Sequence[Timeline], collectives: pd.DataFrame) -> pd.DataFrame:
    """Return the account of several ranks."""

    def of_ranks(analysis: Any) -> pd.DataFrame:
        joined: pd.DataFrame = pd.concat(
            [analysis(one).rows.assign(rank=rank) for rank, one in enumerate(ranks)]
        )
        return joined

    results = {
        "step_parts": of_ranks(step_parts),
        "exposed_communication": of_ranks(exposed_communication),
        "rank_collectives": collectives,
    }
    return step_account(results).frame


def two_ranks(late: int, steps: int = 12) -> tuple[list[Timeline], pd.DataFrame]:
    """Return two ranks whose all-reduces end together; rank 1 begins them later, and its clock is ahead."""
    ahead = (0, 5_000)
    timelines, rows = [], []
    for rank, shift in enumerate(ahead):
        operations, ranges = [], []
        for step in range(steps):
            zero = 1_000 * step + shift
            begin = zero + 500 + (late if rank else 0)
            operations += [
                (zero, zero + 400, COMP, zero),
                (begin, zero + 900, COMM, zero + 1, 0, 0, 2),
            ]
            ranges.append((zero, zero + 950, "iteration", 0))
            rows.append(
                {
                    "rank": rank,
                    "op": "AllReduce",
                    "comm_id": "world",
                    "seq": step,
                    "bytes": 8.0,
                    "comm_ranks": 2.0,
                    "world_ranks": 2.0,
                    "fused": 1,
                    "part": 0,
                    "start_ns": begin,
                    "end_ns": zero + 900,
                    "exposed_ns": zero + 900 - begin,
                    "step": float(step),
                }
            )
        timelines.append(timeline(operations, ranges, world=2))
    return timelines, pd.DataFrame(rows)


def test_the_time_before_the_last_rank_arrives_is_waiting_whatever_the_clocks_say() -> None:
    rows = account(*two_ranks(late=150))
    first, last = rows[rows["rank"] == 0].iloc[:-1], rows[rows["rank"] == 1].iloc[:-1]
    assert set(first["wait_for_peer_ns"]) == {150}
    assert set(first["exposed_comm_ns"]) == {250}
    assert set(last["wait_for_peer_ns"]) == {0}
    assert set(last["exposed_comm_ns"]) == {250}
    assert (rows[PARTS].sum(axis=1) == rows["wall_ns"]).all()


def test_a_stage_waits_for_the_one_before_it_and_not_while_messages_are_transferred() -> None:
    program = Program(2, ahead=[0, 10**9])
    for _ in range(6):
        begun = program.begin_step()
        program.compute(2_000_000, 500_000)
        program.message(0, 1)
        program.compute(1_000_000, 1_000_000)
        program.message(1, 0)
        program.end_step(begun)
    ranks = [rank.timeline(2) for rank in program.ranks]
    rows = account(ranks, program.results()["rank_collectives"])
    assert (rows[PARTS].sum(axis=1) == rows["wall_ns"]).all()
    stage = rows[rows["rank"] == 1]["wait_for_peer_ns"].tolist()[1:-1]
    assert stage == pytest.approx([1_500_000] * 4, abs=10 * LAG)
    assert rows["exposed_comm_ns"].iloc[1:-1].max() < 4 * (MESSAGE + LAG)


def test_without_the_other_rank_the_waiting_is_unknown_and_counts_as_communication() -> None:
    (alone, _), collectives = two_ranks(late=150)
    rows = account([alone], collectives[collectives["rank"] == 0])
    assert set(rows["wait_for_peer_ns"]) == {None}
    assert set(rows["exposed_comm_ns"].iloc[:-1]) == {400}


def test_a_step_without_exposed_communication_waits_for_nobody() -> None:
    profile = timeline([(10, 50, COMP, 5), (110, 150, COMP, 105)], STEPS)
    nothing = pd.DataFrame({"rank": [], "start_ns": [], "end_ns": []})
    parts = step_parts(profile).rows.assign(rank=0)
    results = {"step_parts": parts, "exposed_communication": nothing, "rank_collectives": pd.DataFrame()}
    assert set(step_account(results).frame["wait_for_peer_ns"]) == {0}
