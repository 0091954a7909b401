"""The tables of a study of slowdown."""

from __future__ import annotations

from typing import Any

import pytest

from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.study.slowdown_record import Arm, PlannedRun
from hpcprof.study.slowdown_tables import best_point_sentence, by_point


class FakeStore:
    """Answers for runs whose ids are the values of their analyses."""

    def __init__(self, runs: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
        self.runs = runs

    def table(self, run_id: str, analysis: str) -> AnalysisTable:
        rows = self.runs[run_id].get(analysis, [])
        return AnalysisTable({name: [row[name] for row in rows] for name in (rows[0] if rows else ())}, {})


def run(step: int, exposed: float = 0.0, ratio: float | None = None) -> dict[str, list[dict[str, Any]]]:
    totals = [] if ratio is None else [{"name": "(total)", "slowdown": ratio}, {"name": "k", "slowdown": 9.0}]
    return {
        "steps_summary": [{"p50_ns": step}],
        "breakdown": [{"exposed_comm_pct": exposed}, {"exposed_comm_pct": exposed + 2}],
        "slowdown": totals,
    }


def test_a_point_is_the_median_over_its_runs() -> None:
    runs = {
        "a0": run(100),
        "a1": run(104),
        "c0": run(120, 1.0, 1.1),
        "c1": run(130, 3.0),
        "c2": run(110, 2.0, 1.3),
    }
    arms = {"a": Arm.ALONE, "c": Arm.COMMUNICATING}
    made = [PlannedRun({"cap": "1"}, arms[name[0]], 0, name) for name in runs]
    (row,) = by_point(FakeStore(runs), made)  # type: ignore[arg-type]
    assert row == {
        "cap": "1",
        "runs": 3,
        "alone_step_p50_ns": 102,
        "step_p50_ns": 120,
        "step_min_ns": 110,
        "step_max_ns": 130,
        "exposed_comm_pct": 3.0,
        "slowdown_within": 1.2,
    }


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["2", "50", "1.5", "25"], ["1.5", "2", "25", "50"]),
        (["noop", "bf16", "1"], ["noop", "bf16", "1"]),
    ],
)
def test_points_of_numbers_ascend_and_others_stay_as_they_were_given(
    given: list[str], shown: list[str]
) -> None:
    made = [PlannedRun({"cap": cap}, Arm.COMMUNICATING, 0, "x") for cap in given]
    assert [row["cap"] for row in by_point(FakeStore({"x": {}}), made)] == shown  # type: ignore[arg-type]


def test_what_no_run_tells_is_unknown() -> None:
    made = [PlannedRun({}, Arm.COMMUNICATING, 0, "x")]
    (row,) = by_point(FakeStore({"x": {}}), made)  # type: ignore[arg-type]
    assert row["runs"] == 1
    assert {key for key, value in row.items() if value is None} == set(row) - {"runs"}


def rows(*points: tuple[str, int, int, int, int]) -> list[dict[str, Any]]:
    names = ("cap", "runs", "step_min_ns", "step_p50_ns", "step_max_ns")
    return [dict(zip(names, point, strict=True)) for point in points]


def test_the_best_point_is_named_with_how_sure_that_is() -> None:
    apart = rows(("1", 3, 90, 100, 110), ("25", 3, 40, 50, 60))
    assert best_point_sentence(apart, ["cap"]) == "best: cap=25, step p50 0.000 ms (n=3 runs)"
    near = rows(("1", 3, 55, 100, 110), ("25", 3, 40, 50, 60))
    assert best_point_sentence(near, ["cap"]).endswith("its runs are not all shorter than those of cap=1")
    alone = rows(("1", 1, 100, 100, 100), ("25", 1, 50, 50, 50))
    assert best_point_sentence(alone, ["cap"]).endswith("one run each: no statistics")
    assert best_point_sentence(apart[:1], ["cap"]) == ""
