"""The slowdown of kernels while communication runs, against runs without communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.framework.outcome import analyze_across
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.slowdown.against_baseline import CONTROL, slowdown_pairs
from hpcprof.analysis.slowdown.by_overlap import ALL_FAMILIES, slowdown_by_overlap
from hpcprof.analysis.slowdown.matched_times import KernelNumbering, find_occurrences
from hpcprof.profiles.timeline import Timeline
from tests.unit.analysis.several import run
from tests.unit.analysis.timelines import COMM, COMP, timeline

STEP = 100_000
# Every kernel of a step has the same name, grid and block; they differ in phase and occurrence.
FORWARD = (2000, 8000)
BACKWARD = (1000, 5000, 3000)


def arm(
    slow: float = 1.0, clock: float = 1.0, communicates: bool = True, steps: int = 30, seed: int = 1
) -> Timeline:
    """Build steps whose backward kernels, but the first, communication covers and makes slower."""
    random = np.random.default_rng(seed)
    operations: list[tuple[int, ...]] = []
    ranges: list[tuple[int, int, str]] = []
    for step in range(steps):
        at = STEP * step
        ranges += [(at, at + 90_000, "iteration")]
        ranges += [(at, at + 40_000, "forward"), (at + 40_000, at + 90_000, "backward")]
        for phase, times in ((at, FORWARD), (at + 40_000, BACKWARD)):
            for i, usual in enumerate(times):
                beside = communicates and times is BACKWARD and i > 0
                length = round(usual * clock * (slow if beside else 1.0) * random.uniform(0.97, 1.03))
                start = phase + 15_000 * i + 10
                operations.append((start, start + length, COMP, start - 5))
                if beside:
                    operations.append((start, start + length, COMM, start - 5))
    return timeline(operations, ranges)


def runs(*timelines: Timeline) -> list[RunData]:
    return [run(f"run{i}", timelines={0: one}) for i, one in enumerate(timelines)]


def rows(a: list[RunData], b: list[RunData]) -> dict[str, dict[Hashable, Any]]:
    table = analyze_across(ACROSS_RUNS["slowdown_pairs"], a, b).frame
    return {row["name"]: row for row in table.to_dict("records")}


@pytest.mark.parametrize("factor", [1.0, 1.3, 2.0])
def test_a_planted_slowdown_is_found_within_its_interval(factor: float) -> None:
    found = rows(runs(arm(factor)), runs(arm(communicates=False, seed=2)))
    assert list(found) == ["(total)", CONTROL, "kernel"]
    for name in ("(total)", "kernel"):
        assert found[name]["ci_low"] <= factor <= found[name]["ci_high"]
        assert found[name]["ci_high"] - found[name]["ci_low"] < 0.05 * factor
        assert (found[name]["overlapped_n"], found[name]["alone_n"]) == (60, 60)
    assert (found[CONTROL]["overlapped_n"], found[CONTROL]["alone_n"]) == (90, 90)
    assert found[CONTROL]["ci_low"] <= 1 <= found[CONTROL]["ci_high"]


@pytest.mark.parametrize("repeats", [1, 3])
def test_identical_runs_give_an_interval_that_contains_1(repeats: int) -> None:
    same = [arm(1.5)] * repeats
    for row in rows(runs(*same), runs(*same)).values():
        assert row["ci_low"] <= 1 <= row["ci_high"]
        assert row["slowdown"] == pytest.approx(1, abs=0.01)


def test_runs_that_differ_only_by_chance_give_an_interval_that_contains_1() -> None:
    alike = [runs(*(arm(seed=seed + side) for seed in (1, 2, 3))) for side in (10, 20)]
    for row in rows(*alike).values():
        assert row["ci_low"] <= 1 <= row["ci_high"]


def test_the_control_takes_the_clock_out_of_the_slowdown() -> None:
    found = rows(runs(arm(2.0, clock=1.1)), runs(arm(communicates=False, seed=2)))
    assert found[CONTROL]["slowdown"] == pytest.approx(1.1, abs=0.01)
    assert found["(total)"]["ci_low"] <= 2.0 <= found["(total)"]["ci_high"]
    row = found["kernel"]
    measured = row["overlapped_med_ns"] / row["alone_med_ns"]
    assert measured == pytest.approx(2.2, abs=0.03)
    assert row["slowdown"] == pytest.approx(measured / found[CONTROL]["slowdown"], abs=1e-3)


def test_with_repeats_the_unit_is_the_run() -> None:
    # The runs differ by much more than their steps do.
    a = runs(*(arm(factor, seed=i) for i, factor in enumerate((1.2, 1.5, 1.8))))
    b = runs(*(arm(communicates=False, seed=i) for i in (5, 6, 7)))
    row = rows(a, b)["(total)"]
    assert row["ci_low"] < 1.2
    assert row["ci_high"] > 1.8
    assert row["slowdown"] == pytest.approx((1.2 * 1.5 * 1.8) ** (1 / 3), abs=0.02)
    assert "intervals hold for these runs only" not in slowdown_pairs(a, b).reason
    assert "intervals hold for these runs only" in slowdown_pairs(a[:1], b).reason


def test_few_steps_of_one_run_give_a_ratio_without_an_interval() -> None:
    row = rows(runs(arm(1.5, steps=4)), runs(arm(communicates=False, steps=4)))["(total)"]
    assert row["slowdown"] == pytest.approx(1.5, abs=0.05)
    assert (row["ci_low"], row["ci_high"]) == (None, None)


def test_every_rank_is_compared_with_a_run_of_one_rank() -> None:
    a = run("a", timelines={0: arm(1.5), 3: arm(1.5)})
    alone = run("b", timelines={0: arm(communicates=False)})
    assert set(slowdown_pairs([a], [alone]).rows["rank"]) == {0, 3}
    two = run("b", timelines={0: arm(communicates=False), 1: arm(communicates=False)})
    outcome = slowdown_pairs([a], [two])
    assert set(outcome.rows["rank"]) == {0}
    assert "not in the baseline runs: rank 3" in outcome.reason


def test_what_has_no_counterpart_is_counted() -> None:
    without = arm(communicates=False)
    half = without.kernels.take(without.kernels.start % STEP < 65_000)
    shorter = Timeline(without.origin, without.strings, half, without.memops, without.calls, without.ranges)
    outcome = slowdown_pairs(runs(arm(1.5)), runs(shorter))
    assert "30 of 60 overlapped launches have no counterpart" in outcome.reason
    assert outcome.rows["overlapped_n"].tolist()[0] == 30


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (
            arm(communicates=False),
            arm(communicates=False),
            "communication covers no compute kernel inside a step to 90 % or more",
        ),
        (timeline([(0, 10, COMP, 0)]), arm(), "the runs have no kernel that a step launched"),
        (arm(), timeline([(0, 10, COMP, 0)]), "the baseline runs have no kernel that a step launched"),
        (arm(steps=2), arm(communicates=False, steps=2), "no kernel has 5 overlapped launches"),
    ],
)
def test_what_cannot_be_compared_gives_no_row_and_a_reason(a: Timeline, b: Timeline, reason: str) -> None:
    outcome = slowdown_pairs(runs(a), runs(b))
    assert len(outcome.rows) == 0
    assert reason in outcome.reason


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(1, 40)), max_size=30))
def test_occurrences_are_counted_as_one_by_one(kernels: list[tuple[int, int, int]]) -> None:
    operations, ranges = [], []
    for step in range(4):
        at = 100_000 * step
        ranges += [(at, at + 90_000, "iteration"), (at, at + 40_000, "forward")]
    # A kernel of an odd phase is launched after the phase, still in the step.
    moments = sorted({(100_000 * step + 50_000 * phase + 100 * at, phase) for step, phase, at in kernels})
    operations = [(moment, moment + 50, COMP, moment) for moment, _ in moments]
    seen: Counter[tuple[int, int]] = Counter()
    expected = []
    for moment, phase in moments:
        expected.append(seen[moment // 100_000, phase])
        seen[moment // 100_000, phase] += 1
    numbers = KernelNumbering()
    found = find_occurrences(timeline(operations, ranges), numbers)
    assert found.key[:, 2].tolist() == expected
    assert (found.key[:, 1] == numbers.phases.get("forward", 0)).tolist() == [not p for _, p in moments]


def test_the_overlap_share_is_of_the_time_of_all_launches_of_a_kernel() -> None:
    a = arm()
    found = rows(runs(a), runs(arm(communicates=False, seed=2)))
    kernels = a.kernels.take(a.kernels.category == COMP)
    times = kernels.end - kernels.start
    # The three longer ones of each backward phase but the first: occurrences 3 and 4 of a step.
    beside = sum(int(time) for i, time in enumerate(times) if i % 5 in (3, 4))
    for name in ("kernel", "(total)"):
        assert found[name]["overlap_pct"] == pytest.approx(100 * beside / int(times.sum()), abs=0.005)
    assert found[CONTROL]["overlap_pct"] == 0


def partly(share: float, slow: float, seed: int) -> Timeline:
    """Build steps with a kernel alone and one of which communication covers a share, `slow` times as long."""
    random = np.random.default_rng(seed)
    operations: list[tuple[int, ...]] = []
    ranges = []
    for step in range(30):
        at = STEP * step
        ranges.append((at, at + 90_000, "iteration"))
        for i, factor in enumerate((1.0, slow)):
            start, length = at + 30_000 * i, round(10_000 * factor * random.uniform(0.99, 1.01))
            operations.append((start, start + length, COMP, start))
            if i and share:
                operations.append((start, start + round(share * length), COMM, start))
    return timeline(operations, ranges)


@pytest.mark.parametrize(
    ("share", "covered"),
    [(0.2, "0-30 %"), (0.45, "30-60 %"), (0.8, "60-90 %"), (0.95, ">= 90 %"), (1, ">= 90 %")],
)
def test_a_planted_slowdown_is_found_at_the_share_that_communication_covers(
    share: float, covered: str
) -> None:
    outcome = analyze_across(
        ACROSS_RUNS["slowdown_by_overlap"], runs(partly(share, 1.5, 1)), runs(partly(0, 1.0, 2))
    )
    found = {(row["family"], row["covered"]): row for row in outcome.frame.to_dict("records")}
    assert set(found) == {(family, group) for family in (ALL_FAMILIES, "other") for group in ("0 %", covered)}
    for family in (ALL_FAMILIES, "other"):
        row = found[family, covered]
        assert row["ci_low"] <= 1.5 <= row["ci_high"] < 1.52
        assert row["overlap_pct"] == pytest.approx(100 * share, abs=0.05)
        assert (row["overlapped_n"], row["alone_n"]) == (30, 30)
        assert found[family, "0 %"]["ci_low"] <= 1 <= found[family, "0 %"]["ci_high"]
        assert found[family, "0 %"]["overlap_pct"] == 0


def test_without_communication_there_is_no_slowdown_by_overlap() -> None:
    quiet = runs(partly(0, 1.0, 1))
    assert "has 5 launches that communication overlaps" in slowdown_by_overlap(quiet, quiet).reason


def test_without_a_control_the_slowdown_by_overlap_is_not_corrected_and_says_so() -> None:
    def covered(communicates: bool) -> Timeline:
        operations: list[tuple[int, ...]] = []
        for at in range(0, 10 * STEP, STEP):
            operations.append((at + 10, at + 110, COMP, at))
            operations += [(at + 10, at + 110, COMM, at)] * communicates
        return timeline(operations, [(at, at + 900, "iteration") for at in range(0, 10 * STEP, STEP)])

    outcome = slowdown_by_overlap(runs(covered(True)), runs(covered(False)))
    assert "no control on rank 0: not corrected for clocks" in outcome.reason
    assert set(outcome.rows["covered"]) == {">= 90 %"}
    assert "no control" not in slowdown_by_overlap(runs(partly(1, 1.5, 1)), runs(partly(0, 1.0, 2))).reason
