"""The page of the history of a metric."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from hpcprof.report.page.history_page import history_charts, html_history
from hpcprof.results.across.history import History, HistoryPoint
from tests.unit.report.page.test_page import rows_of

HOSTILE = "</script><script>alert(1)</script>"
TIME = datetime(2026, 11, 22, tzinfo=timezone.utc)
HISTORY = History(
    "step_ns",
    "train, 2 ranks",
    (
        HistoryPoint("r0", None, 1e6, (), None),
        HistoryPoint("r1", TIME, 1e6, ("base",), HOSTILE),
        HistoryPoint(HOSTILE, TIME + timedelta(days=1), 1.05e6, (), None, 0.9, 5.0),
    ),
)


def test_a_chart_has_the_runs_of_known_time_and_the_changes() -> None:
    (chart,) = history_charts([HISTORY])
    begin = TIME.timestamp()
    assert [(point["time"] - begin, point["value"]) for point in chart["points"]] == [
        (0, 1e6),
        (86400, 1.05e6),
    ]
    assert chart["changes"] == [{"time": begin + 86400, "probability": 0.9, "label": "+5.0 %"}]
    assert (chart["note"], chart["unit"]) == ("1 run of unknown time left out", "ns")


def test_a_history_of_one_run_has_a_chart_only_if_it_is_the_longest() -> None:
    share = History("overlap_pct", "eval", HISTORY.points[1:2])
    assert [chart["unit"] for chart in history_charts([share, share])] == ["pct"]
    assert history_charts([replace(share, points=HISTORY.points[:1])]) == []


def test_the_table_has_the_newest_run_first_with_the_value_in_its_unit() -> None:
    page = html_history([HISTORY], ["r9 cannot be read."])
    columns = {column["name"]: column for column in rows_of(page, "history-1")["columns"]}
    assert columns["value"]["texts"] == ["1.050 ms", "1.000 ms", "1.000 ms"]
    assert columns["change_probability"]["texts"] == ["90.0 %", "–", "–"]
    assert "+5.0 % (probability 90.0 %)" in page
    assert "r9 cannot be read." in page
    assert HOSTILE not in page


def test_a_table_has_the_setup_where_its_heading_has_another_text() -> None:
    single = replace(HISTORY, setup="eval", points=HISTORY.points[1:2])
    page = html_history([HISTORY, single])
    names = [
        [column["name"] for column in rows_of(page, f"history-{part}")["columns"]] for part in (1, "single")
    ]
    assert ["setup" in columns for columns in names] == [False, True]


def test_runs_are_links_where_they_have_pages() -> None:
    (column,) = [
        column
        for column in rows_of(html_history([HISTORY], run_page=lambda run: f"/{len(run)}"), "history-1")[
            "columns"
        ]
        if "links" in column
    ]
    assert (column["name"], column["links"]) == ("run", [f"/{len(HOSTILE)}", "/2", "/2"])


def test_series_of_one_run_share_a_table_and_a_sentence_says_what_is_apart() -> None:
    single = [
        replace(HISTORY, setup=f"train, batch {size}", points=HISTORY.points[1:2], apart={"batch": size})
        for size in ("16", "32")
    ]
    page = html_history([replace(HISTORY, apart={"batch": "8"}), *single])
    columns = {column["name"]: column for column in rows_of(page, "history-single")["columns"]}
    assert [column["values"] for name, column in columns.items() if name == "run"] == [["r1", "r1"]]
    # The heading of a table has the setup of a single history, and that of the page the metric.
    assert ["setup" in columns, "metric" in columns] == [True, False]
    assert "setup" not in {column["name"] for column in rows_of(page, "history-1")["columns"]}
    assert "3 series, because runs differ in batch (8, 16, 32)." in page
    assert "of one run, " not in page
