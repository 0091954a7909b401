"""The study of slowdown: the order of its runs, and what it says of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hpcprof.common.errors import HpcprofError
from hpcprof.results.analysis_table import AnalysisTable
from hpcprof.study.record import Arm, Planned, Record, plan, read_record, write_record
from hpcprof.study.slowdown import best, by_point
from hpcprof.submit.sites.model import Site

POINTS = [{"cap": "1"}, {"cap": "25"}]


class FakeStore:
    """Answers for runs whose ids are the values of their analyses."""

    def __init__(self, runs: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
        self.runs = runs

    def read(self, run_id: str, analysis: str) -> AnalysisTable:
        rows = self.runs[run_id].get(analysis, [])
        return AnalysisTable({name: [row[name] for row in rows] for name in (rows[0] if rows else ())}, {})


def run(step: int, exposed: float = 0.0, ratio: float | None = None) -> dict[str, list[dict[str, Any]]]:
    totals = [] if ratio is None else [{"name": "(total)", "slowdown": ratio}, {"name": "k", "slowdown": 9.0}]
    return {
        "steps_summary": [{"p50_ns": step}],
        "breakdown": [{"exposed_comm_pct": exposed}, {"exposed_comm_pct": exposed + 2}],
        "slowdown": totals,
    }


def test_every_repeat_has_every_point_on_both_sides_in_turns() -> None:
    planned = plan(POINTS, 3)
    assert Counter((p.point["cap"], p.arm, p.repeat) for p in planned) == Counter(
        (cap, arm, repeat) for cap in ("1", "25") for arm in Arm for repeat in range(3)
    )
    assert [p.repeat for p in planned] == sorted(p.repeat for p in planned)
    first = [next(p.arm for p in planned if p.repeat == repeat) for repeat in range(3)]
    assert first == [Arm.ALONE, Arm.COMMUNICATING, Arm.ALONE]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "study.json cannot be read: Input data was truncated"),
        ('{"study": "slowdown", "runs": [{"point": {}, "arm": "alone"}]}', "missing required field"),
        ('{"study": "other", "site": {}, "runs": []}', "Invalid enum value 'other'"),
        (
            '{"study": "slowdown", "site": {"name": "s", "scheduler": "local"}, "runs": []}',
            "it lists no runs",
        ),
    ],
)
def test_a_record_that_is_none_is_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(HpcprofError, match=says):
        read_record(tmp_path)


def test_a_record_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    record = Record("slowdown", Site(name="here", scheduler="local"), [])
    with pytest.raises(HpcprofError, match=r"cannot write .*gone/study\.json: No such file or directory\.$"):
        write_record(tmp_path / "gone", record)


def test_a_point_is_the_median_over_its_runs() -> None:
    runs = {
        "a0": run(100),
        "a1": run(104),
        "c0": run(120, 1.0, 1.1),
        "c1": run(130, 3.0),
        "c2": run(110, 2.0, 1.3),
    }
    arms = {"a": Arm.ALONE, "c": Arm.COMMUNICATING}
    made = [Planned({"cap": "1"}, arms[name[0]], 0, name) for name in runs]
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
    made = [Planned({"cap": cap}, Arm.COMMUNICATING, 0, "x") for cap in given]
    assert [row["cap"] for row in by_point(FakeStore({"x": {}}), made)] == shown  # type: ignore[arg-type]


def test_what_no_run_tells_is_unknown() -> None:
    made = [Planned({}, Arm.COMMUNICATING, 0, "x")]
    (row,) = by_point(FakeStore({"x": {}}), made)  # type: ignore[arg-type]
    assert row["runs"] == 1
    assert {key for key, value in row.items() if value is None} == set(row) - {"runs"}


def rows(*points: tuple[str, int, int, int, int]) -> list[dict[str, Any]]:
    names = ("cap", "runs", "step_min_ns", "step_p50_ns", "step_max_ns")
    return [dict(zip(names, point, strict=True)) for point in points]


def test_the_best_point_is_named_with_how_sure_that_is() -> None:
    apart = rows(("1", 3, 90, 100, 110), ("25", 3, 40, 50, 60))
    assert best(apart, ["cap"]) == "best: cap=25, step p50 0.000 ms (n=3 runs)"
    near = rows(("1", 3, 55, 100, 110), ("25", 3, 40, 50, 60))
    assert best(near, ["cap"]).endswith("its runs are not all shorter than those of cap=1")
    alone = rows(("1", 1, 100, 100, 100), ("25", 1, 50, 50, 50))
    assert best(alone, ["cap"]).endswith("one run each: no statistics")
    assert best(apart[:1], ["cap"]) == ""
