"""The HTML report in a real browser, without a network."""

from __future__ import annotations

import lzma
import sqlite3
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from hpcprof.report.contents import Contents
from hpcprof.report.page.page import html_report
from hpcprof.report.page.sweep_page import html_sweep
from hpcprof.results.across.sweeps import SweepPoint
from hpcprof.runs.directory import Run
from hpcprof.submit.runs.failures import RankFailure
from tests.command_server import CommandServer
from tests.conftest import Hpcprof
from tests.integration.chromium import barriers, open_page

DATA = Path(__file__).parents[1] / "data"
HOSTILE = (
    "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">&lt;b>"
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, command_server: CommandServer) -> Path:
    """The report of two ranks, one kernel of which has a name that tries to run."""
    folder = tmp_path_factory.mktemp("page")
    profiles = folder / "profiles"
    profiles.mkdir()
    for rank in (0, 1):
        export = profiles / f"rank{rank}.sqlite"
        export.write_bytes(lzma.decompress((DATA / f"sp_bf16_rank{rank}.sqlite.xz").read_bytes()))
        with sqlite3.connect(export) as connection:
            connection.execute("UPDATE StringIds SET value = ? WHERE value LIKE 'nvjet%'", (HOSTILE,))
    done = command_server.run(["report", "profiles", "--html", "report.html"], folder, 480)
    assert done.returncode == 0, done.stderr
    return folder / "report.html"


def test_a_name_in_a_profile_never_runs_and_nothing_is_requested(page: Path, browser: Browser) -> None:
    opened = open_page(browser, page)
    opened.page.locator("#table-kernels summary").click()
    assert opened.page.title().startswith("hpcprof: profiles-")
    assert opened.page.locator("img").count() == 0
    assert opened.requests == [page.as_uri()]
    assert opened.complaints == []
    kernels = opened.page.locator("#table-kernels")
    kernels.get_by_label("Filter").fill("pwned")
    kernels.locator(".fold").first.click()
    assert kernels.locator(".name").first.inner_text() == HOSTILE


def test_a_line_in_the_log_of_a_failed_rank_never_runs(tmp_path: Path, browser: Browser) -> None:
    failures = [RankFailure(3, 1, ["Traceback (most recent call last):", f"ValueError: {HOSTILE}"])]
    contents = Contents(
        Run("r", Path("r")), None, failures, {}, {}, [], [HOSTILE], lambda *options: options[-1]
    )
    failed = tmp_path / "failed.html"
    failed.write_text(html_report(contents), encoding="utf-8")
    opened = open_page(browser, failed)
    assert opened.page.title() == "hpcprof: r"
    assert opened.page.locator("img").count() == 0
    assert (opened.requests, opened.complaints) == ([failed.as_uri()], [])
    assert opened.page.locator(".failure pre").inner_text().endswith(HOSTILE)


def test_tables_sort_filter_and_save_all_rows(page: Path, browser: Browser) -> None:
    opened = open_page(browser, page).page
    kernels = opened.locator("#table-kernels")
    kernels.locator("summary").click()
    kernels.get_by_role("button", name="Instances").click()
    head = kernels.get_by_role("columnheader", name="Instances")
    assert head.get_attribute("aria-sort") == "descending"
    place = kernels.get_by_role("columnheader").all_inner_texts().index("Instances")
    shown = [int(text) for text in kernels.locator(f"td:nth-child({place + 1})").all_inner_texts()]
    assert shown == sorted(shown, reverse=True) and len(set(shown)) > 1
    with opened.expect_download() as download:
        kernels.get_by_role("button", name="Save").click()
    head_line, *lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    assert head_line.startswith("rank,name,instances,total_ns")
    assert len(lines) == len(shown)
    kernels.get_by_label("Filter").fill("nccl")
    assert 0 < kernels.locator("tbody tr").count() < len(shown)
    assert f"among {len(shown)}" in kernels.locator("output").inner_text()


def test_nothing_runs_off_a_phone_and_a_finding_leads_to_its_table(page: Path, browser: Browser) -> None:
    opened = open_page(browser, page, viewport={"width": 360, "height": 800}).page
    opened.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    opened.wait_for_selector("#table-step_account tbody tr")
    for text in ("p", ".legend small"):
        opened.locator(text).first.evaluate(
            "(it) => it.after(Object.assign(it.cloneNode(), {textContent: 'x'.repeat(240)}))"
        )
    assert opened.evaluate("document.documentElement.scrollWidth") == 360
    gutter = opened.locator(".timeline-gutter").bounding_box()
    stream = opened.locator(".timeline-track small").first.bounding_box()
    assert gutter and stream and stream["x"] + stream["width"] <= gutter["x"] + gutter["width"]
    opened.evaluate("document.getElementById('table-step_account').open = false")
    opened.get_by_role("link", name="Account of each step").first.click()
    assert opened.locator("#table-step_account").get_attribute("open") is not None


