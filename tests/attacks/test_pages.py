"""Names of ranks, kernels, ranges, files and notes that are to run as scripts, in a real browser."""

from __future__ import annotations

import lzma
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.attacks.test_connections import serving
from tests.command_server import CommandServer
from tests.integration.chromium import browser as browser
from tests.integration.chromium import chromium as chromium

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[1] / "data"
_HOSTILE = "<img src=x onerror=document.title='pwned'><svg onload=document.title='pwned'>'\"--></script>"
_NAMED = "<img src=x onerror=document.title='pwned'>"

_WATCHED = """
window.parsed = [];
const watch = (object, name) => {
  const known = Object.getOwnPropertyDescriptor(object, name);
  const note = (value) => { if (String(value).includes("onerror")) window.parsed.push(name); };
  Object.defineProperty(object, name, known.set
    ? {...known, set(value) { note(value); known.set.call(this, value); }}
    : {...known, value(...given) { given.forEach(note); return known.value.apply(this, given); }});
};
watch(Element.prototype, "innerHTML");
watch(Element.prototype, "outerHTML");
watch(Element.prototype, "insertAdjacentHTML");
watch(Document.prototype, "write");
watch(DOMParser.prototype, "parseFromString");
watch(Range.prototype, "createContextualFragment");
"""
"""Notes each text of the attacker that becomes markup."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, command_server: CommandServer) -> Path:
    """A folder with the results and the report of two ranks, in which each name is hostile."""
    made = tmp_path_factory.mktemp("pages")
    profiles = made / _NAMED
    profiles.mkdir()
    for rank in (0, 1):
        export = profiles / f"{_NAMED}rank{rank}.sqlite"
        export.write_bytes(lzma.decompress((DATA / f"sp_bf16_rank{rank}.sqlite.xz").read_bytes()))
        with sqlite3.connect(export) as connection:
            connection.execute("UPDATE StringIds SET value = value || ?", (_HOSTILE,))
            connection.execute("UPDATE NVTX_EVENTS SET text = text || ? WHERE text IS NOT NULL", (_HOSTILE,))
            connection.execute(
                "UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE name = 'Hostname'", (f"n{rank}{_HOSTILE}",)
            )
    for command in (
        ["collect", f"./{_NAMED}", "--program", _HOSTILE],
        ["report", f"./{_NAMED}", "--html", "report.html"],
        ["report", f"./{_NAMED}", "--html", "scrubbed.html", "--scrub"],
    ):
        done = command_server.run(command, made, 480)
        assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    context.add_init_script(_WATCHED)
    yield context.new_page()


def looked_at(page: Page, address: str) -> None:
    """Open a page, unfold and point at all that it has, and check that no name became an element."""
    page.goto(address, timeout=120_000)
    page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for at in range(0, 1200, 150):
        page.mouse.move(200 + at / 3, 100 + at / 2)
        page.mouse.wheel(0, 300)
    for drawing in page.locator("canvas").all()[:4]:
        if drawing.is_visible():
            drawing.hover(force=True)
            drawing.click(force=True)
    assert page.evaluate("window.parsed") == []
    assert page.locator("img[src=x], svg[onload]").count() == 0
    assert page.title() != "pwned"


@pytest.mark.parametrize("name", ["report.html", "scrubbed.html"])
def test_no_name_in_a_report_becomes_markup(name: str, folder: Path, page: Page) -> None:
    looked_at(page, (folder / name).as_uri())
    assert "onerror" in page.content()


def test_no_name_on_a_served_page_becomes_markup(folder: Path, page: Page) -> None:
    with serving(folder / "runs", 1024, 60) as (port, _):
        at = f"http://127.0.0.1:{port}"
        page.goto(f"{at}/api/runs")
        (run,) = page.evaluate("fetch('/api/runs').then((one) => one.json())")["runs"]
        own = f"/runs/{run['run']}"
        for path in ("/runs", own, f"{own}/tables/kernels", f"{own}/live", "/history", "/sql"):
            looked_at(page, f"{at}{path}")
        page.fill("textarea", "SELECT program FROM runs")
        page.keyboard.press("Control+Enter")
        page.locator("form button").first.click()
        page.get_by_text("onerror").first.wait_for()
        assert page.evaluate("window.parsed") == []
        assert page.locator("img[src=x]").count() == 0 and page.title() != "pwned"
