"""The conclusion of a comparison of runs."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from hpcprof.analysis.comparison.compare import steps_compared
from hpcprof.analysis.comparison.run_differences import Difference
from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.report.comparison import Comparison
from hpcprof.results.across.across_runs import DIFFERENCES
from hpcprof.results.store.store import open_store
from hpcprof.runs.directory import Run


def compared(*verdicts: str) -> Comparison:
    metrics = [f"metric{number}_ns" for number in range(len(verdicts))]
    return Comparison(
        [], [], ACROSS_RUNS["compare"], AnalysisTable({"metric": metrics, "verdict": [*verdicts]}, {})
    )


def test_a_run_is_named_with_the_steps_that_are_compared() -> None:
    def steps(metric: str, counted: float, once: int = 100) -> str:
        kinds = pd.DataFrame({"steps": [6], "counted_steps": [counted], "once_steps": [0]})
        run: Any = SimpleNamespace(tables={"step_kinds": kinds}, own_step_ns=np.array([100] * 211 + [once]))
        return steps_compared(run, metric)

    assert steps("elapsed_per_step_ns", 5) == "5 of 6 profiled steps; median of 6 profiled steps"
    assert steps("elapsed_per_step_ns", 6) == "6 profiled steps"
    assert steps("own_elapsed_per_step_ns", 5) == "212 steps of the program"
    assert steps("own_elapsed_per_step_ns", 5, once=9000) == (
        "211 of 212 steps of the program; median of 212 steps of the program"
    )
    run = Run("r", Path("r"))
    assert replace(compared(), steps={"r": steps("step_p50_ns", 5)}).named(run) == "r (6 profiled steps)"
    assert (steps("span_ns", 5), compared().named(run)) == ("", "r")


@pytest.mark.parametrize(
    ("verdicts", "conclusion"),
    [
        (("equivalent", "slower"), ""),
        (("regression", "slower"), "Regression: metric0."),
        (
            ("inconclusive", "slower"),
            "Inconclusive: neither a change of the metric 'metric0' nor its absence is shown.",
        ),
        (("one run each: no statistics", "only in a"), "Inconclusive: give at least two runs per side."),
    ],
)
def test_a_regression_or_too_few_runs_is_the_conclusion(verdicts: tuple[str, ...], conclusion: str) -> None:
    assert compared(*verdicts).conclusion() == conclusion


def test_a_comparison_in_a_prompt_is_one_line_with_its_runs_and_conclusion() -> None:
    one = replace(compared("regression"), baseline=[Run("a1", Path("a1"))], candidate=[Run("b1", Path("b1"))])
    assert repr(one) == "<hpcprof comparison of b1 with a1: Regression: metric0.>"


@pytest.mark.parametrize(
    ("low", "gates", "judged"), [(None, (), False), (None, ("memory",), True), (1.02, (), True)]
)
def test_a_comparison_is_judged_only_with_an_interval_of_what_decides(
    low: float | None, gates: tuple[str, ...], judged: bool
) -> None:
    columns: dict[str, list[Any]] = {"metric": ["step_p50_ns", "memory_peak_bytes"], "ci_low": [low, 0.98]}
    assert replace(compared(), table=AnalysisTable(columns, {})).is_judged(gates) is judged


def test_a_gate_that_no_run_has_figures_of_is_said_not_to_be_judged() -> None:
    one = compared("equivalent")
    lacking = replace(one, table=replace(one.table, reasons={-1: "how; no run has energy of its steps"}))
    assert lacking.conclusion() == "Not judged: no run has energy of its steps."


def test_a_regression_with_other_clocks_says_that_first(tmp_path: Path) -> None:
    clocks = "the GPUs ran at 1,410 MHz in b and at 1,755 MHz in a"
    slower, same = (
        replace(one, table=replace(one.table, reasons={-1: f"{clocks}; how"}))
        for one in (compared("regression"), compared("equivalent"))
    )
    out = io.StringIO()
    nothing = AnalysisTable({"part": []}, {})
    slower = replace(slower, differences=dict.fromkeys(DIFFERENCES, nothing))
    Console(file=out, width=80).print(slower.explanation(open_store(None, tmp_path), 80))
    said = f"T{clocks[1:]}."
    assert out.getvalue().split("\n")[1] == said
    assert slower.conclusion() == f"{said} Regression: metric0."
    assert (same.other_clocks(), same.conclusion()) == ("", "")


def test_the_metrics_repeat_neither_a_fact_that_differs_nor_that_there_are_no_statistics() -> None:
    few = compared("one run each: no statistics")
    fact = Difference("arguments", ("a; b",), ("c",))
    reason = "clocks; arguments differs: a; b in A, c in B; some steps take longer"
    few = replace(few, differing=[fact], table=replace(few.table, reasons={-1: reason}))
    analysis, table = few.metrics_to_show()
    assert analysis.shown_columns == ("metric", "a", "b", "ratio")
    assert table.reasons == {-1: "clocks; some steps take longer"}
    analysis, table = compared("equivalent").metrics_to_show()
    assert "verdict" in analysis.shown_columns