@pytest.mark.parametrize("width", [390, 1280])
def test_no_barrier_is_on_the_page(page: Path, browser: Browser, web_packages: Path, width: int) -> None:
    opened = open_page(browser, page, viewport={"width": width, "height": 800}, bypass_csp=True)
    assert barriers(opened, web_packages) == []


def test_the_table_of_a_sweep_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    points = [
        SweepPoint(
            f"20261121-020000-train-0abc.{i}", f"--batch-size {i} --learning-rate 0.01", ns, 9.5, ratio
        )
        for i, (ns, ratio) in enumerate([(126.4e6, 1.0), (212.5e6, 1.68)])
    ]
    (tmp_path / "sweep.html").write_text(html_sweep("20261121-020000-train-0abc", points))
    opened = open_page(browser, tmp_path / "sweep.html", viewport={"width": 390, "height": 800}).page
    widths = opened.locator(".scroll").evaluate("(it) => [it.scrollWidth, it.clientWidth]")
    assert widths[0] <= widths[1]


def test_the_legends_of_a_printed_page_keep_their_colours(page: Path, browser: Browser) -> None:
    opened = open_page(browser, page).page
    opened.emulate_media(media="print")
    patches = opened.locator(".swatch, .timeline-colour, figure .legend span")
    assert patches.count() > 10
    kept = patches.evaluate_all("all => all.map((one) => getComputedStyle(one).printColorAdjust)")
    assert set(kept) == {"exact"}


def test_the_button_of_a_finding_selects_what_is_to_blame(
    tmp_path: Path, browser: Browser, hpcprof: Hpcprof
) -> None:
    (tmp_path / "profiles").mkdir()
    for rank in (0, 1):
        packed = DATA / f"planted_late_rank_gpu_rank{rank}.sqlite.xz"
        (tmp_path / "profiles" / f"rank{rank}.sqlite").write_bytes(lzma.decompress(packed.read_bytes()))
    assert hpcprof("report", "profiles", "--html", "report.html").returncode == 0
    opened = open_page(browser, tmp_path / "report.html")
    button = opened.page.get_by_role("button", name="Show rank").first
    blamed = [button.get_attribute(f"data-{of}") for of in ("name", "rank", "step")]
    button.click()
    selected = opened.page.get_by_role("region", name="what is selected")
    facts = dict(
        zip(selected.locator("dt").all_inner_texts(), selected.locator("dd").all_inner_texts(), strict=True)
    )
    assert [facts["Name"], facts["Rank"], facts["Step"]] == blamed
    timeline = opened.page.locator(".timeline-scroller").bounding_box()
    assert timeline and timeline["y"] < 900
    # The address names what is shown, and opens it; another step that is in sight later replaces it.
    address = opened.page.url
    assert address.endswith(f"report.html#finding=1&rank={blamed[1]}&step={blamed[2]}")
    opened.page.goto("about:blank")
    opened.page.goto(address)
    opened.page.wait_for_selector("html[data-ready]", state="attached")
    assert selected.locator("dd").first.inner_text() == blamed[0] and opened.page.url == address
    opened.page.locator(".timeline-scroller").press("d")
    for _ in range(20):
        opened.page.keyboard.press("d")
    opened.page.wait_for_function("address => location.href !== address", arg=address)
    assert opened.page.url.partition("#")[2].startswith(f"rank={blamed[1]}")


def test_on_paper_every_table_is_open_and_no_button_is_there(page: Path, browser: Browser) -> None:
    opened = open_page(browser, page, color_scheme="dark").page
    opened.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    opened.emulate_media(media="print")
    assert opened.locator("details:not([open])").count() == 0
    assert opened.locator("html").get_attribute("data-theme") == "light"
    assert not opened.get_by_role("button", name="Save").first.is_visible()
    opened.set_viewport_size({"width": 680, "height": 960})
    assert opened.locator(".timeline-gutter").get_by_text("Rank 0").is_visible()
    for drawing in opened.locator(".heat-map-area canvas, .timeline canvas, .chart svg").all():
        box = drawing.bounding_box()
        assert box and box["x"] + box["width"] <= 680
    opened.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert opened.locator("details:not([open])").count() > 0
