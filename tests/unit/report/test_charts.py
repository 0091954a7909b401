"""The charts of a run's report."""

from __future__ import annotations

from pathlib import Path

from hpcprof.report.charts import charts
from hpcprof.report.contents import Contents
from hpcprof.results.analysis_table import AnalysisTable
from hpcprof.submit.runs.directory import Run
from tests.unit.report.test_facts import contents, result_of


def test_the_chart_of_the_modes_shows_each_against_the_bound() -> None:
    result = result_of("h200x4-8192-12288-49152")
    ((title, note, figure),) = charts(contents(result))
    assert title == "Step time by mode"
    bars, line = figure.data
    assert list(bars.x) == ["serial", "chunked", "symmetric", "copy-engine"]
    assert [round(value, 3) for value in bars.y] == [8.574, 8.32, 7.868, 7.435]
    assert set(line.y) == {result.bound_ns / 1e6 if result.bound_ns else 0}
    assert bars.text[3] == "100.3 % of the bound"
    assert "n = 60 steps per mode" in note


def test_every_point_of_a_sweep_has_a_chart() -> None:
    titles = [title for title, _, _ in charts(contents(result_of("h200x4-sweep-8192-32768")))]
    assert titles == [f"Step time by mode, sequence-length={length}" for length in (8192, 16384, 4096)]


def test_axes_name_the_unit_of_the_longest_time() -> None:
    analyses = {
        "step_times": AnalysisTable({"rank": [0, 0], "step": [0, 1], "wall_ns": [5_000, 7_000]}, {}),
        "steps": AnalysisTable({"step": [0, 1], "max_ns": [5_000, 7_000]}, {}),
    }
    run = Contents(Run("r", Path("r")), None, [], {}, analyses, [], [], str)
    ((title, note, figure),) = charts(run)
    assert title == "Step time"
    assert note.startswith("n = 2 steps on 1 rank.")
    assert figure.layout.yaxis.title.text == "Step time (µs)"
    assert list(figure.data[0].y) == [5.0, 7.0]
    # 7,000 of a unit, and not 7k.
    assert figure.layout.yaxis.exponentformat == "none"
