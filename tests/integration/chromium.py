"""Pages in a real browser: one Chromium for all tests, which reaches no network but loopback."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from asyncio import events
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

WEB = Path(__file__).parents[2] / "hpcprof/report/web"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


@dataclass
class OpenPage:
    """A page that has been opened.

    Attributes
    ----------
    page : Page
        Playwright's page.
    requests : list of str
        The addresses of all requests, that of the page itself first.
    complaints : list of str
        Errors of scripts, and what the page's policy blocked.
    """

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The system's Chromium, for the fixture `browser`; without it the tests are skipped, but not in CI."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        assert not os.environ.get("CI"), "CI installs chromium"
        pytest.skip("no chromium on the PATH")
    with sync_playwright() as playwright:
        # Under coverage and on a busy machine the start takes a while.
        started = playwright.chromium.launch(executable_path=path, args=[*_FLAGS], timeout=120_000)
        loop = events._get_running_loop()
        events._set_running_loop(None)
        yield started
        events._set_running_loop(loop)
        started.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """Chromium, for one test.

    Playwright leaves its event loop in place as the thread's running one. It is taken away after each test,
    because other tests call `asyncio.run`, and put back before the next.
    """
    loop = chromium._impl_obj._loop
    events._set_running_loop(loop)
    yield chromium
    for context in chromium.contexts:
        context.close()
    events._set_running_loop(None)


def open_page(browser: Browser, page: Path | str, **options: Any) -> OpenPage:
    """Open a page and wait until its script has mounted every part.

    Parameters
    ----------
    browser : Browser
    page : Path or str
        A file, or an address.
    **options
        Those of Playwright's ``new_context``, such as ``viewport`` and ``color_scheme``.
    """
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    context.set_default_timeout(60_000)
    opened = OpenPage(context.new_page())
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.on(
        "console", lambda said: opened.complaints.append(said.text) if said.type == "error" else None
    )
    opened.page.goto(page.as_uri() if isinstance(page, Path) else page, timeout=120_000)
    opened.page.wait_for_selector("html[data-ready]", state="attached")
    return opened


def barriers(opened: OpenPage, web_packages: Path) -> list[str]:
    """Return what axe finds on a page in light and dark, which must be open with ``bypass_csp``."""
    page = opened.page
    page.add_script_tag(path=web_packages / "node_modules/axe-core/axe.min.js")
    found = []
    for rules in ({}, {"runOnly": ["color-contrast"]}):
        done = page.evaluate("(options) => axe.run(options)", {"resultTypes": ["violations"], **rules})
        found += [f"{one['id']}: {one['nodes'][0]['html']}" for one in done["violations"]]
        page.locator('[data-action="theme"]').click()
    return found


@pytest.fixture(scope="session")
def web_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the pages' script, with the packages that its lock file names, for all workers."""
    npm = shutil.which("npm")
    if npm is None:
        assert not os.environ.get("CI"), "CI installs npm"
        pytest.skip("no npm on the PATH")
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / "web.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "web.done").exists():
            shutil.copytree(
                WEB, folder / "web", ignore=shutil.ignore_patterns("node_modules", "dist"), dirs_exist_ok=True
            )
            command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
            done = subprocess.run(command, cwd=folder / "web", capture_output=True, text=True)
            if done.returncode and not os.environ.get("CI"):
                pytest.skip(f"npm cannot install the packages: {done.stderr[-300:]}")
            assert done.returncode == 0, done.stderr
            (folder / "web.done").touch()
    return folder / "web"
