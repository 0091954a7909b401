"""The page of a comparison, in a real browser."""

from __future__ import annotations

import json
import lzma
import sqlite3
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.command_server import CommandServer
from tests.integration.chromium import barriers, open_page
from tests.page_blocks import blocks

DATA = Path(__file__).parents[1] / "data"
HOSTILE = "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
SIDES = ("planted_host_work", "planted_late_rank_gpu")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, command_server: CommandServer) -> Path:
    """Two runs of two ranks; in the second one a kernel has a name that tries to run."""
    folder = tmp_path_factory.mktemp("comparison")
    for side in SIDES:
        (folder / side).mkdir()
        for rank in (0, 1):
            export = folder / side / f"rank{rank}.sqlite"
            export.write_bytes(lzma.decompress((DATA / f"{side}_rank{rank}.sqlite.xz").read_bytes()))
            if side == SIDES[1]:
                with sqlite3.connect(export) as connection:
                    connection.execute(
                        "UPDATE StringIds SET value = ? WHERE value LIKE '%elementwise_kernel%'", (HOSTILE,)
                    )
    for command in (["collect", *SIDES], ["compare", *SIDES, "--force", "--html", "comparison.html"]):
        assert command_server.run(command, folder, 480).returncode == 0
    return folder / "comparison.html"


def test_a_comparison_shows_accounts_and_a_waterfall_that_add_up_and_runs_nothing(
    page: Path, browser: Browser
) -> None:
    found = json.loads(blocks(page.read_text(encoding="utf-8"))["waterfall-data"])
    assert sum(part["ns"] for part in found["parts"]) == found["to"] - found["from"] != 0
    opened = open_page(browser, page)
    assert opened.requests == [page.as_uri()]
    assert opened.complaints == []
    assert opened.page.locator("img").count() == 0
    assert opened.page.title().startswith("hpcprof: planted_late_rank_gpu-")
    kernels = opened.page.locator("#table-kernel_difference")
    assert kernels.locator("[title*=onerror]").count()
    drawn = opened.page.locator('[data-part="waterfall"] svg')
    assert drawn.locator("rect").count() == len(found["parts"]) + 2
    account, waterfall = (opened.page.locator(one).bounding_box() for one in ("#account", "svg >> nth=0"))
    assert account and waterfall and account["y"] < waterfall["y"]
    assert opened.page.locator("#account .account").count() == 2


def test_no_barrier_is_on_the_page(page: Path, browser: Browser, web_packages: Path) -> None:
    assert barriers(open_page(browser, page, bypass_csp=True), web_packages) == []


def test_both_timelines_show_their_median_steps_below_each_other_and_move_together(
    page: Path, browser: Browser
) -> None:
    opened = open_page(browser, page).page
    # How far the median step begins from the left edge, and how long the extent in sight is.
    seen = """["a", "b"].map((side) => {
        const { view, overview } = document.querySelector(`[data-part="timeline-${side}"]`).timeline;
        return [overview.places[0].start - view.start, view.end - view.start].map(Math.round);
    })"""
    first = opened.evaluate(seen)
    assert first[0] == first[1]
    opened.locator('[data-part="timeline-b"] .timeline-scroller').press("w")
    second = opened.evaluate(seen)
    assert second[0] == second[1] != first[1]
    below = [opened.locator(f'[data-part="timeline-{side}"] canvas').bounding_box() for side in "ab"]
    assert below[0] and below[1] and below[0]["x"] == below[1]["x"] and below[0]["y"] < below[1]["y"]
