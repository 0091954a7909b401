"""The data of the charts of a run's page."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.analysis.steps.step_set import StepRule, StepSet
from hpcprof.report.page.chart_data import chart_data
from tests.data.parallel_program import Program
from tests.data.simulated_account import contents_of, simulated_account
from tests.unit.report.test_facts import contents, result_of


def table(names: str, *rows: tuple[Any, ...]) -> AnalysisTable:
    keys = names.split()
    return AnalysisTable({key: [row[place] for row in rows] for place, key in enumerate(keys)})


def chart(kind: str, **tables: AnalysisTable) -> dict[str, Any]:
    """Return the chart with this kind or id."""
    (found,) = [one for one in chart_data(contents_of(tables)) if kind in (one["kind"], one.get("id"))]
    return found


def test_the_chart_of_the_modes_shows_each_against_the_bound() -> None:
    result = result_of("h200x4-8192-12288-49152")
    (made,) = chart_data(contents(result))
    assert made["title"] == (
        "Step time by mode: copy-engine is the fastest with 7.435 ms, 100.3 % of the bound"
    )
    assert made["modes"] == ["serial", "chunked", "symmetric", "copy-engine"]
    assert [round(value / 1e6, 3) for value in made["p50_ns"]] == [8.574, 8.32, 7.868, 7.435]
    assert made["bound_ns"] == result.bound_ns
    assert "n = 60 steps per mode" in made["note"]


def test_every_point_of_a_sweep_has_a_chart() -> None:
    titles = [made["title"] for made in chart_data(contents(result_of("h200x4-sweep-8192-32768")))]
    assert [title.partition(":")[0] for title in titles] == [
        f"Step time by mode, sequence-length={length}" for length in (8192, 16384, 4096)
    ]


def test_a_slow_step_is_named_with_its_rank() -> None:
    walls = [(rank, step, 5_000_000 + 1000 * rank) for step in range(20) for rank in range(4)]
    walls[4 * 7 + 2] = (2, 7, 9_000_000)
    made = chart("steps", step_times=table("rank step wall_ns", *walls))
    assert made["title"] == "Step time: step 7 takes 9.000 ms, 80 % more than the median of 5.003 ms"
    assert made["outliers"] == [{"step": 7, "wall_ns": 9_000_000, "rank": 2}]
    assert (made["min_ns"][7], made["p50_ns"][7], made["max_ns"][7]) == (5_000_000, 5_002_000, 9_000_000)


@pytest.mark.parametrize(("steps", "ranks", "noise"), [(3, 1, 0.1), (5, 1, 0.1), (10, 8, 0.05)])
def test_where_all_steps_are_alike_a_page_seldom_names_one(steps: int, ranks: int, noise: float) -> None:
    random = Random(1)
    named = 0
    for _ in range(100):
        walls = [
            (rank, step, round(5e6 * math.exp(random.gauss(0, noise))))
            for step in range(steps)
            for rank in range(ranks)
        ]
        named += bool(chart("steps", step_times=table("rank step wall_ns", *walls))["outliers"])
    assert named <= 5


def test_points_for_thousands_of_steps_keep_the_extremes() -> None:
    walls = [(0, step, 9_000_000 if step == 4321 else 5_000_000) for step in range(5_000)]
    made = chart("steps", step_times=table("rank step wall_ns", *walls))
    assert len(made["step"]) == 1_000
    assert max(made["max_ns"]) == 9_000_000 and "Each point stands for 5 steps" in made["note"]


@pytest.mark.parametrize("ranks", [4, 64])
def test_the_late_rank_is_the_one_that_works_longest_though_it_waits_least(ranks: int) -> None:
    made = chart("account", **simulated_account(Program(ranks, 600, slow={3: 6.0})))
    assert made["title"].startswith("Time of a step by rank: rank 3 works 5.9")
    assert "A late rank waits least" in made["note"]
    shown = {row["rank"]: dict(row["parts"]) for row in made["rows"]}
    assert len(shown) == min(ranks, 11)
    assert shown[3]["waiting for peers"] == min(p["waiting for peers"] for p in shown.values())
    # What a rank does by itself comes first, so that the bars compare it.
    assert [name for name, _ in made["rows"][0]["parts"]] == [
        *("compute", "copies", "idle", "exposed communication", "waiting for peers")
    ]


def test_ranks_that_work_alike_are_said_to() -> None:
    made = chart("account", **simulated_account(Program(8, 600)))
    assert made["title"] == "Time of a step by rank: the ranks work equally long"


def test_the_account_of_ranks_without_gpus_has_no_words_about_them() -> None:
    columns = "rank step wall_ns compute_ns exposed_comm_ns wait_for_peer_ns exposed_mem_ns idle_ns"
    rows = [(rank, 0, 90, 60 + rank, 30 - rank, None, 0, 0) for rank in range(4)]
    note = chart("account", step_account=table(columns, *rows))["note"]
    assert note.endswith(
        "the ranks' own time: compute. Exposed communication includes the waiting for others."
    )


@pytest.mark.parametrize("once", [0, 1])
def test_that_the_account_of_the_run_has_other_steps_is_said(once: int) -> None:
    columns = "compute_ns exposed_comm_ns wait_for_peer_ns exposed_mem_ns idle_ns"
    rows = [(rank, step, 40 + 20 * step, 0, 0, 0, 0) for rank in range(2) for step in range(2)]
    account = replace(table(f"rank step {columns}", *rows), steps=StepSet(2))
    left_out = ((StepRule.USUAL, once),) if once else ()
    kinds = replace(table(f"kind {columns}", (0, 50, 0, 0, 0, 0)), steps=StepSet(2, left_out))
    note = chart("account", step_account=account, step_kinds=kinds)["note"]
    said = (
        " This chart counts 2 steps; the time of a step counts 1 of 2 steps (without 1 that took long once)."
    )
    assert note.endswith(said) == bool(once)


def test_a_phase_that_is_longer_on_one_rank_is_named() -> None:
    rows = [
        (rank, name, 10, time, time, time)
        for rank in range(4)
        for name, time in (("f", 10_000), ("b", 20_000))
    ]
    rows[4] = (2, "f", 10, 14_000, 15_000, 14_000)
    made = chart("phases", phases=table("rank phase steps p50_ns p95_ns mean_ns", *rows))
    assert made["title"] == "Phases: rank 2 spends 4.000 µs more in f than the median of the others (40 %)"
    assert [phase["label"] for phase in made["phases"]] == ["f", "b"]
    assert made["phases"][0]["points"][2] == [2, 14_000, 15_000]


def test_the_longest_phase_is_that_of_the_mean_step_unless_a_step_took_long_once() -> None:
    # A loader that is late in every other step.
    rows = [(0, "load", 20, 1_000, 16_000, 9_000), (0, "train", 20, 8_000, 8_000, 8_000)]
    phases = table("rank phase steps p50_ns p95_ns mean_ns", *rows)
    assert chart("phases", phases=phases)["title"] == "Phases: load takes 9.000 µs, 53 % of the mean step"
    once = replace(table("kind steps", (0, 20)), steps=StepSet(20, ((StepRule.USUAL, 1),)))
    made = chart("phases", phases=replace(phases, steps=StepSet(20)), step_kinds=once)
    assert made["title"] == "Phases: train takes 8.000 µs in its median"


def test_a_rank_that_works_longer_is_named_before_those_that_wait_for_it_in_another_phase() -> None:
    program = simulated_account(Program(2, 600, slow={1: 6.0}))
    rows = [
        (*row, row[-1])
        for row in ((0, "f", 10, 30, 30), (1, "f", 10, 41, 41), (0, "b", 10, 62, 62), (1, "b", 10, 50, 50))
    ]
    made = chart("phases", phases=table("rank phase steps p50_ns p95_ns mean_ns", *rows), **program)
    assert made["title"].startswith("Phases: rank 1 spends 11.00 ns more in f ")
    # Rank 0 waits in b: nobody is to blame there.
    made = chart("phases", phases=table("rank phase steps p50_ns p95_ns mean_ns", *rows[2:]), **program)
    assert made["title"] == "Phases: b takes 56.00 ns, 100 % of the mean step"


def test_idle_time_is_that_of_the_mean_rank_by_cause_and_range() -> None:
    made = chart(
        "idle",
        step_times=table("rank step wall_ns", (0, 0, 9), (1, 0, 9)),
        idle_causes=table(
            "rank cause range api idle_ns_per_step gaps",
            (0, "host", "data", "a", 3_000, 1),
            (0, "host", "data", "b", 3_000, 1),
            (1, "launch", None, None, 2_000, 1),
        ),
    )
    assert made["title"] == "Idle time: 75 % of 4.000 µs a step is spent waiting for the host in data"
    assert [(row["label"], row["parts"][0][1], row["tick"]) for row in made["rows"]] == [
        ("host is busy · data", 3_000, 6_000),
        ("launch", 1_000, 2_000),
    ]


def test_kernels_are_shown_by_family_with_their_class() -> None:
    kernels = table(
        "rank name class instances total_ns",
        (0, "ampere_sgemm_128", "comp", 2, 600),
        (1, "ampere_sgemm_128", "comp", 2, 600),
        (0, "void f<b>(int)", "comp", 1, 300),
        (0, "ncclDevKernel_AllReduce", "comm", 1, 500),
        (0, None, "comp", 1, 0),
    )
    families = chart("families", kernels=kernels)
    assert families["title"] == "Kernel families: matrix product takes 60 % of kernel time"
    assert [(row["label"], row["parts"]) for row in families["rows"]] == [
        ("matrix product", [["compute", 1200]]),
        ("communication", [["communication", 500]]),
        ("other", [["compute", 300]]),
    ]
    names = chart("kernels", kernels=kernels)
    assert [row["label"] for row in names["rows"]] == [
        *("ampere_sgemm_128", "ncclDevKernel_AllReduce", "void f<b>(int)", "(no name)")
    ]
    assert names["rows"][0]["detail"] == "matrix product, 4 instances"


def test_kernels_that_lose_the_most_time_to_communication_come_first() -> None:
    columns = (
        "rank name grid block alone_n alone_med_ns overlapped_n overlapped_med_ns slowdown ci_low ci_high"
    )
    shape = ("1 1 1", "8 1 1", 9)
    made = chart(
        "slowdown",
        slowdown=table(
            columns,
            (0, "(total)", *shape, 1.0, 9, 1.0, 1.1, 1.0, 1.2),
            (0, "small", *shape, 10.0, 9, 15.0, 1.5, 1.4, 1.6),
            (0, "large", *shape, 1000.0, 9, 1200.0, 1.2, None, None),
        ),
    )
    assert made["title"] == "Kernel slowdown while communication runs: large takes 1.20 times as long"
    assert [row["label"] for row in made["rows"]] == ["large", "small"]
    (point,) = made["rows"][1]["points"]
    assert (point["value"], point["low"], point["high"]) == (1.5, 1.4, 1.6)
    assert point["detail"] == "rank 0, grid 1 1 1, block 8 1 1, n = 9 launches"


def test_the_roofline_has_the_ceilings_that_bound_its_kernels() -> None:
    made = chart(
        "roofline",
        roofline=table(
            "name grid block ai_flop_per_byte achieved_flops bound pct_of_bound ncu_ns in_situ_ns",
            ("gemm", "1", "1", 300.0, 5e14, "tensor_bf16", 50.0, 100, 120),
            ("copy", "1", "1", 0.1, 1e11, "dram", 90.0, 50, None),
            ("unknown", "1", "1", None, None, None, None, 50, None),
        ),
        ncu_peaks=table(
            "rank resource peak_per_s", (0, "dram", 4.8e12), (0, "tensor_bf16", 9.9e14), (0, "fp64", 6e13)
        ),
    )
    assert made["title"] == "Roofline: gemm, the longest kernel, reaches 50 % of its bound (tensor_bf16)"
    assert (made["dram_per_s"], made["ceilings"]) == (4.8e12, [["tensor_bf16", 9.9e14]])
    assert [point["label"] for point in made["points"]] == ["gemm", "copy"]


def test_memory_is_what_tensors_occupy_and_what_is_held_beyond() -> None:
    made = chart(
        "memory",
        memory_usage=table(
            "rank device count allocated_max_bytes reserved_max_bytes",
            (1, "cuda:0", 5, 600, 1000),
            (0, "cuda:0", 5, 600, 800),
        ),
    )
    assert made["title"] == "Memory: 40 % of what rank 1 reserves at most is unused"
    assert [(row["label"], row["parts"][1][1]) for row in made["rows"]] == [("rank 0", 200), ("rank 1", 400)]


def test_a_run_without_data_has_no_charts() -> None:
    assert chart_data(contents_of({})) == []
