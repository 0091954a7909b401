"""Sizes of pages and the times that they take to open: ``python benchmarks/page.py PAGE.html…``.

A page is open when its script has drawn every part. Each is opened five times by the Chromium on the PATH;
printed are the median, and the requests that left the page: none.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, sync_playwright

TIMES = 5


def opened(browser: Browser, page: Path) -> tuple[float, int]:
    """Return the milliseconds until a page is open, and its requests besides that for itself."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    tab = context.new_page()
    requests: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    # The page notes the moment itself, since Playwright may look later.
    tab.add_init_script(
        "new MutationObserver(() => { if ('ready' in document.documentElement.dataset) "
        "window.openAt ??= performance.now(); }).observe(document, {attributes: true, subtree: true});"
    )
    tab.goto(page.as_uri(), timeout=120_000)
    tab.wait_for_selector("html[data-ready]", state="attached", timeout=120_000)
    taken = float(tab.evaluate("window.openAt"))
    context.close()
    return taken, len(requests) - 1


def sizes(page: Path) -> tuple[int, int]:
    """Return the bytes of a page and those of the data inside it."""
    text = page.read_text(encoding="utf-8")
    data = re.findall(r'<script type="application/x-hpcprof"[^>]*>(.*?)</script>', text)
    return page.stat().st_size, sum(map(len, data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    pages = [page.resolve() for page in parser.parse_args().pages]
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("no Chromium on the PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for page in pages:
            found = [opened(browser, page) for _ in range(TIMES)]
            whole, data = sizes(page)
            print(
                f"{page.name}: {whole / 1e6:.2f} MB, of which data {data / 1e6:.2f} MB; open after "
                f"{median(taken for taken, _ in found) / 1000:.2f} s (median of {TIMES}); "
                f"{max(requests for _, requests in found)} requests"
            )
        browser.close()


if __name__ == "__main__":
    main()
