"""Skew: who comes late, and what it costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.collectives.clock_alignment import later_than_others
from hpcprof.analysis.collectives.declarations import COST_PCT
from tests.unit.analysis.over_all_ranks import (
    align_clocks,
    collectives,
    match_collectives,
    skew,
    skew_summary,
)
from tests.unit.analysis.simulated import JITTER, TRANSFER, Program, data_parallel, sequence_parallel


def verdicts(program: Program) -> list[str]:
    """Return the verdict of each rank."""
    found: list[str] = skew(program.results()).frame["verdict"].tolist()
    return found


def test_a_rank_that_does_extra_work_in_every_step_is_named_with_its_lateness_and_cost() -> None:
    results = sequence_parallel(4, late=[2], extra=500_000).results()
    outcome = skew(results)
    assert outcome.reason == ""
    rows = outcome.frame
    assert rows["verdict"].tolist() == ["even", "even", "straggler", "even"]
    late = rows.iloc[2]
    assert late["lateness_p50_ns"] == pytest.approx(500_000, abs=2 * JITTER)
    assert rows["lateness_p50_ns"].drop(2).tolist() == [0, 0, 0]
    # It comes last to all 40 reduce-scatters and, within the jitter, to some all-gathers.
    assert late["times_last"] >= 40
    assert late["pct_last"] == pytest.approx(100 * late["times_last"] / 80)
    assert rows["times_last"].sum() == 80
    for waiting in (0, 1, 3):
        assert rows["wait_ns"][waiting] == pytest.approx(40 * 500_000, rel=0.02)
    assert late["wait_ns"] < 80 * 2 * JITTER
    cost = skew_summary(results).frame.iloc[2]
    step = 2_000_000 + 500_000 + 2 * TRANSFER
    assert cost["elapsed_ns"] == pytest.approx(step, abs=4 * JITTER)
    assert cost["cost_ns"] == cost["lateness_p50_ns"]
    assert cost["cost_pct"] == pytest.approx(100 * 500_000 / step, abs=0.5)
    assert cost["uncertainty_ns"] <= JITTER
    assert (cost["steps"], cost["verdict"]) == (40, "straggler")


def test_collectives_show_that_the_others_wait_for_the_late_rank() -> None:
    rows = collectives(sequence_parallel(4, late=[2], extra=500_000).results()).frame
    reduce = rows[rows["op"] == "ReduceScatter"]
    assert set(reduce["last_rank"]) == {2}
    assert reduce["spread_ns"].median() == pytest.approx(500_000, abs=2 * JITTER)
    gather = rows[rows["op"] == "AllGather"]
    assert gather["spread_ns"].max() <= 3 * JITTER


def test_a_host_that_sleeps_while_its_gpu_is_never_idle_makes_no_straggler() -> None:
    program = data_parallel(4, [80_000_000] * 4, host_sleeps=1)
    # The host of rank 1 does fall behind the others'.
    assert program.ranks[1].host - program.ranks[0].host == 10 * 20_000_000
    rows = skew(program.results()).frame
    assert rows["verdict"].tolist() == ["even"] * 4
    assert rows["lateness_p50_ns"].max() == 0


def test_a_slow_backward_pass_costs_what_the_others_wait_for_with_nothing_to_compute() -> None:
    results = data_parallel(4, [80_000_000, 80_000_000, 80_000_000, 100_000_000]).results()
    rows = skew(results).frame
    assert rows["verdict"].tolist() == ["even", "even", "even", "straggler"]
    # The others' kernels wait longer in all, but most of that beside their own backward pass.
    assert rows["wait_ns"][0] / 10 > 50_000_000
    assert rows["lateness_p50_ns"][3] == pytest.approx(20_000_000, rel=0.05)
    assert skew_summary(results).frame["cost_pct"][3] == pytest.approx(100 * 20 / 101.4, rel=0.05)


def test_waiting_beside_compute_costs_nothing() -> None:
    program = Program(2)
    for _ in range(20):
        begun = program.begin_step()
        start = [rank.now for rank in program.ranks]
        program.compute(50_000_000, 50_000_000)
        program.communicate(program.ranks, [start[0], start[1] + 10_000_000], "AllReduce", 4, "c", 100)
        for rank in program.ranks:
            rank.now = start[0] + 50_000_000
        program.end_step(begun)
    rows = skew(program.results()).frame
    assert rows["times_last"].tolist() == [0, 20]
    assert rows["wait_ns"][0] == pytest.approx(20 * 10_000_000, rel=0.01)
    assert rows["lateness_p50_ns"].tolist() == [0, 0]
    assert rows["verdict"].tolist() == ["even", "even"]


def test_clocks_that_are_apart_and_drift_change_no_verdict() -> None:
    ahead = [0, 10**12, -(5 * 10**9), 123]
    drift = [0.0, 5e-6, -3e-6, 20e-6]
    plain = skew(sequence_parallel(4, late=[1], extra=400_000).results()).frame
    moved = skew(sequence_parallel(4, late=[1], extra=400_000, ahead=ahead, drift=drift).results()).frame
    assert moved["verdict"].tolist() == plain["verdict"].tolist() == ["even", "straggler", "even", "even"]
    assert moved["lateness_p50_ns"][1] == pytest.approx(plain["lateness_p50_ns"][1], abs=2 * JITTER)
    even = sequence_parallel(4, ahead=ahead, drift=drift)
    assert verdicts(even) == ["even"] * 4


def test_a_drift_of_many_milliseconds_over_a_long_run_is_followed() -> None:
    steps = 4000
    results = sequence_parallel(2, late=[1], extra=300_000, steps=steps, drift=[0, 100e-6]).results()
    one = match_collectives(results["rank_collectives"])[0][0]
    apart = one.end[:, 1] - one.end[:, 0]
    assert apart.max() - apart.min() > 1_000_000
    summary = skew_summary(results).frame
    assert summary["uncertainty_ns"].max() < 30_000
    assert summary["verdict"].tolist() == ["even", "straggler"]
    assert summary["lateness_p50_ns"][1] == pytest.approx(300_000, rel=0.05)


def test_ends_that_scatter_more_than_a_share_of_the_step_give_no_verdict() -> None:
    program = sequence_parallel(3, steps=30)
    results = program.results()
    rows = results["rank_collectives"]
    noise = np.random.default_rng(1).integers(-400_000, 400_000, len(rows))
    rows["start_ns"] += noise
    rows["end_ns"] += noise
    outcome = skew(results)
    assert outcome.frame["verdict"].tolist() == ["unknown"] * 3
    assert "% of a step may be hidden by chance and by the clocks, which are aligned to" in outcome.reason


def test_a_late_rank_is_a_straggler_from_the_stated_share_on_and_late_below_it() -> None:
    step = 2_000_000 + 2 * TRANSFER
    below = round(step * (COST_PCT - 1) / 100)
    assert verdicts(sequence_parallel(4, late=[0], extra=below)) == ["late", "even", "even", "even"]
    above = round(step * (COST_PCT + 1) / 100)
    assert verdicts(sequence_parallel(4, late=[0], extra=above))[0] == "straggler"


def test_a_rank_that_is_2_3_of_78_ms_late_in_each_of_6_steps_is_late() -> None:
    program = Program(2)
    noise = np.random.default_rng(3).normal(0, 100_000, (6, 2))
    for early, late in noise.round().astype(int).tolist():
        begun = program.begin_step()
        program.collective("AllGather")
        program.compute(75_000_000 + early, 77_300_000 + late)
        program.collective("AllReduce")
        program.end_step(begun)
    results = program.results()
    assert skew(results).frame["verdict"].tolist() == ["even", "late"]
    row = skew_summary(results).frame.iloc[1]
    assert 0 < row["lateness_low_ns"] < 2_300_000 < row["lateness_high_ns"] < 4_000_000


def test_a_lateness_that_costs_less_than_one_percent_for_certain_is_even() -> None:
    rows = skew_summary(sequence_parallel(4, late=[2], extra=10_000).results()).frame
    assert rows["verdict"].tolist() == ["even"] * 4
    assert 0 < rows["lateness_low_ns"][2] < 10_000 < rows["lateness_high_ns"][2] < 28_000


def test_a_rank_that_is_late_in_some_steps_only_may_be_late_by_chance() -> None:
    program = Program(2)
    for extra in (0, 900_000, 0, 0, 1_300_000, 0, 700_000, 0):
        begun = program.begin_step()
        program.collective("AllGather")
        program.compute(2_000_000, 2_000_000 + extra)
        program.collective("AllReduce")
        program.end_step(begun)
    outcome = skew(program.results())
    assert outcome.frame["verdict"].tolist() == ["even", "unknown"]
    assert outcome.reason.startswith("a lateness of up to ")


def test_ranks_that_are_late_to_different_collectives_of_a_step_are_both_named() -> None:
    program = Program(2)
    for _ in range(10):
        begun = program.begin_step()
        program.compute(2_000_000, 2_300_000)
        program.collective("AllGather")
        program.compute(2_400_000, 2_000_000)
        program.collective("AllReduce")
        program.end_step(begun)
    assert verdicts(program) == ["straggler", "straggler"]


def test_three_steps_have_no_interval_and_no_verdict() -> None:
    outcome = skew_summary(sequence_parallel(3, late=[1], extra=500_000, steps=3).results())
    assert outcome.frame["verdict"].tolist() == ["unknown"] * 3
    program = Program(2)
    for _ in range(3):
        begun = program.begin_step()
        for _ in range(4):
            program.compute(1_000_000, 1_500_000)
            program.collective("AllReduce")
        program.end_step(begun)
    outcome = skew(program.results())
    assert outcome.frame["verdict"].tolist() == ["unknown"] * 2
    assert outcome.reason == "fewer than 4 steps with collectives are too few to judge lateness"


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_vary_like_each_other_are_seldom_called_late(ranks: int) -> None:
    draw = np.random.default_rng(5)
    named = 0
    for _ in range(12):
        program = Program(ranks)
        for _ in range(8):
            begun = program.begin_step()
            program.collective("AllGather")
            program.compute(*draw.integers(2_000_000, 2_200_000, ranks).tolist())
            program.collective("AllReduce")
            program.end_step(begun)
        named += bool({"late", "straggler"} & set(verdicts(program)))
    assert named == 0


def test_two_late_ranks_are_both_named_and_one_fast_rank_is_not_late() -> None:
    assert verdicts(sequence_parallel(5, late=[1, 3], extra=600_000)) == [
        *("even", "straggler", "even", "straggler", "even")
    ]
    assert verdicts(sequence_parallel(4, late=[0, 1, 2], extra=600_000)) == ["even"] * 4


def test_of_two_ranks_the_late_one_is_named() -> None:
    assert verdicts(sequence_parallel(2, late=[1], extra=500_000)) == ["even", "straggler"]


def test_one_rank_alone_is_unknown() -> None:
    outcome = skew(sequence_parallel(4).results(without=[0, 1, 3]))
    row = outcome.frame.iloc[0]
    assert (row["rank"], row["verdict"]) == (2, "unknown")
    assert row["wait_ns"] is None
    assert row["lateness_p50_ns"] is None
    assert "a single rank cannot be compared" in outcome.reason


def test_a_missing_rank_leaves_the_others_compared_with_each_other() -> None:
    program = sequence_parallel(4, late=[2], extra=500_000)
    outcome = skew(program.results(without=[0]))
    assert outcome.reason == "1 of 4 ranks have no profile and may be later than the others"
    rows = outcome.frame
    assert dict(zip(rows["rank"], rows["verdict"], strict=True)) == {1: "even", 2: "straggler", 3: "even"}
    # The missing one may be the late one: nobody else is called so.
    assert skew(program.results(without=[2])).frame["verdict"].tolist() == ["even"] * 3


def test_too_few_collectives_give_no_verdict() -> None:
    outcome = skew(sequence_parallel(3, late=[1], extra=500_000, steps=4).results())
    assert outcome.frame["verdict"].tolist() == ["unknown"] * 3
    assert "fewer than 5 matched all-reduces" in outcome.reason


def test_a_rank_that_cannot_be_compared_leaves_the_figures_of_the_others_whole() -> None:
    program = sequence_parallel(3, late=[1], extra=500_000)
    alone = Program(1)
    alone.collective("AllReduce", comm="self")
    program.ranks += alone.ranks
    outcome = skew(program.results())
    assert outcome.frame["verdict"].tolist() == ["even", "straggler", "even", "unknown"]
    assert outcome.frame["wait_ns"][3] is None
    assert all(isinstance(value, int) for value in outcome.frame["wait_ns"][:3])
    assert outcome.reason.startswith("ranks with fewer than 5 matched")


def test_without_steps_the_cost_is_unknown_and_so_is_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcprof.analysis.steps.step_detection.launch_step_candidates", lambda timeline: ())
    program = sequence_parallel(3, late=[1], extra=500_000)
    for rank in program.ranks:
        rank.steps.clear()
    outcome = skew(program.results())
    assert outcome.frame["verdict"].tolist() == ["unknown"] * 3
    assert outcome.frame["times_last"][1] >= 40
    assert outcome.reason == "no rank has steps with work on the GPU"


def test_no_collectives_give_no_row_and_a_sentence() -> None:
    program = Program(2)
    program.compute(100, 100)
    outcome = skew(program.results())
    assert len(outcome.frame) == 0
    assert outcome.reason.endswith("no rank has collectives")


def test_broadcasts_and_reductions_to_a_root_align_no_clock_and_make_nobody_late() -> None:
    program = Program(3)
    for _ in range(20):
        begun = program.begin_step()
        for op in ("Broadcast", "Reduce", "Gather", "Scatter", "Send", "Recv"):
            program.compute(1_000_000, 1_000_000, 2_000_000)
            program.collective(op)
        program.end_step(begun)
    outcome = skew(program.results())
    assert outcome.frame["verdict"].tolist() == ["unknown"] * 3
    assert outcome.frame["collectives"].tolist() == [0] * 3


def test_collectives_of_one_group_count_once() -> None:
    program = sequence_parallel(3, late=[1], extra=500_000)
    for rank in program.ranks:
        rank.asked += [(a, b, op, "c", 1024) for a, b, op, *_ in rank.asked if op == "AllGather"]
    results = program.results()
    assert set(results["rank_collectives"]["fused"]) == {1, 2}
    rows = skew(results).frame
    assert rows["collectives"].tolist() == [80] * 3
    assert rows["verdict"].tolist() == ["even", "straggler", "even"]


def test_a_rank_is_late_in_the_communicator_in_which_it_is() -> None:
    program = Program(4, ahead=[0, 10**9, 10**10, 10**11])
    for _ in range(30):
        begun = program.begin_step()
        for _ in range(3):
            program.collective("AllReduce", comm="pair 0", members=[0, 1])
            program.collective("AllReduce", comm="pair 1", members=[2, 3])
            program.compute(2_000_000, 2_000_000, 2_000_000, 2_300_000)
        program.end_step(begun)
    rows = skew(program.results()).frame
    assert rows["collectives"].tolist() == [90] * 4
    assert rows["verdict"].tolist() == ["even", "even", "even", "straggler"]
    assert rows["wait_ns"][2] > 25_000_000
    assert rows["wait_ns"][0] < 1_000_000


@given(st.lists(st.lists(st.integers(-1000, 1000), min_size=3, max_size=3), min_size=1, max_size=5))
def test_lateness_is_against_the_median_of_the_others(stamps: list[list[int]]) -> None:
    expected = [[row[i] - np.median(row[:i] + row[i + 1 :]) for i in range(3)] for row in stamps]
    assert later_than_others(np.array(stamps, float)).tolist() == expected


@pytest.mark.parametrize("count", [2, 4, 5, 8])
def test_lateness_of_any_number_of_ranks_equals_the_slow_way(count: int) -> None:
    stamps = np.random.default_rng(count).integers(0, 20, (50, count)).astype(float)
    expected = [[row[i] - np.median(np.delete(row, i)) for i in range(count)] for row in stamps]
    assert later_than_others(stamps).tolist() == expected


def test_aligned_clocks_agree_on_the_ends() -> None:
    program = sequence_parallel(4, late=[2], extra=500_000, ahead=[7, 10**15, -(10**15), 0])
    rows = program.results()["rank_collectives"]
    matched, _ = match_collectives(rows)
    ((_, clock),) = align_clocks(rows).items()
    for one in matched:
        end = clock.aligned(one.end)
        assert np.ptp(end, axis=1).max() <= 2 * JITTER
    assert clock.collectives == 40
