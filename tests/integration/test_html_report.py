"""The HTML report in a real browser, without a network."""

from __future__ import annotations

import lzma
import sqlite3
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.conftest import Hpcprof
from tests.integration.chromium import open_page

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


def test_a_name_in_a_profile_never_runs_and_nothing_is_requested(page: Path, browser: Browser) -> None:
    opened = open_page(browser, page)
    assert opened.page.title().startswith("hpcprof: profiles-")
    assert opened.page.locator("img").count() == 0
    assert opened.requests == [page.as_uri()]
    assert opened.complaints == []
    assert opened.page.get_by_text("</script><script>").count()
