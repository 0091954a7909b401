"""Runs against other runs, and the intervals of few values."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind

from benchmarks.comparison import ABBA, TURNS, Case
from benchmarks.comparison import verdict as benchmark_verdict
from hpcprof.analysis.comparison.compare import compare, drifts, independent, noise_of, paired_estimate, turns
from hpcprof.analysis.comparison.run_differences import unlike_steps, without_steps
from hpcprof.analysis.framework.outcome import analyze_across
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.gpu_time.breakdown import PARTS
from hpcprof.analysis.statistics.confidence_intervals import welch_interval
from tests.unit.analysis.several import run

BASE = 1_000_000


def timed(*factors: float) -> list[RunData]:
    """Build runs whose own step takes so many milliseconds."""
    return [run(f"run{i}", own=[round(BASE * factor)] * 9) for i, factor in enumerate(factors)]


def verdict(a: list[RunData], b: list[RunData]) -> str:
    row = compare(b, a).rows.iloc[0]
    assert row["metric"] == "own_elapsed_per_step_ns"
    return str(row["verdict"])


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 7), (20, 5)])
def test_the_interval_is_that_of_scipys_test(n: int, m: int) -> None:
    random = np.random.default_rng(n)
    a, b = random.normal(3, 1, n), random.normal(2, 4, m)
    for confidence in (0.9, 0.95, 0.975):
        expected = ttest_ind(a, b, equal_var=False).confidence_interval(confidence)
        assert welch_interval(a, b, confidence) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_welchs_interval_of_a_case_done_by_hand() -> None:
    # Means 2 and 6, variances 1 and 4, three values each: the variance of the difference is 5/3, the degrees
    # of freedom (5/3)^2 / ((1/3)^2/2 + (4/3)^2/2) = 50/17, and t of that is 3.2188.
    low, high = welch_interval(np.array([1.0, 2, 3]), np.array([4.0, 6, 8]), 0.95)
    assert (low + high) / 2 == pytest.approx(-4)
    assert (high - low) / 2 == pytest.approx(3.2188 * math.sqrt(5 / 3), rel=1e-4)


def test_welchs_interval_holds_as_often_as_it_says() -> None:
    random = np.random.default_rng(5)
    a, b = random.normal(0, 1, (500, 3)), random.normal(0, 4, (500, 5))
    inside = [
        low <= 0 <= high for low, high in (welch_interval(x, y, 0.95) for x, y in zip(a, b, strict=True))
    ]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_one_run_on_each_side_has_no_statistics() -> None:
    rows = analyze_across(ACROSS_RUNS["compare"], timed(2.0), timed(1.0)).frame
    assert rows.columns.tolist() == [column.name for column in ACROSS_RUNS["compare"].columns]
    assert rows.to_dict("records") == [
        {
            "metric": metric,
            "a": 1e6,
            "b": 2e6,
            "ratio": 2.0,
            "ci_low": None,
            "ci_high": None,
            "n_a": 1,
            "n_b": 1,
            "verdict": "one run each: no statistics",
        }
        for metric in ("own_elapsed_per_step_ns", "own_step_p50_ns")
    ]
    assert verdict(timed(1.0), timed(2.0, 2.1)) == "one run on a side: no statistics"


@pytest.mark.parametrize(
    ("b", "expected"),
    [
        ((1.10, 1.11, 1.09), "regression"),
        ((0.90, 0.91, 0.89), "improvement"),
        ((1.00, 1.01, 0.99), "inconclusive"),
        # Sure, and too small to matter.
        ((1.005, 1.0051, 1.0049), "equivalent"),
        # Large, and not sure.
        ((1.0, 1.5, 1.9), "inconclusive"),
    ],
)
def test_a_regression_is_sure_and_large_enough(b: tuple[float, ...], expected: str) -> None:
    a = timed(1.0, 1.0001, 0.9999) if b[1] == 1.0051 else timed(1.0, 1.01, 0.99)
    assert verdict(a, timed(*b)) == expected


def test_the_ratio_lies_in_its_interval_and_ignores_the_number_of_steps() -> None:
    few = [run(f"r{i}", own=[round(BASE * f)]) for i, f in enumerate((1.2, 1.25, 1.15))]
    row, many = (compare(b, timed(1.0, 1.02, 0.98)).rows.iloc[0] for b in (few, timed(1.2, 1.25, 1.15)))
    assert row["ci_low"] < row["ratio"] < row["ci_high"]
    assert row["ci_low"] == many["ci_low"]


def test_a_wide_interval_is_inconclusive_however_large_the_ratio() -> None:
    outcome = compare(timed(2.0, 17.0), timed(1.0, 1.01))
    row = outcome.rows.iloc[0]
    assert row["ratio"] > 5
    assert row["ci_high"] > 100
    assert row["verdict"] == "inconclusive"
    assert "only a step more than twice as long would be noticed" in outcome.reason


def test_values_that_differ_without_bounds_have_finite_intervals() -> None:
    huge = [run(f"b{i}", own=[10**power]) for i, power in enumerate((1, 18))]
    row = compare(huge, timed(1.0, 1.0)).rows.iloc[0]
    assert math.isfinite(row["ci_high"])
    assert row["verdict"] == "inconclusive"


def test_the_margin_decides_what_is_equivalent() -> None:
    a, b = timed(1.0, 1.001, 0.999), timed(1.012, 0.988, 1.0)
    assert [compare(b, a, margin_pct=pct).rows["verdict"].iloc[0] for pct in (1, 5)] == [
        "inconclusive",
        "equivalent",
    ]


def test_the_wall_step_decides_and_the_own_clock_explains() -> None:
    a, b = (
        [replace(profiled(f"{s}{i}", f, 10), own_step_ns=np.array([BASE * s])) for i, f in values]
        for s, values in ((1, [(0, 1.0), (1, 1.001)]), (2, [(0, 1.0), (1, 1.002)]))
    )
    found = compare(b, a).rows
    assert found["metric"].iloc[0] == "elapsed_per_step_ns"
    assert found["verdict"].iloc[0] == "equivalent"
    assert found.set_index("metric").loc["own_elapsed_per_step_ns", "verdict"] == "slower"


def test_the_interval_of_the_deciding_metric_has_95_percent() -> None:
    # One metric decides, so there is no correction for several: t of 4 degrees of freedom is 2.7764.
    row = compare(timed(1.1, 1.12, 1.08), timed(1.0, 1.01, 0.99)).rows.iloc[0]
    logs = np.log([[1.1, 1.12, 1.08], [1.0, 1.01, 0.99]])
    half = 2.7764 * math.sqrt(logs.var(axis=1, ddof=1).mean() * 2 / 3)
    assert math.log(row["ci_high"] / row["ci_low"]) == pytest.approx(2 * half, rel=1e-3)


NOISE = (1.003, 0.996, 1.008, 0.994, 1.0, 1.012, 0.988, 1.005, 0.995, 1.001)


def test_earlier_runs_that_are_alike_widen_the_baseline() -> None:
    a, b = timed(0.99, 1.0, 1.01), timed(1.012, 1.02, 1.028)
    assert verdict(a, b) == "inconclusive"
    outcome = compare(b, a, timed(*NOISE))
    row = outcome.rows.iloc[0]
    assert (row["verdict"], row["n_a"], row["n_b"]) == ("regression", 13, 3)
    assert row["ratio"] == pytest.approx(row["b"] / row["a"], abs=1e-4)
    assert "10 earlier runs of the baseline are part of it in own_elapsed_per_step_ns" in outcome.reason


@pytest.mark.parametrize(
    "earlier",
    [
        [f * 1.05 for f in NOISE],
        [1 + 40 * (f - 1) for f in NOISE],
        [f * (0.98 + 0.002 * i) for i, f in enumerate(NOISE)],
    ],
)
def test_earlier_runs_of_another_mean_or_spread_or_with_a_trend_are_left_out(earlier: list[float]) -> None:
    a, b = timed(0.999, 1.0, 1.001), timed(1.008, 1.02, 1.032)
    alone, outcome = compare(b, a), compare(b, a, timed(*earlier))
    assert outcome.rows.iloc[0].equals(alone.rows.iloc[0])
    assert (
        "10 earlier runs differ from the baseline in own_elapsed_per_step_ns, or drift, and are left out"
        in outcome.reason
    )


def in_order(sides: str, *factors: float) -> tuple[list[RunData], list[RunData]]:
    """Build the runs of both sides, submitted in the order of the letters."""
    begin = datetime(2026, 1, 1, tzinfo=timezone.utc)
    made = [
        (side, run(f"run{i}", own=[round(BASE * factor)], submitted=begin + timedelta(hours=i)))
        for i, (side, factor) in enumerate(zip(sides, factors, strict=True))
    ]
    a, b = ([one for side, one in made if side == name] for name in "AB")
    return a, b


def test_runs_that_took_turns_count_as_pairs() -> None:
    drifting = (1.0, 1.03, 1.1, 1.131, 1.2, 1.238)
    a, b = in_order("ABABAB", *drifting)
    # The order in which the runs are named does not matter.
    outcome = compare(b[::-1], a)
    assert outcome.rows.iloc[0]["verdict"] == "regression"
    assert "the runs took turns, so they are 3 pairs" in outcome.reason
    changes = np.log([1.03, 1.131 / 1.1, 1.238 / 1.2])
    half = 4.3027 * changes.std(ddof=1) / math.sqrt(3)
    assert outcome.rows.iloc[0]["ci_low"] == pytest.approx(math.exp(changes.mean() - half), abs=2e-4)
    a, b = in_order("AAABBB", *(drifting[i] for i in (0, 2, 4, 1, 3, 5)))
    outcome = compare(b, a)
    assert outcome.rows.iloc[0]["verdict"] == "inconclusive"
    assert "pairs in" not in outcome.reason


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        ("AAABBB", "all runs of one side were submitted before the other's, so a drift of the machine looks"),
        ("BBAA", "submit them in the order A B B A"),
        ("ABABAB", "one side was the first of each pair"),
        ("ABBA", ""),
        ("AABAB", ""),
    ],
)
def test_an_order_in_which_a_drift_counts_is_named(sides: str, said: str) -> None:
    a, b = in_order(sides, *[1.0, 1.01, 1.0, 0.99, 1.0, 1.0][: len(sides)])
    reason = compare(b, a).reason
    assert said in reason
    assert ("drift" in reason) == bool(said)


def test_runs_that_took_turns_are_compared_in_pairs_also_where_there_are_earlier_runs() -> None:
    # Without a change, each run is 0.2 % slower than the one before; the earlier ones are ten runs away.
    factors = [1 + 0.002 * i + 0.01 * (f - 1) for i, f in enumerate([*NOISE, *NOISE[:6]])]
    a, b = in_order("ABBAAB", *factors[10:])
    outcome = compare(b, a, timed(*factors[:10]))
    row = outcome.rows.iloc[0]
    assert (row["n_a"], row["n_b"]) == (3, 3)
    assert row["ci_low"] < 1 < row["ci_high"]
    assert row["ratio"] == pytest.approx(1.0, abs=0.001)
    assert "10 earlier runs of the baseline tell only the noise" in outcome.reason


def test_earlier_runs_of_a_machine_that_drifts_say_where_the_baseline_would_be() -> None:
    # Each run is 1 % slower than the one before, and the candidate by 5 % more.
    factors = [math.exp(0.01 * i) * f for i, f in enumerate([*NOISE, *NOISE[:6]])]
    every, _ = in_order("A" * 13, *factors[:13])
    _, b = in_order("A" * 13 + "BBB", *factors[:13], *(1.05 * f for f in factors[13:]))
    outcome = compare(b, every[10:], every[:10])
    row = outcome.rows.iloc[0]
    assert (row["n_a"], row["n_b"], row["verdict"]) == (13, 3, "regression")
    assert row["ratio"] == pytest.approx(1.05, abs=0.005) == pytest.approx(row["b"] / row["a"], abs=0.005)
    assert "without the steady drift" in outcome.reason
    # Baseline runs that do not go on like the earlier ones are compared by themselves.
    jump, _ = in_order("A" * 13, *factors[:10], *(1.2 * f for f in factors[10:13]))
    outcome = compare(b, jump[10:], jump[:10])
    assert outcome.rows.iloc[0]["n_a"] == 3
    assert "the interval assumes that there is none" in outcome.reason


def test_earlier_runs_steady_the_noise_of_pairs_but_never_hide_it() -> None:
    a, b = np.zeros(3), np.array([0.01, 0.02, 0.03])
    alone, calm, loud = (paired_estimate(a, b, noise) for noise in (None, 1e-6, 0.05))
    assert (alone.freedom, calm.freedom) == (2, 3)
    # The pairs vary by 1 %; a calm history does not make that less, a loud one adds one value.
    assert calm.error == alone.error == pytest.approx(0.01 / math.sqrt(3))
    assert loud.error == pytest.approx(math.sqrt((2 * 0.05**2 + 2 * 0.01**2) / 3 / 3))


def test_the_noise_of_a_series_with_a_trend_is_that_of_neighbours() -> None:
    random = np.random.default_rng(1)
    values = random.normal(0, 0.01, 2000) + 0.002 * np.arange(2000)
    assert noise_of(values) == pytest.approx(math.sqrt(0.01**2 + 0.002**2 / 2), rel=0.05)
    assert drifts(values[:20]) and not drifts(np.zeros(5)) and drifts(np.arange(5.0))


@pytest.mark.parametrize(
    ("case", "most"),
    [
        (Case(TURNS, 10, trend=0.002), 0.045),
        (Case(ABBA, 10, trend=0.002), 0.04),
        (Case(earlier=10, trend=0.002), 0.04),
        (Case(earlier=10, noise_of_b=2), 0.05),
    ],
)
def test_a_drift_or_a_noisy_candidate_seldom_makes_a_regression(case: Case, most: float) -> None:
    random = np.random.default_rng(9)
    found = [benchmark_verdict(case, 0.0, random) for _ in range(300)]
    assert found.count("regression") <= most * len(found)


@pytest.mark.parametrize(
    ("sides", "pairs"), [("ABAB", 2), ("BABA", 2), ("ABBA", 2), ("AABB", 0), ("ABA", 0), ("ABAAB", 0)]
)
def test_pairs_are_neighbours_in_time_with_one_run_of_each_side(sides: str, pairs: int) -> None:
    a, b = in_order(sides, *[1.0] * len(sides))
    assert len(turns([one.submitted for one in a], [one.submitted for one in b])) == pairs


def test_runs_submitted_at_one_time_took_no_turns() -> None:
    when = datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert turns([when, when], [when, when]) == []
    assert turns([None], [when]) == []


def test_the_detectable_change_is_found_in_four_of_five_comparisons() -> None:
    random = np.random.default_rng(3)
    outcome = compare(timed(1.0, 1.012, 0.988), timed(0.99, 1.0, 1.01))
    noted = re.search(r"a change of ([\d.]+) % is noticed 80 % of the time", outcome.reason)
    assert noted
    logs = np.log([[1.0, 1.012, 0.988], [0.99, 1.0, 1.01]])
    noise, change = math.sqrt(logs.var(axis=1, ddof=1).mean()), math.log1p(float(noted[1]) / 100)
    a, b = random.normal(0, noise, (2000, 3)), random.normal(change, noise, (2000, 3))
    found = [independent(x, y).interval()[0] > 1 for x, y in zip(a, b, strict=True)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(("n", "m"), [(3, 3), (8, 8)])
def test_pooled_intervals_are_those_of_students_test(n: int, m: int) -> None:
    random = np.random.default_rng(n)
    a, b = random.normal(3, 1, n), random.normal(3, 1, m)
    expected = ttest_ind(b, a, equal_var=True).confidence_interval(0.95)
    found = np.log(independent(a, b).interval())
    assert found == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_unlike_variances_of_unequal_sides_are_not_pooled() -> None:
    random = np.random.default_rng(2)
    a, b = random.normal(3, 0.01, 13), random.normal(3, 1, 3)
    found = independent(a, b)
    expected = ttest_ind(b, a, equal_var=False)
    assert found.error == pytest.approx((b.mean() - a.mean()) / expected.statistic, rel=1e-9)
    assert found.freedom == pytest.approx(expected.df + 1, rel=1e-3)
    # A few quiet values count as noisier, because others of their kind are.
    few = independent(a * 100, b)
    variance = (np.var(a * 100, ddof=1) + 2 * np.var(b, ddof=1)) / 3
    assert few.error == pytest.approx(math.sqrt(np.var(a * 100, ddof=1) / 13 + variance / 3), rel=1e-9)
    swapped = independent(b, a * 100)
    assert (swapped.error, swapped.freedom) == pytest.approx((few.error, few.freedom))


def profiled(name: str, slower: float, steps: int) -> RunData:
    """Build a run of two profiled ranks; everything takes longer by a factor."""
    ranks = range(2)
    tables: dict[str, list[dict[str, object]]] = {
        "steps_summary": [{"p50_ns": round(1000 * slower)}],
        "step_times": [{"rank": r, "step": s, "wall_ns": 1000} for r in ranks for s in range(steps)],
        "phases": [{"rank": r, "phase": "forward", "p50_ns": round(400 * slower) + 10 * r} for r in ranks],
        "step_kinds": [
            {
                **dict.fromkeys(("exposed_comm_ns", "exposed_mem_ns", "idle_ns"), 0),
                **{"kind": kind, "elapsed_ns": 1000 * slower, "compute_ns": (600 + kind) * slower},
            }
            for kind in range(3)
        ],
        "breakdown": [{"rank": r, "compute_ns": 9_000 * steps, "span_ns": 9_000 * steps} for r in ranks],
        "kernels": [{"rank": r, "total_ns": 350 * steps} for r in ranks for _ in range(2)],
        "overlap": [{"rank": r, "overlap_pct": value} for r, value in zip(ranks, (40.0, 60.0), strict=True)],
    }
    return run(name, facts={"profiler": "nsys"}, tables=tables)


def test_what_explains_it_is_per_step_and_averaged_over_ranks() -> None:
    a, b = profiled("a", 1.0, steps=10), profiled("b", 2.0, steps=20)
    found = compare([b], [a]).rows.set_index("metric")
    assert found.loc["step_p50_ns", ["a", "b", "ratio"]].tolist() == [1000.0, 2000.0, 2.0]
    assert found.loc["phase forward p50_ns", ["a", "b"]].tolist() == [405.0, 805.0]
    # The elapsed time and its parts are those of all steps in step_kinds, not of the whole capture.
    assert found.loc["elapsed_per_step_ns", ["a", "b"]].tolist() == [1000.0, 2000.0]
    assert found.loc["compute_per_step_ns", ["a", "b"]].tolist() == [600.0, 1200.0]
    assert found.loc["kernels_per_step_ns", ["a", "b"]].tolist() == [700.0, 700.0]
    assert found.loc["overlap_pct", "a"] == 50.0
    assert "exposed_comm_per_step_ns" not in found.index
    # The last step that launches mark has no known end, but its kernels are in the capture.
    marked = [{"rank": rank, "source": "launches", "chosen": 1} for rank in range(2)]
    one = replace(a, tables={**a.tables, "step_ranges": pd.DataFrame(marked)})
    found = compare([b], [one]).rows.set_index("metric")
    assert found.loc["kernels_per_step_ns", "a"] == pytest.approx(700 * 10 / 11, abs=1)


def _steps_of(*values: list[int]) -> list[RunData]:
    return [run(f"r{place}{values[0][-1]}", own=steps) for place, steps in enumerate(values)]


def test_rare_long_steps_are_a_regression_that_the_median_does_not_show() -> None:
    usual, doubled = [BASE] * 40, [BASE, *[BASE] * 8, 2 * BASE] * 4
    noise = [BASE // 500 * place for place in range(4)]
    a = _steps_of(*([step + more for step in usual] for more in noise))
    b = _steps_of(*([step + more for step in doubled] for more in noise))
    outcome = compare(b, a)
    rows = outcome.rows.set_index("metric")
    assert rows.loc["own_elapsed_per_step_ns", "verdict"] == "regression"
    assert rows.loc["own_elapsed_per_step_ns", "ratio"] == pytest.approx(1.1, abs=0.001)
    assert rows.loc["own_step_p50_ns", "ratio"] == pytest.approx(1.0, abs=0.001)
    assert "changes by +10.0 % and the median step by +0.0 %: long steps or time" in outcome.reason
    assert "weigh more in B" in outcome.reason


def test_a_step_that_is_long_once_is_no_regression() -> None:
    steps = [[BASE + BASE // 500 * place] * 40 for place in range(4)]
    setup = [[*own[:8], 60 * BASE, *own[9:]] for own in steps]
    assert verdict(_steps_of(*setup), _steps_of(*steps)) == "equivalent"


def test_metrics_that_explain_decide_nothing() -> None:
    a = [profiled(f"a{i}", f, 10) for i, f in enumerate((1.0, 1.001))]
    b = [profiled(f"b{i}", f, 10) for i, f in enumerate((1.5, 1.501))]
    found = compare(b, a).rows.set_index("metric")["verdict"]
    assert found["elapsed_per_step_ns"] == "regression"
    assert found["step_p50_ns"] == "slower"
    assert found["compute_per_step_ns"] == "slower"
    assert found["overlap_pct"] == "equivalent"


def test_what_the_runs_differ_in_is_said() -> None:
    a = run("a", own=[1], parameters={"batch_size": 1, "seed": 0})
    b = run("b", own=[1], parameters={"batch_size": 2, "seed": 0}, facts={"GPU": "NVIDIA A100"})
    reason = compare([b], [a]).reason
    assert "GPU differs: NVIDIA H200 in A, NVIDIA A100 in B" in reason
    assert "parameter batch_size differs: 1 in A, 2 in B" in reason
    assert "seed" not in reason
    assert "the repeats in B differ in GPU" in compare([a, b], [a, a]).reason
    assert compare([a], [a]).reason == ""


def test_runs_without_a_common_time_are_not_compared() -> None:
    outcome = compare([run("a")], [run("b", own=[5])])
    assert len(outcome.rows) == 0
    assert "the sides have no time in common" in outcome.reason


def test_the_efficiencies_of_mpi_programs_are_compared() -> None:
    def with_balance(name: str, balance: float) -> RunData:
        row = {"scope": "step", "name": "s", "load_balance_pct": balance, "parallel_efficiency_pct": 50.0}
        return run(name, own=[100] * 3, tables={"pop": [{"scope": "run", "load_balance_pct": 1.0}, row]})

    table = compare([with_balance("b", 60.0)], [with_balance("a", 80.0)]).rows.set_index("metric")
    assert (table.loc["load_balance_pct", "a"], table.loc["load_balance_pct", "b"]) == (80.0, 60.0)
    assert table.loc["load_balance_pct", "ratio"] == 0.75
    assert "transfer_efficiency_pct" not in table.index


def sampled(joule: float, mhz: float = 1755.0, written: float = 1e6) -> RunData:
    """Build a run of a step of a millisecond whose nodes were sampled."""
    machine = {
        "energy": pd.DataFrame({"gpu": [0, None], "joule_per_step": [1.0, joule]}),
        "clocks": pd.DataFrame({"first_step": [1], "sm_mhz_mean": [mhz], "samples": [10]}),
        "io": pd.DataFrame(
            {
                "rank": [0, 0],
                "first_step": [None, 1],
                "last_step": [None, 10],
                "read_bytes": [7, 100],
                "written_bytes": [1, 10 * written],
            }
        ),
        "telemetry": pd.DataFrame(
            {
                "metric": ["resident", "used", "blocked", "frequency"],
                "device": ["rank0", "gpu0", "rank0", "node"],
                "phase": "step",
                "samples": 10,
                "mean": [1.0, 1.0, 5.0, 2000.0],
                "max": [2e9, 3e9, 100.0, 2000.0],
            }
        ),
    }
    one = run("run", own=[BASE] * 9)
    return replace(one, tables={**one.tables, **machine})


def test_energy_memory_and_data_are_metrics_and_decide_where_they_are_gates() -> None:
    a, b = [sampled(100.0), sampled(100.5)], [sampled(120.0, written=2e6), sampled(120.6, written=2e6)]
    rows = compare(b, a).rows.set_index("metric")
    assert rows.index[0] == "own_elapsed_per_step_ns" and rows["verdict"].iloc[0] == "equivalent"
    assert rows.loc["energy_per_step_j", "verdict"] == "higher"
    assert rows.loc["memory_peak_bytes", "a"] == 2e9 and rows.loc["gpu_memory_peak_bytes", "a"] == 3e9
    assert rows.loc["read_per_step_bytes", "a"] == 10.0 and rows.loc["waiting_for_files_pct", "a"] == 5.0
    gated = compare(b, a, gates=("energy", "io")).rows
    assert gated["metric"].tolist()[:2] == ["own_elapsed_per_step_ns", "energy_per_step_j"]
    judged = dict(zip(gated["metric"], gated["verdict"], strict=True))
    assert judged["energy_per_step_j"] == judged["written_per_step_bytes"] == "regression"
    assert judged["read_per_step_bytes"] == "equivalent"
    without = compare(timed(1.0, 1.0), timed(1.0, 1.0), gates=("energy",))
    assert "no run has energy of its steps" in without.reason


def test_other_clocks_are_said_first() -> None:
    a, b = [sampled(100.0), sampled(100.0)], [sampled(100.0, mhz=1410.0), sampled(100.0, mhz=1410.0)]
    assert compare(b, a).reason.startswith("the GPUs ran at 1,410 MHz in b and at 1,755 MHz in a")
    assert "ran at" not in compare(a, [sampled(100.0, mhz=1740.0)] * 2).reason


def test_captures_of_different_length_without_steps_are_compared_by_the_time_of_a_kernel() -> None:
    def capture(kernels: int) -> RunData:
        found = run("capture")
        breakdown = pd.DataFrame([{"rank": 0, **{f"{part}_ns": 1e6 * kernels for part in ("span", *PARTS)}}])
        rows = pd.DataFrame([{"rank": 0, "instances": kernels, "total_ns": 250_000 * kernels}])
        return replace(found, tables={**found.tables, "breakdown": breakdown, "kernels": rows})

    outcome = compare([capture(80), capture(80)], [capture(40), capture(40)])
    assert outcome.rows["metric"].tolist() == ["kernels_per_launch_ns"]
    assert outcome.rows["verdict"].tolist() == ["equivalent"]
    assert "whether the program takes longer is unknown" in outcome.reason
    # As long as each other, they are compared by their span.
    assert compare([capture(40)] * 2, [capture(40)] * 2).rows["metric"].iloc[0] == "span_ns"


def test_logs_of_darshan_alone_are_compared_by_the_time_in_files() -> None:
    def logged(seconds: float) -> RunData:
        found = run("logged")
        times = {"read_s": 0.0, "write_s": seconds, "meta_s": 0.25}
        rows = [
            {"module": module, "read_bytes": 0, "written_bytes": 64, **times}
            for module in ("MPI-IO", "POSIX")
        ]
        return replace(found, tables={**found.tables, "darshan_files": pd.DataFrame(rows)})

    rows = compare([logged(1.0)], [logged(0.5)]).rows
    assert rows["metric"].tolist() == ["time_in_files_ns", "mpi-io_written_bytes", "posix_written_bytes"]
    assert rows["ratio"].tolist() == [pytest.approx(1.25 / 0.75, abs=1e-3), 1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "kernels", "each_ns", "unlike"),
    [("level", 72, 100, True), ("level", 72, 1, False), ("level", 2, 100, False), ("row", 72, 100, False)],
)
def test_steps_that_are_other_parts_of_the_program_are_not_compared(
    name: str, kernels: int, each_ns: int, unlike: bool
) -> None:
    """As in the public caoye310/Lower-Triangular-Solves: a launch on one side, a level on the other."""

    def stepped(name: str, kernels: int, each_ns: int) -> RunData:
        total = 10 * kernels * each_ns
        found = run("stepped")
        tables = {
            "step_times": pd.DataFrame([{"rank": 0, "step": step, "wall_ns": 1000} for step in range(10)]),
            "step_ranges": pd.DataFrame([{"rank": 0, "range": name, "source": "automatic", "chosen": 1}]),
            "kernels": pd.DataFrame([{"rank": 0, "instances": 10 * kernels, "total_ns": total}]),
        }
        return replace(found, tables={**found.tables, **tables})

    sentence = unlike_steps([stepped("row", 1, 100)], [stepped(name, kernels, each_ns)])
    assert sentence.startswith("a step is row with 1 kernel in A and level with 72 kernels in B") is unlike
    assert bool(sentence) is unlike
    assert not len(without_steps(stepped(name, kernels, each_ns)).tables["step_times"])


@pytest.mark.parametrize("earlier", [0, 10])
def test_runs_of_blocks_that_drift_are_no_regression(earlier: int) -> None:
    # Each run is 0.5 % slower than the one before, and B was submitted after A.
    draw = np.random.default_rng(0)
    verdicts = []
    for _ in range(20):
        factors = np.exp(0.005 * np.arange(30) + draw.normal(0, 0.01, 30)).tolist()
        every, b = in_order("A" * 20 + "B" * 10, *factors)
        outcome = compare(b, every[10:], every[:earlier])
        verdicts.append(outcome.rows.iloc[0]["verdict"])
        assert "drift" in outcome.reason
    assert verdicts.count("regression") <= 1


def test_blocks_that_drift_still_show_a_change() -> None:
    factors = [math.exp(0.005 * i) * NOISE[i % 10] * (1.1 if i >= 10 else 1) for i in range(20)]
    a, b = in_order("A" * 10 + "B" * 10, *factors)
    outcome = compare(b, a)
    row = outcome.rows.iloc[0]
    assert row["verdict"] == "regression" and row["ci_low"] < 1.1 < row["ci_high"]
    assert "the estimate is without this drift" in outcome.reason
