"""Metrics that move with long steps, ranks that differ, and what stays chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcprof.analysis.telemetry.coincidences import (
    RunSteps,
    captured_steps,
    coincidences,
    mean_in,
    mean_of_samples,
    noted_steps,
    single_steps,
)
from hpcprof.profiles.readers.telemetry import NodeTelemetry, RankPlace, Series
from hpcprof.runs.live_steps import StepLine

BEGIN, STEPS = 1_000_000.0, 120
LONG = np.arange(4, STEPS, 5)


def steps(long: Any = LONG, excess_ns: int = 10**9) -> RunSteps:
    """Return steps of a second, some of which take two."""
    wall = np.full(STEPS, 10**9) + np.random.default_rng(0).integers(0, 10**7, STEPS)
    wall[long] += excess_ns
    edges = BEGIN + np.append(0.0, np.cumsum(wall / 1e9))
    return RunSteps(edges, np.arange(STEPS), np.ones(STEPS, np.int64), wall, wall)


def sampled(of: RunSteps, in_long: float, usual: float, noise: float, seed: int = 1) -> Series:
    """Return a value each 0.1 s that is another one in long steps."""
    times = np.arange(of.edges[0] - 1, of.edges[-1] + 1, 0.1)
    at = np.clip(np.searchsorted(of.edges, times) - 1, 0, STEPS - 1)
    values = np.where(of.wall[at] > 1.5e9, in_long, usual)
    return Series(times, values + noise * np.random.default_rng(seed).standard_normal(len(times)))


def counted(series: Series) -> Series:
    return Series(series.times, np.cumsum(np.maximum(series.values, 0.0)))


def node(series: dict[tuple[str, str], Series], ranks: int = 1) -> NodeTelemetry:
    places = {rank: RankPlace((rank,), (rank,)) for rank in range(ranks)}
    return NodeTelemetry("n1", series, places, ("A GPU",) * ranks)


def claimed(of: RunSteps, series: dict[tuple[str, str], Series], ranks: int = 1) -> set[tuple[str, str, str]]:
    rows = coincidences([node(series, ranks)], of)
    return {(row["subject"], row["device"], row["metric"]) for row in rows if row["beyond_chance"]}


def test_what_moves_with_long_steps_is_told_from_what_does_not() -> None:
    of = steps()
    series = {
        ("rank0", "written_bytes"): counted(sampled(of, 2e7, 1e3, 10.0)),
        ("gpu0", "temperature_c"): sampled(of, 60.0, 60.0, 5.0),
        ("node", "io_pressure_s"): counted(sampled(of, 0.03, 0.03, 0.01)),
    }
    assert claimed(of, series) == {("spikes", "rank0", "written_bytes")}
    (row,) = (row for row in coincidences([node(series)], of) if row["beyond_chance"])
    assert row["then"] == pytest.approx(2e8, rel=0.1) and row["usual"] < 1e6 and row["unit"] == "bytes/s"
    assert (row["rank"], row["first_step"], row["last_step"]) == (0, 0, STEPS - 1)
    # Less of it is no reason, and a clock is one only where it is lower.
    fewer = {("rank0", "written_bytes"): counted(sampled(of, 1e3, 2e7, 10.0))}
    assert claimed(of, fewer) == set()
    assert claimed(of, {("gpu0", "sm_mhz"): sampled(of, 1410.0, 1755.0, 5.0)}) == {
        ("spikes", "gpu0", "sm_mhz")
    }
    assert claimed(of, {("gpu0", "sm_mhz"): sampled(of, 1755.0, 1410.0, 5.0)}) == set()


def test_a_single_long_step_is_no_proof_and_steady_steps_have_no_rows() -> None:
    one = steps(np.array([60]))
    rows = list(coincidences([node({("gpu0", "temperature_c"): sampled(one, 80.0, 60.0, 1.0)})], one))
    assert [(row["metric"], row["beyond_chance"]) for row in rows] == [("temperature_c", 0)]
    even = steps(np.empty(0, np.int64))
    assert list(coincidences([node({("gpu0", "temperature_c"): sampled(even, 0.0, 60.0, 5.0)})], even)) == []


def test_what_rises_during_the_run_proves_nothing_about_long_steps() -> None:
    of = steps(np.sort(np.random.default_rng(3).choice(np.arange(70, STEPS), 15, replace=False)))
    times = np.arange(of.edges[0], of.edges[-1], 0.1)
    assert claimed(of, {("gpu0", "temperature_c"): Series(times, 40.0 + times - times[0])}) == set()


def test_levels_that_change_together_again_and_again_are_named() -> None:
    slow = (np.arange(STEPS) // 6) % 2 == 1
    of = steps(np.flatnonzero(slow), 10**8)
    times = np.arange(of.edges[0], of.edges[-1], 0.1)
    at = np.clip(np.searchsorted(of.edges, times) - 1, 0, STEPS - 1)
    clock = np.asarray(np.random.default_rng(0).normal(1755.0 - 345.0 * slow[at]), np.float64)
    found = {one for one in claimed(of, {("gpu0", "sm_mhz"): Series(times, clock)}) if one[0] != "rank"}
    assert found <= {("drift", "gpu0", "sm_mhz"), ("spikes", "gpu0", "sm_mhz")}


def test_a_rank_whose_clock_is_lower_than_that_of_the_others_is_named_with_its_reason() -> None:
    of = steps(np.empty(0, np.int64))
    series = {(f"gpu{gpu}", "sm_mhz"): sampled(of, 0, 1755.0 + gpu, 8.0, gpu) for gpu in range(4)}
    assert claimed(of, series, 4) == set()
    series["gpu2", "sm_mhz"] = sampled(of, 0, 1410.0, 8.0, 9)
    masks = {(f"gpu{gpu}", "throttle_reasons"): sampled(of, 0, 4.0 * (gpu == 2), 0.0) for gpu in range(4)}
    assert claimed(of, series | masks, 4) == {("rank", "gpu2", "sm_mhz"), ("rank", "gpu2", "power cap")}
    rows = [row for row in coincidences([node(series, 4)], of) if row["beyond_chance"]]
    assert [(row["rank"], round(row["then"]), round(row["usual"])) for row in rows] == [(2, 1410, 1756)]


def test_others_on_the_core_of_one_rank_are_named() -> None:
    of = steps(np.empty(0, np.int64))
    times = np.arange(of.edges[0], of.edges[-1], 1.0)
    series = {(f"rank{rank}", "cpu_s"): Series(times, 0.5 * times) for rank in range(2)}
    series |= {(f"cpu{core}", "busy_s"): Series(times, (0.5 + 0.4 * core) * times) for core in range(2)}
    assert claimed(of, series, 2) == {("rank", "rank1", "others_on_cores")}


@pytest.mark.parametrize("pinned", [True, False])
def test_a_rank_waits_for_its_core_as_long_as_others_use_it(pinned: bool) -> None:
    of = steps(long=[])

    def rate(value: float, seed: int) -> Series:
        return counted(sampled(of, 0.0, value / 10, 0.001, seed))

    def rows(others: float, waits: float, work: float = 0.5, own: float = 0.0) -> list[dict[str, Any]]:
        used = (0.5, work)
        series = {(f"cpu{core}", "busy_s"): rate(used[core] + others * (core == 0), core) for core in (0, 1)}
        series |= {(f"rank{rank}", "cpu_s"): rate(used[rank], 5 + rank) for rank in (0, 1)}
        series |= {
            (f"rank{rank}", "cpu_wait_s"): rate(own + waits * (rank == 0), 9 + rank) for rank in (0, 1)
        }
        places = {rank: RankPlace((rank,) if pinned else (0, 1)) for rank in (0, 1)}
        found = coincidences([NodeTelemetry("n1", series, places)], of)
        return [row for row in found if row["subject"] == "cores"]

    (row,) = rows(others=0.5, waits=0.4)
    assert row["p_value"] is None
    assert (row["rank"], row["metric"], row["unit"], row["beyond_chance"]) == (
        0,
        "cpu_wait_s",
        "%",
        1,
    )
    assert row["then"] == pytest.approx(40.0, abs=2.0) and row["usual"] == 0.0
    # What the other rank computes remains, unless it may poll.
    assert [round(one["then"] / 5) for one in rows(others=0.5, waits=0.4, work=0.7)] == [6]
    assert [round(one["then"] / 5) for one in rows(others=0.5, waits=0.4, work=0.95)] == [8]
    # What the other rank waits too, on a core that nobody else uses, is for its own threads.
    told = [round(one["then"]) for one in rows(others=0.5, waits=0.2, own=0.1)]
    assert told == pytest.approx([20] if pinned else [30, 10], abs=2)
    # Own threads that wait for each other are no strangers, and neither is what nobody waits for.
    assert rows(others=0.0, waits=0.4) == []
    assert rows(others=0.5, waits=0.0) == []


def test_a_rank_that_pauses_within_a_second_is_no_stranger_on_its_core() -> None:
    of, ends = steps([]), np.arange(0.0, STEPS + 2, 0.1) + BEGIN - 1
    own: Any = np.cumsum(np.where(np.arange(len(ends)) % 17 < 10, 0.1, 0.0))
    series = {
        ("cpu0", "busy_s"): Series(ends[::10], own[::10]),
        ("rank0", "cpu_s"): Series(ends, own),
        ("rank0", "cpu_wait_s"): Series(ends[::10], 0.3 * own[::10]),
    }
    assert [row for row in coincidences([node(series)], of) if row["subject"] == "cores"] == []


@pytest.mark.parametrize("waits", [True, False])
def test_long_steps_that_end_each_line_are_told_from_the_usual_ones_beside_them(waits: bool) -> None:
    """A line has four steps of 0.1 s, then one of a second."""
    edges = BEGIN + 1.4 * np.arange(STEPS + 1.0)
    numbers = (5 * np.arange(1, STEPS + 1), *(np.full(STEPS, one) for one in (5, 10**8, 10**9)))
    times = np.arange(BEGIN - 1, edges[-1] + 1, 0.1)
    blocked = (times - BEGIN) % 1.4 > 0.4 if waits else np.random.default_rng(3).random(len(times)) < 0.3
    rising = Series(times, times - BEGIN)
    series = {
        ("rank0", "blocked_pct"): Series(times, np.where(blocked, 100.0, 0.0)),
        ("gpu0", "temperature_c"): rising,
    }
    found = claimed(RunSteps(edges, *numbers), series)
    assert {row for row in found if row[0] == "spikes"} == (
        {("spikes", "rank0", "blocked_pct")} if waits else set()
    )


@pytest.mark.parametrize("apart", [0.1, 0.37, 0.7])
def test_a_state_says_nothing_of_the_steps_between_two_samples(apart: float) -> None:
    """Of five steps one waits for a disk; a sample a step or fewer name it by its share of the time."""
    wall = np.tile([50, 50, 50, 50, 250], 60) * 10**6
    units = np.tile([4, 1], 60)
    times_of = np.tile([50, 250], 60) * 10**6
    edges = BEGIN + np.append(0.0, np.cumsum(units * times_of) / 1e9)
    of = RunSteps(edges, np.cumsum(units) - 1, units, times_of, times_of)
    times = np.arange(BEGIN - 1, edges[-1] + 1, apart)
    step = np.clip(np.searchsorted(BEGIN + np.cumsum(wall) / 1e9, times), 0, len(wall) - 1)
    state = Series(times, np.where(wall[step] > 10**8, 100.0, 0.0))
    rows = coincidences([node({("rank0", "blocked_pct"): state})], of)
    (row,) = [row for row in rows if row["subject"] == "spikes"]
    assert row["beyond_chance"] and (row["usual"], row["then"]) == (0.0, 100.0)


def test_waiting_for_files_in_all_steps_is_named_and_a_few_samples_are_not() -> None:
    of = steps(np.empty(0, np.int64))
    times = np.arange(of.edges[0], of.edges[-1], 0.1)
    busy = Series(times, np.tile([100.0, 0.0, 0.0, 0.0], len(times))[: len(times)])
    assert claimed(of, {("rank0", "blocked_pct"): busy}) == {("io", "rank0", "blocked_pct")}
    seldom = Series(times, np.append(np.full(4, 100.0), np.zeros(len(times) - 4)))
    assert claimed(of, {("rank0", "blocked_pct"): seldom}) == set()


@pytest.mark.parametrize(
    ("refaults", "stalled", "memory", "files"),
    [(50.0, 0.0, 20.0, 5.0), (5.0, 0.0, None, 23.0), (0.0, 0.4, 40.0, 25.0), (0.0, 0.02, None, 25.0)],
)
def test_waiting_for_memory_is_told_from_waiting_for_files(
    refaults: float, stalled: float, memory: float | None, files: float
) -> None:
    """A quarter of the samples waits, four of five of these for pages."""
    of = steps(np.empty(0, np.int64))
    times = np.arange(of.edges[0] - 2, of.edges[-1] + 2, 0.1)
    place = np.arange(len(times))
    blocked, known = place % 4 == 0, place % 8 != 0
    paging = blocked & (place % 20 != 4)
    counters = {("node", "refaults"): refaults, ("rank0", "major_faults"): 50.0}
    series = {name: Series(times, rate * times) for name, rate in counters.items()}
    series["rank0", "memory_stall_s"] = Series(times, stalled * times)
    series["rank0", "blocked_pct"] = Series(times, 100.0 * blocked)
    series["rank0", "paging_pct"] = Series(times[known], 100.0 * paging[known])
    rows = {row["subject"]: row for row in coincidences([node(series)], of) if row["rank"] == 0}
    assert {name: round(row["then"]) for name, row in rows.items()} == pytest.approx(
        {"io": files} | ({"memory": memory} if memory else {}), abs=1
    )
    # The kernel's CPU time for it is what this rank has more of than the other, as far as so many pages need.
    for more, share in ((0.005, 0.5), (0.4, 1.0)):
        system = {f"rank{rank}": 0.4 + more * (rank == 0) for rank in (0, 1)}
        series |= {(name, "system_s"): Series(times, rate * times) for name, rate in system.items()}
        rows = {row["subject"]: row for row in coincidences([node(series, 2)], of) if row["rank"] == 0}
        if memory:
            assert rows["memory"]["then"] == pytest.approx(memory + share * (refaults > 0), abs=0.1)
    # Where nobody could say what they wait for, what the whole job waits for memory is none for files.
    del series["rank0", "paging_pct"]
    rows = {row["subject"]: row for row in coincidences([node(series)], of) if row["rank"] == 0}
    assert rows.get("io", {"then": 0})["then"] == pytest.approx(max(0.0, 25.0 - 100 * stalled), abs=1)


def test_nothing_is_interpolated_but_the_growth_of_counters() -> None:
    edges = np.array([0.0, 1.5, 3.0])
    held = Series(np.array([0.0, 1.0, 2.0, 3.0]), np.array([9.0, 2.0, 4.0, 6.0]))
    assert mean_in(held, "gauge", edges).tolist() == pytest.approx([(2 + 2) / 1.5, (2 + 6) / 1.5])
    assert np.isnan(mean_in(held, "gauge", np.array([3.0, 4.0]))).all()
    count = Series(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 2.0, 1.0, 7.0]))
    state = mean_of_samples(held, np.array([0.0, 0.5, 2.0, 4.0]))
    assert np.isnan(state[0]) and state[1:].tolist() == [3.0, 6.0]
    # What it grew by while it began anew is unknown.
    assert mean_in(count, "counter", np.array([0.0, 1.0, 3.0])).tolist() == [2.0, 6.0]


def test_steps_come_from_lines_and_from_profiles() -> None:
    lines = [StepLine(0, 10.0, 1, 10**9, 10**9), StepLine(2, 13.0, 2, 2 * 10**9, 2 * 10**9)]
    noted = noted_steps(lines)
    assert noted is not None and noted.edges.tolist() == [10.0, 13.0]
    single = single_steps(noted)
    assert single.steps.tolist() == [1, 2] and single.wall.tolist() == [10**9, 2 * 10**9]
    assert noted_steps(lines[:1]) is None
    # Of a line with long steps, these are units of their own.
    long = StepLine(10, 13.0, 10, 10**8, 9 * 10**8, long=((3, 9 * 10**8), (8, 7 * 10**8)))
    noted = noted_steps([StepLine(0, 10.6, 1, 10**9, 10**9), long])
    assert noted is not None
    assert noted.last.tolist() == [2, 3, 7, 8, 10] and noted.steps.tolist() == [2, 1, 4, 1, 2]
    assert noted.edges.tolist() == pytest.approx([10.6, 10.8, 11.7, 12.1, 12.8, 13.0])
    assert (
        single_steps(noted).wall.tolist()
        == [10**8] * 2 + [9 * 10**8] + [10**8] * 4 + [7 * 10**8] + [10**8] * 2
    )
    wall = np.array([10**9, 10**9, 3 * 10**9])
    late = (100.5, np.array([4, 5, 7]), wall)
    both = captured_steps({0: (100.0, np.array([3, 4, 5]), wall), 1: late})
    assert both is not None and both.last.tolist() == [4, 5] and both.wall.tolist() == [10**9, 3 * 10**9]
    assert both.edges.tolist() == [101.0, 102.0, 105.0]
    assert captured_steps({}) is None


@pytest.mark.parametrize("steps_of_run", [500, 4000])
def test_frequent_long_steps_are_told_from_the_others_in_long_runs_too(steps_of_run: int) -> None:
    """Each fifth step of 0.05 s takes 0.25 s, in which the rank waits; a line has the steps of a second."""
    number = np.arange(steps_of_run)
    ends = BEGIN + np.cumsum(np.where(number % 5 == 0, 0.25, 0.05))
    lines = [
        StepLine(
            int(last),
            float(ends[last]),
            10,
            5 * 10**7,
            25 * 10**7,
            long=tuple((int(step), 25 * 10**7) for step in (last - 9, last - 4)),
        )
        for last in number[9::10]
    ]
    times = np.arange(BEGIN, ends[-1], 0.05)
    waits = np.isin(np.searchsorted(ends, times) % 5, [0])
    of_run = noted_steps(lines)
    assert of_run is not None
    found = claimed(of_run, {("rank0", "blocked_pct"): Series(times, np.where(waits, 100.0, 0.0))})
    assert ("spikes", "rank0", "blocked_pct") in found
