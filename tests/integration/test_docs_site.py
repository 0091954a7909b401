"""The documentation site."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from hpcprof.cli.main import COMMANDS

pytest.importorskip("sphinx")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site() -> Path:
    """Build the site where ``make docs`` does, which takes little time after it; a warning is an error."""
    folder = ROOT / "build/docs"
    options = ["--quiet", "--fail-on-warning", "--doctree-dir", str(ROOT / "build/doctrees")]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(folder)],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert pages
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\bsrc=\"([^\"]*)", text)
        loaded += re.findall(r"<link[^>]*\bhref=\"([^\"]*)", text)
        assert loaded or page.parent.name == "gallery"  # a report is one file
        assert not [address for address in loaded if "//" in address]
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\W?(https?:)?//|@import", sheet.read_text(encoding="utf-8")), sheet


def test_every_command_has_a_section(site: Path) -> None:
    text = (site / "reference/commands.html").read_text(encoding="utf-8")
    assert set(COMMANDS) <= set(re.findall(r'<section id="hpcprof-([\w-]+)">', text))


def test_copy_buttons_take_the_commands_without_prompts_and_output(site: Path, browser: Browser) -> None:
    page = browser.new_context().new_page()
    # Instead of the clipboard, which a file has no access to.
    page.add_init_script(
        "navigator.clipboard = undefined; document.addEventListener('copy', () => {"
        "const area = document.activeElement; window.copied = area.value || String(getSelection()) })"
    )
    page.goto((site / "tutorial/first-report.html").as_uri())
    copied = []
    for button in page.locator("div.highlight-console button.copybtn").all():
        button.dispatch_event("click")
        copied.append(page.evaluate("window.copied").split("\n"))
    assert copied[0] == ["python3 -m venv hpcprof-env", ". hpcprof-env/bin/activate", "pip install ."]
    assert copied[1] == ["hpcprof open examples/first-report"]
