"""Reports of more ranks than fit."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hpcprof.analysis.framework.declaration import Analysis, Scope, columns
from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.analysis.framework.registry import ANALYSES, FULL_REPORT
from hpcprof.analysis.steps.step_set import StepSet
from hpcprof.report.account import Account, AccountPart
from hpcprof.report.contents import Contents
from hpcprof.report.many_ranks import deviating, measure, spans_many_ranks, spread
from hpcprof.report.terminal import first_screen, full_report
from hpcprof.results.store.tables import ProfileRow
from hpcprof.runs.directory import Run

RANKS = 4096
PROFILE = ProfileRow(
    run_id="r",
    rank=0,
    file="rank0.sqlite",
    sha256="",
    bytes=1,
    kind="nsys",
    host="",
    devices="",
    profiler_version="",
    start_utc_ns=None,
    analysis_version=1,
)
ONE_ROW = Analysis("one", "One row", Scope.RANK, columns("rank span_ns idle_pct:float verdict:text"), "m:f")
BY_NAME = Analysis("named", "By name", Scope.RANK, columns("rank name:text calls total_ns"), "m:f")


def stored(rows: list[dict[str, Any]]) -> AnalysisTable:
    return AnalysisTable({name: [row[name] for row in rows] for name in rows[0]})


def one_row(far: dict[int, int]) -> list[dict[str, Any]]:
    """Return a row for each rank; ``far`` has the spans of those that are not like the others."""
    return [
        {"rank": rank, "span_ns": far.get(rank, 1_000_000 + rank % 100), "idle_pct": 5.0, "verdict": "even"}
        for rank in range(RANKS)
    ]


def by_name(far: dict[tuple[int, str], int]) -> list[dict[str, Any]]:
    return [
        {"rank": rank, "name": name, "calls": 3, "total_ns": far.get((rank, name), total + rank % 100)}
        for rank in range(RANKS)
        for name, total in (("small", 1_000), ("large", 1_000_000))
    ]


def test_rows_of_up_to_sixteen_ranks_are_shown_one_by_one() -> None:
    rows = one_row({})
    assert not spans_many_ranks(ONE_ROW, stored(rows[:16]))
    assert spans_many_ranks(ONE_ROW, stored(rows[:17]))
    assert not spans_many_ranks(ONE_ROW, stored([{**row, "span_ns": None} for row in rows[:17]]))


def test_a_table_of_the_whole_run_is_shown_as_it_is() -> None:
    whole = Analysis("whole", "Whole", Scope.RUN, columns("op:text latency_ns"), "m:f")
    rows = [{"op": "AllReduce", "latency_ns": n} for n in range(100)]
    assert not spans_many_ranks(whole, stored(rows))


def test_quantiles_over_the_ranks_take_the_place_of_their_rows() -> None:
    table, rows = spread(ONE_ROW, stored(one_row({7: 5_000_000})))
    assert [row["quantile"] for row in rows] == ["min", "p5", "p50", "p95", "max"]
    assert [row["span_ns"] for row in rows] == [1_000_000, 1_000_004, 1_000_049, 1_000_094, 5_000_000]
    assert table.shown_columns == ("quantile", "span_ns", "idle_pct")


def test_rows_with_names_have_the_quantiles_of_each_name_and_the_largest_come_first() -> None:
    rare = {"rank": 9, "name": "rare", "calls": 1, "total_ns": 5}
    table, rows = spread(BY_NAME, stored([*by_name({}), rare]))
    assert [(row["name"], row["ranks"]) for row in rows] == [("large", RANKS), ("small", RANKS), ("rare", 1)]
    assert rows[0]["min_ns"] == 1_000_000
    assert rows[0]["max_ns"] == 1_000_099
    assert table.shown_columns == ("name", "min_ns", "p5_ns", "p50_ns", "p95_ns", "max_ns", "ranks")


def test_missing_values_do_not_count() -> None:
    rows = one_row({})
    for row in rows:
        row["idle_pct"] = None
    rows[3]["span_ns"] = None
    _, found = spread(ONE_ROW, stored(rows))
    assert {row["idle_pct"] for row in found} == {None}
    assert deviating(ONE_ROW, stored(rows))[1] == []


def test_the_ten_ranks_that_deviate_most_are_named_the_furthest_first() -> None:
    planted = {100 * n: 1_000_000 + 100_000 * n for n in range(1, 13)} | {4000: 500_000}
    table, rows = deviating(ONE_ROW, stored(one_row(planted)))
    assert [row["rank"] for row in rows] == [1200, 1100, 1000, 900, 800, 700, 600, 4000, 500, 400]
    assert rows[0]["deviation"] == pytest.approx((2_200_000 - 1_000_049.5) / 22_000)
    assert rows[7]["deviation"] < 0
    assert table.shown_columns == ("rank", "deviation", "span_ns", "idle_pct", "verdict")


def test_a_rank_is_named_once_with_the_row_that_deviates_most_among_those_of_its_name() -> None:
    far = {(5, "small"): 9_000, (5, "large"): 1_100_000, (6, "large"): 1_500_000}
    _, rows = deviating(BY_NAME, stored(by_name(far)))
    assert [(row["rank"], row["name"]) for row in rows] == [(5, "small"), (6, "large")]


def test_ranks_that_agree_but_for_noise_are_not_named() -> None:
    assert deviating(ONE_ROW, stored(one_row({8: 1_009_000})))[1] == []


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_report_of_thousands_of_ranks_fits_the_terminal_and_names_the_odd_one(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [column.name for column in ANALYSES["breakdown"].columns]
    rows = [{**dict.fromkeys(names, 25.0), "rank": rank} for rank in range(RANKS)]
    rows[3210]["compute_pct"] = 75.0
    tables = {name: AnalysisTable({}) for name in ANALYSES}
    tables["breakdown"] = stored(rows)
    contents = Contents(Run("r", Path("r")), None, [], {0: PROFILE}, tables, [], [], lambda *_: "COMMAND")
    console = Console(width=width, file=StringIO(), record=True)
    console.print(full_report(contents, width))
    lines = console.export_text().splitlines()
    assert all(len(line) <= width for line in lines)
    assert "GPU time breakdown of the whole capture over 4,096 ranks" in lines
    labels = ["min", "p5", "p50", "p95", "max"]
    assert [line.split()[0] for line in lines if line.startswith(tuple(labels))] == labels
    assert "Ranks that deviate most: Compute (%)" in lines
    (named,) = (line.split() for line in lines if line.startswith("3210"))
    assert named[1:3] == ["66.7", "75.0"]
    assert "… all rows: COMMAND" in lines
    console.print(first_screen(contents, width))
    (first,) = [
        line for line in console.export_text().splitlines() if line.startswith("GPU time breakdown of")
    ]
    assert first in lines  # Without steps there is a table.
    account = Account(
        0,
        1,
        1_000_000,
        1_000_000,
        (AccountPart("", "compute", 1_000_000),),
        StepSet(10),
        10,
        RANKS,
        100.0,
        (),
    )
    monkeypatch.setattr("hpcprof.report.terminal.accounts_of_steps", lambda _: [account])
    console.print(first_screen(contents, width))
    words = " ".join(console.export_text().split())
    assert words.endswith("Tables breakdown All: COMMAND One with all its rows: COMMAND As a page: COMMAND")


def test_every_analysis_of_the_full_report_by_rank_has_a_measure() -> None:
    for analysis in map(ANALYSES.__getitem__, FULL_REPORT):
        names = [column.name for column in analysis.columns]
        if "rank" in names:
            assert measure(analysis) in names, analysis.name
