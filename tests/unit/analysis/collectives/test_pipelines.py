"""Skew of ranks that send each other messages."""

from __future__ import annotations

import numpy as np
import pytest

from hpcprof.analysis.collectives.pair_matching import align_pairs
from hpcprof.analysis.collectives.waiting_balance import partner_waits, rank_intervals
from tests.unit.analysis.over_all_ranks import match_pairs, skew, skew_summary
from tests.unit.analysis.simulated import Program, pipeline


def test_stages_with_the_same_work_are_even_though_all_wait_for_each_other() -> None:
    outcome = skew(pipeline([1_000_000] * 3, steps=12).results())
    assert outcome.reason == ""
    assert outcome.frame["verdict"].tolist() == ["even"] * 3
    assert outcome.frame["wait_ns"].min() > 12 * 1_000_000


def test_a_stage_with_more_work_is_a_straggler_by_what_it_costs() -> None:
    rows = skew(pipeline([1_000_000, 1_000_000, 1_400_000], steps=12).results()).frame
    assert rows["verdict"].tolist() == ["even", "even", "straggler"]
    # Four microbatches, forward and twice as long backward.
    assert rows["lateness_p50_ns"][2] == pytest.approx(4 * 3 * 400_000, rel=0.05)
    assert rows["times_last"][2] > rows["times_last"][0]


def test_of_two_stages_the_slower_one_is_named_also_with_clocks_apart() -> None:
    plain = pipeline([1_000_000, 2_000_000], steps=8)
    apart = pipeline([1_000_000, 2_000_000], steps=8, ahead=[0, 10**13], drift=[0, 5e-6])
    rows = [skew_summary(program.results()).frame for program in (plain, apart)]
    for table in rows:
        assert table["verdict"].tolist() == ["even", "straggler"]
        assert table["steps"].tolist() == [7, 7]
    assert rows[1]["lateness_p50_ns"][1] == pytest.approx(rows[0]["lateness_p50_ns"][1], rel=0.02)


def test_a_collective_of_the_stages_at_the_end_of_a_step_makes_no_stage_late() -> None:
    program = Program(2)
    for _ in range(12):
        begun = program.begin_step()
        for _ in range(3):
            program.compute_on(0, 1_000_000)
            program.message(0, 1)
            program.compute_on(1, 1_000_000)
        for _ in range(3):
            program.compute_on(1, 1_000_000)
            program.message(1, 0)
            program.compute_on(0, 1_000_000)
        # The first stage comes to it a backward pass later than the last one.
        program.collective("AllReduce")
        program.end_step(begun)
    results = program.results()
    rows = skew(results).frame
    assert rows["verdict"].tolist() == ["even", "even"]
    of_collectives = results["rank_collectives"]["op"] == "AllReduce"
    alone = results | {"rank_collectives": results["rank_collectives"][of_collectives]}
    assert skew(alone).frame["verdict"].tolist() == ["straggler", "even"]


def test_a_send_to_a_buffer_does_not_wait_for_a_receive_that_begins_later() -> None:
    program = Program(2)
    for _ in range(6):
        begun = program.begin_step()
        program.compute(100_000, 2_000_000)
        program.message(0, 1)
        program.compute(100_000, 2_000_000)
        program.message(1, 0)
        program.end_step(begun)
    to, back = pairs = match_pairs(program.results()["rank_collectives"])[0]
    (clock,) = align_pairs(pairs).values()
    # Rank 0 waits for the second message of each step, and rank 1 for none.
    assert partner_waits(to, clock).max() == 0
    assert partner_waits(back, clock).min(axis=0).tolist() == [0, pytest.approx(3_780_000, rel=0.01)]


def test_the_correlation_of_steps_is_that_of_the_lateness_and_not_of_costs_that_are_mostly_none() -> None:
    late = np.random.default_rng(1).standard_normal((8, 100))
    for step in range(1, 100):
        late[:, step] += 0.8 * late[:, step - 1]
    costs = late * (np.arange(8) == 0)[:, None]
    (low, high), (short_low, short_high) = (rank_intervals(costs, one, 8) for one in (late, costs))
    assert high[0] - low[0] > 1.2 * (short_high[0] - short_low[0])


def test_a_replica_of_a_pipeline_that_is_slower_comes_late_to_the_collectives_of_both() -> None:
    program = Program(4)
    for _ in range(12):
        begun = program.begin_step()
        for low, time in ((0, 1_000_000), (2, 1_500_000)):
            for _ in range(3):
                program.compute_on(low, time)
                program.message(low, low + 1)
                program.compute_on(low + 1, time)
                program.message(low + 1, low)
        for stage in (0, 1):
            program.collective("AllReduce", comm=f"stage {stage}", members=[stage, stage + 2])
        program.end_step(begun)
    rows = skew(program.results()).frame
    assert rows["verdict"].tolist() == ["even", "even", "straggler", "straggler"]


def test_stages_whose_partners_are_unknown_are_unknown_with_the_reason() -> None:
    outcome = skew(pipeline([1_000_000] * 3, named=False).results())
    assert outcome.frame["verdict"].tolist() == ["unknown"] * 3
    assert "their partners are not recorded, and it has 3 ranks" in outcome.reason
