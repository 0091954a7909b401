"""Runs against other runs, and the intervals of few values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ttest_ind

from hpcprof.analysis.comparison.compare import compare
from hpcprof.analysis.framework.outcome import analyze_pair
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.statistics.confidence_intervals import welch_interval
from tests.unit.analysis.several import run

BASE = 1_000_000


def timed(*factors: float) -> list[RunData]:
    """Build runs whose own step takes so many milliseconds."""
    return [run(f"run{i}", own=[round(BASE * factor)] * 9) for i, factor in enumerate(factors)]


def verdict(a: list[RunData], b: list[RunData]) -> str:
    row = compare(b, a).rows.iloc[0]
    assert row["metric"] == "own_step_p50_ns"
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
    a, b = random.normal(0, 1, (2000, 3)), random.normal(0, 4, (2000, 5))
    inside = [
        low <= 0 <= high for low, high in (welch_interval(x, y, 0.95) for x, y in zip(a, b, strict=True))
    ]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


def test_one_run_on_each_side_has_no_statistics() -> None:
    rows = analyze_pair(ACROSS_RUNS["compare"], timed(2.0), timed(1.0)).rows
    assert rows.columns.tolist() == [column.name for column in ACROSS_RUNS["compare"].columns]
    assert rows.to_dict("records") == [
        {
            "metric": "own_step_p50_ns",
            "a": 1e6,
            "b": 2e6,
            "ratio": 2.0,
            "ci_low": None,
            "ci_high": None,
            "n_a": 1,
            "n_b": 1,
            "verdict": "one run each: no statistics",
        }
    ]
    assert verdict(timed(1.0), timed(2.0, 2.1)) == "one run on a side: no statistics"


@pytest.mark.parametrize(
    ("b", "expected"),
    [
        ((1.10, 1.11, 1.09), "regression"),
        ((0.90, 0.91, 0.89), "improvement"),
        ((1.00, 1.01, 0.99), "no difference"),
        # Sure, and too small to matter.
        ((1.005, 1.0051, 1.0049), "no difference"),
        # Large, and not sure.
        ((1.0, 1.5, 1.9), "no difference"),
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


def profiled(name: str, slower: float, steps: int) -> RunData:
    """Build a run of two profiled ranks; everything takes longer by a factor."""
    ranks = range(2)
    tables: dict[str, list[dict[str, object]]] = {
        "steps_summary": [{"p50_ns": round(1000 * slower)}],
        "step_times": [{"rank": r, "step": s, "wall_ns": 1000} for r in ranks for s in range(steps)],
        "phases": [{"rank": r, "phase": "forward", "p50_ns": round(400 * slower) + 10 * r} for r in ranks],
        "breakdown": [
            {"rank": r, "compute_ns": 600 * steps * slower, "span_ns": 1000 * steps, "exposed_comm_ns": 0}
            for r in ranks
        ],
        "kernels": [{"rank": r, "total_ns": 350 * steps} for r in ranks for _ in range(2)],
        "overlap": [{"rank": r, "overlap_pct": value} for r, value in zip(ranks, (40.0, 60.0), strict=True)],
    }
    return run(name, facts={"profiler": "nsys"}, tables=tables)


def test_what_explains_it_is_per_step_and_averaged_over_ranks() -> None:
    a, b = profiled("a", 1.0, steps=10), profiled("b", 2.0, steps=20)
    found = compare([b], [a]).rows.set_index("metric")
    assert found.loc["step_p50_ns", ["a", "b", "ratio"]].tolist() == [1000.0, 2000.0, 2.0]
    assert found.loc["phase forward p50_ns", ["a", "b"]].tolist() == [405.0, 805.0]
    assert found.loc["compute_per_step_ns", ["a", "b"]].tolist() == [600.0, 1200.0]
    assert found.loc["kernels_per_step_ns", ["a", "b"]].tolist() == [700.0, 700.0]
    assert found.loc["overlap_pct", "a"] == 50.0
    assert "exposed_comm_per_step_ns" not in found.index


def test_metrics_that_explain_decide_nothing() -> None:
    a = [profiled(f"a{i}", f, 10) for i, f in enumerate((1.0, 1.001))]
    b = [profiled(f"b{i}", f, 10) for i, f in enumerate((1.5, 1.501))]
    found = compare(b, a).rows.set_index("metric")["verdict"]
    assert found["step_p50_ns"] == "regression"
    assert found["compute_per_step_ns"] == "slower"
    assert found["overlap_pct"] == "no difference"


def test_what_the_runs_differ_in_is_said() -> None:
    a = run("a", own=[1], parameters={"batch_size": 1, "seed": 0})
    b = run("b", own=[1], parameters={"batch_size": 2, "seed": 0}, facts={"GPU": "NVIDIA A100"})
    reason = compare([b], [a]).reason
    assert "GPU differs: NVIDIA H200 in a, NVIDIA A100 in b" in reason
    assert "parameter batch_size differs: 1 in a, 2 in b" in reason
    assert "seed" not in reason
    assert "the repeats in b differ in GPU" in compare([a, b], [a, a]).reason
    assert compare([a], [a]).reason == ""


def test_runs_without_a_common_time_are_not_compared() -> None:
    outcome = compare([run("a")], [run("b", own=[5])])
    assert len(outcome.rows) == 0
    assert "the sides have no time in common" in outcome.reason
