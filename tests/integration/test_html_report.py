"""The HTML report in a real browser, without a network."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Hpcprof

DATA = Path(__file__).parents[1] / "data"
HOSTILE = (
    "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">&lt;b>"
)
pytestmark = pytest.mark.slow


@pytest.fixture
def page(hpcprof: Hpcprof, tmp_path: Path) -> Path:
    """The report of two ranks, one kernel of which has a name that tries to run."""
    folder = tmp_path / "profiles"
    folder.mkdir()
    for rank in (0, 1):
        export = folder / f"rank{rank}.sqlite"
        export.write_bytes(lzma.decompress((DATA / f"sp_bf16_rank{rank}.sqlite.xz").read_bytes()))
        with sqlite3.connect(export) as connection:
            connection.execute("UPDATE StringIds SET value = ? WHERE value LIKE 'nvjet%'", (HOSTILE,))
    hpcprof("collect", "profiles")
    done = hpcprof("report", "profiles", "--html", "report.html")
    assert done.returncode == 0, done.stderr
    return tmp_path / "report.html"


def browse(page: Path, tmp_path: Path) -> str:
    """Return the page's elements after its scripts have run."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        assert not os.environ.get("CI"), "CI installs chromium"
        pytest.skip("no chromium on the PATH")
    done = subprocess.run(
        [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={tmp_path / 'browser'}",
            "--virtual-time-budget=15000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=480,
    )
    return done.stdout


def test_the_charts_are_drawn_and_a_name_in_a_profile_never_runs(page: Path, tmp_path: Path) -> None:
    elements = browse(page, tmp_path)
    drawn = re.sub(r"<script.*?</script>", "", elements, flags=re.DOTALL)
    assert "<title>hpcprof: profiles-" in drawn
    assert '<img src="x"' not in drawn
    # Four charts: steps, phases, breakdown, kernels. Each has bars or lines of its own.
    assert drawn.count('class="main-svg"') >= 4
    assert len(re.findall(r'class="(?:point|points?|js-line|trace[^"]*)"', drawn)) >= 8
    for text in ("matmul_1", "exposed communication", "slowest rank", "rank 1"):
        assert text in drawn


def test_the_page_asks_for_nothing_from_elsewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", text)
    assert "http" not in outside
