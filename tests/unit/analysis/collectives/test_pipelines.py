"""Skew of ranks that send each other messages."""

from __future__ import annotations

import pytest

from hpcprof.analysis.collectives.skew import skew, skew_summary
from tests.unit.analysis.simulated import Program, pipeline


def test_stages_with_the_same_work_are_even_though_all_wait_for_each_other() -> None:
    outcome = skew(pipeline([1_000_000] * 3, steps=12).results())
    assert outcome.reason == ""
    assert outcome.rows["verdict"].tolist() == ["even"] * 3
    assert outcome.rows["wait_ns"].min() > 12 * 1_000_000


def test_a_stage_with_more_work_is_a_straggler_by_what_it_costs() -> None:
    rows = skew(pipeline([1_000_000, 1_000_000, 1_400_000], steps=12).results()).rows
    assert rows["verdict"].tolist() == ["even", "even", "straggler"]
    # Four microbatches, forward and twice as long backward.
    assert rows["lateness_p50_ns"][2] == pytest.approx(4 * 3 * 400_000, rel=0.05)
    assert rows["times_last"][2] > rows["times_last"][0]


def test_of_two_stages_the_slower_one_is_named_also_with_clocks_apart() -> None:
    plain = pipeline([1_000_000, 2_000_000], steps=8)
    apart = pipeline([1_000_000, 2_000_000], steps=8, ahead=[0, 10**13], drift=[0, 5e-6])
    rows = [skew_summary(program.results()).rows for program in (plain, apart)]
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
            program.message(1, 0)
            program.compute_on(0, 1_000_000)
            program.compute_on(1, 1_000_000)
        # The first stage always comes to it last.
        program.collective("AllReduce")
        program.end_step(begun)
    rows = skew(program.results()).rows
    assert rows["verdict"].tolist() == ["even", "even"]


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
    rows = skew(program.results()).rows
    assert rows["verdict"].tolist() == ["even", "even", "straggler", "straggler"]


def test_stages_whose_partners_are_unknown_are_unknown_with_the_reason() -> None:
    outcome = skew(pipeline([1_000_000] * 3, named=False).results())
    assert outcome.rows["verdict"].tolist() == ["unknown"] * 3
    assert "their partners are not recorded, and it has 3 ranks" in outcome.reason
