"""The page of a study of slowdown in a real browser, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from hpcprof.analysis.framework.outcome import Row
from hpcprof.report.page.study_page import html_study, study_charts
from hpcprof.study.slowdown_tables import SlowdownTables
from tests.integration.chromium import open_page
from tests.integration.test_html_report import HOSTILE

COUNTS: Row = {"alone_n": 50, "alone_med_ns": 1000.0, "overlapped_n": 45, "overlapped_med_ns": 1500.0}
RATIO: Row = {"slowdown": 1.5, "ci_low": 1.4, "ci_high": 1.6}
UNSURE: Row = {"slowdown": 1.5, "ci_low": None, "ci_high": None}


def point(step: int, **more: str) -> Row:
    return {
        **more,
        **{"runs": 3, "alone_step_p50_ns": 90, "step_p50_ns": step, "step_min_ns": step, "step_max_ns": 200},
        **{"exposed_comm_pct": 1.5, "slowdown_within": None},
    }


def kernel(name: str | None, figures: Row, **more: str) -> Row:
    shape = {"rank": 0, "name": name, "grid": "1 1 1", "block": "1 1 1"}
    return {**more, **shape, **COUNTS, **figures, "overlap_pct": 40.0}


def group(family: str, covered: str, share: float, figures: Row, **more: str) -> Row:
    place = {"rank": 1, "family": family, "covered": covered, "overlap_pct": share}
    return {**more, **place, **COUNTS, **figures}


def tables(hostile: str = HOSTILE, **more: str) -> SlowdownTables:
    """A study whose kernel, sweep and values have names that try to run."""
    return SlowdownTables(
        name=HOSTILE,
        keys=tuple(more),
        by_point=[point(100, **more), point(120, **more)],
        pairs=[
            kernel("(total)", RATIO, **more),
            kernel("(control)", RATIO, **more),
            kernel(hostile, RATIO, **more),
            kernel(None, UNSURE, **more),
        ],
        by_overlap=[
            group("(all)", "0 %", 0.0, RATIO, **more),
            group("elementwise", ">= 90 %", 99.0, RATIO, **more),
            group("other", ">= 90 %", 98.0, UNSURE, **more),
        ],
        sentence=f"best: {HOSTILE}" if more else "",
    )


@pytest.mark.slow
@pytest.mark.parametrize("sweep", [{}, {HOSTILE: HOSTILE}], ids=["one point", "sweep"])
def test_the_charts_are_drawn_and_no_name_ever_runs(
    sweep: dict[str, str], tmp_path: Path, browser: Browser
) -> None:
    path = tmp_path / "study.html"
    path.write_text(html_study(tables(**sweep)), encoding="utf-8")
    opened = open_page(browser, path)
    page = opened.page
    assert page.title().startswith("hpcprof: </script>")
    assert page.locator("img").count() == 0
    assert opened.requests == [path.as_uri()]
    assert opened.complaints == []
    charts = page.locator("figure.chart")
    assert [title.partition(":")[0] for title in charts.locator("h2").all_inner_texts()] == [
        *(["Points of the sweep"] if sweep else []),
        *("Slowdown by overlap", "Slowdown by kernel family", "Kernel slowdown while communication runs"),
    ]
    # Three groups, two of them beside communication, and two kernels; of each of two points 3 figures.
    drawn = charts.locator("g[data-mark=dot] > *")
    assert drawn.count() == 3 + 2 + 2 + (6 if sweep else 0)
    for text in ("n = 45", "elementwise", "kernel time covered by communication"):
        assert text in page.locator("[data-part=charts]").inner_text()


def test_what_has_no_interval_has_no_bar() -> None:
    by_share, by_family, kernels = study_charts(tables())
    ends: list[Any] = [(one["low"], one["high"]) for one in by_share["points"]]
    assert ends == [(1.4, 1.6), (1.4, 1.6), (None, None)]
    assert [row["points"][0]["low"] for row in by_family["rows"]] == [1.4, None]
    assert [(row["label"], row["points"][0]["high"]) for row in kernels["rows"]][1] == ("(no name)", None)


def test_a_study_without_kernels_to_compare_has_its_tables() -> None:
    text = html_study(SlowdownTables("name", (), [point(100)], [], []))
    assert "charts-data" not in text
    assert "Runs with and without communication" in text
