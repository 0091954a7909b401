"""The heat map and the charts of a page in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.report.page.page import html_report
from tests.data.parallel_program import Program
from tests.data.simulated_account import contents_of, simulated_account
from tests.integration.chromium import OpenPage, open_page

pytestmark = pytest.mark.slow

STEPS = 12
HOSTILE = "<img src=x onerror=document.title='pwned'>"
SHOWN = """() => {
  window.shown = [];
  document.addEventListener("hpcprof:show", (event) => window.shown.push(event.detail));
}"""
BRIGHTNESS = """(canvas) => {
  const context = canvas.getContext("2d");
  const rows = [];
  for (let y = 0; y < canvas.height - 40; y += 1) {
    const line = context.getImageData(70, y, canvas.width - 76, 1).data;
    let sum = 0;
    for (let place = 0; place < line.length; place += 4) sum += line[place] + line[place + 1];
    rows.push(sum / (line.length / 4));
  }
  return rows;
}"""


def written(tmp_path: Path, tables: dict[str, AnalysisTable]) -> Path:
    path = tmp_path / "page.html"
    path.write_text(html_report(contents_of(tables)), encoding="utf-8")
    return path


def late_rank(browser: Browser, tmp_path: Path, ranks: int, late: int) -> OpenPage:
    program = Program(ranks, 100 * STEPS, slow={late: 6.0})
    return open_page(browser, written(tmp_path, simulated_account(program)))


def brightest(page: Page) -> tuple[int, int]:
    """Return the row of the map that is brightest over all steps, and the number of its rows."""
    rows: list[float] = page.locator(".heat-map-area canvas").evaluate(BRIGHTNESS)
    height = page.locator(".heat-map-area canvas").bounding_box()
    assert height is not None
    return rows.index(max(rows)), round(height["height"]) - 34


@pytest.mark.parametrize(("ranks", "late"), [(4, 2), (4096, 1234)])
def test_a_late_rank_is_seen_among_any_number(
    browser: Browser, tmp_path: Path, ranks: int, late: int
) -> None:
    opened = late_rank(browser, tmp_path, ranks, late)
    page = opened.page
    page.evaluate(SHOWN)
    area = page.locator(".heat-map-area")
    # Sorted by lateness, it comes first.
    assert brightest(page)[0] < 18
    page.get_by_label("Sort ranks by").select_option("rank")
    row, height = brightest(page)
    assert row == pytest.approx((late + 0.5) * height / ranks, abs=10)
    box = area.bounding_box()
    assert box is not None
    # The ninth of twelve steps.
    area.click(position={"x": 64 + (box["width"] - 64) * 8.5 / STEPS, "y": row + 0.5})
    assert page.evaluate("window.shown") == [{"rank": late, "step": 8}]
    said = page.locator(".heat-map-said").inner_text()
    assert said.startswith(f"Rank {late} on node-{late // 8:03d}, step 8: lateness 6.") or "5.9" in said
    assert opened.complaints == []


def test_the_map_is_used_without_a_mouse(browser: Browser, tmp_path: Path) -> None:
    page = late_rank(browser, tmp_path, 20, 5).page
    page.evaluate(SHOWN)
    said = page.locator(".heat-map-said")
    page.locator(".heat-map-area").focus()
    assert said.inner_text().startswith("Rank 5 on node-000, step 0: lateness")
    page.get_by_label("Sort ranks by").select_option("rank")
    page.locator(".heat-map-controls select").first.select_option("compute")
    page.locator(".heat-map-area").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp", "End", "Enter"):
        page.keyboard.press(key)
    assert page.evaluate("window.shown") == [{"rank": 1, "step": STEPS - 1}]
    assert said.inner_text().startswith(f"Rank 1 on node-000, step {STEPS - 1}: compute ")


def test_one_huge_value_does_not_hide_a_late_rank(browser: Browser, tmp_path: Path) -> None:
    tables = simulated_account(Program(64, 100 * STEPS, slow={40: 6.0}))
    waits: list[Any] = tables["step_account"].columns["wait_for_peer_ns"]
    # One step in which one rank waits an hour less than the others.
    waits[64 * 3 : 64 * 4] = [time + 3_600_000_000_000 for time in waits[64 * 3 : 64 * 4]]
    waits[64 * 3 + 7] = 0
    page = open_page(browser, written(tmp_path, tables)).page
    page.get_by_label("Sort ranks by").select_option("rank")
    row, height = brightest(page)
    assert row == pytest.approx(40.5 * height / 64, abs=6)


def test_no_axis_of_ratios_reaches_below_0_or_as_far_as_one_wide_interval(
    browser: Browser, tmp_path: Path
) -> None:
    row = {"rank": 0, "name": "gemm", "grid": "1", "block": "1", "alone_n": 9, "overlapped_n": 9}
    row |= {"alone_med_ns": 900, "overlapped_med_ns": 1000}
    rows = [row | {"slowdown": 1.1, "ci_low": -9.0, "ci_high": 87.0}]
    rows += [row | {"slowdown": 1.2, "ci_low": 1.1, "ci_high": 1.3, "rank": 1}]
    tables = simulated_account(Program(2, 100 * STEPS))
    tables |= {"slowdown": AnalysisTable({key: [one[key] for one in rows] for key in rows[0]})}
    page = open_page(browser, written(tmp_path, tables)).page
    chart = page.locator("#chart-slowdown svg")
    marks = chart.locator("[data-mark='x-axis tick label'] text")
    ticks = [*map(float, marks.all_text_contents())]
    assert ticks and min(ticks) >= 0 and max(ticks) < 2
    # Where the axis ends, an arrow says that the interval goes on.
    assert {"▸", "◂"} <= {*chart.locator("text").all_text_contents()}


def test_charts_are_drawn_at_any_width_and_names_are_only_text(browser: Browser, tmp_path: Path) -> None:
    kernels: dict[str, list[Any]] = {
        "rank": [0, 0],
        "name": [HOSTILE, "ncclDevKernel_AllReduce"],
        "class": ["comp", "comm"],
        "instances": [4, 5],
        "total_ns": [7_000_000, 5_000_000],
    }
    phases: dict[str, list[Any]] = {name: [7_000_000, 7_000_000] for name in ("p50_ns", "p95_ns", "mean_ns")}
    phases |= {"rank": [0, 1], "phase": [HOSTILE, HOSTILE], "steps": [9, 9]}
    tables = simulated_account(Program(20, 100 * STEPS, slow={3: 6.0}))
    tables |= {"kernels": AnalysisTable(kernels), "phases": AnalysisTable(phases)}
    page = written(tmp_path, tables)
    for width in (1280, 360):
        opened = open_page(browser, page, viewport={"width": width, "height": 700}, color_scheme="dark")
        charts = opened.page.locator("[data-part=charts]")
        assert charts.locator("figure.chart svg").count() == charts.locator("figure.chart").count() == 5
        titles = charts.locator("h2").all_inner_texts()
        assert any(title.startswith("Time of a step by rank: rank 3 works") for title in titles)
        # People write 5 ms, and not 5,000 µs.
        assert "5 ms" in charts.locator("#chart-kernels").inner_text()
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.page.locator("img").count() == 0
        assert opened.complaints == []


def test_the_name_of_a_slow_step_lies_within_the_chart(browser: Browser, tmp_path: Path) -> None:
    walls = [20_000_000 if step in (2, 39) else 10_000_000 for step in range(40)]
    steps: dict[str, list[Any]] = dict.fromkeys(("wall_ns", "gpu_span_ns"), 2 * walls)
    steps |= {"rank": [0] * 40 + [1] * 40, "step": 2 * [*range(40)]}
    tables = simulated_account(Program(2, 100 * STEPS)) | {"step_times": AnalysisTable(steps)}
    opened = open_page(browser, written(tmp_path, tables))
    named = opened.page.locator("[data-part=charts] text", has_text=", rank 0: 20")
    sides = [one.evaluate("(text) => getComputedStyle(text).textAnchor") for one in named.all()]
    assert sorted(sides) == ["end", "start"]
