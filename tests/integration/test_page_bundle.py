"""The script and the style of the pages, which are committed as npm builds them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.chromium import WEB

pytestmark = pytest.mark.slow


def test_the_bundle_is_what_the_lock_file_gives(web_packages: Path) -> None:
    subprocess.run(["npm", "run", "build"], cwd=web_packages, check=True, capture_output=True)
    built = {path.name: path.read_bytes() for path in (web_packages / "dist").iterdir()}
    committed = {path.name: path.read_bytes() for path in (WEB / "dist").iterdir()}
    assert built.keys() == committed.keys()
    differ = [name for name in built if built[name] != committed[name]]
    assert not differ, "run make page and commit hpcprof/report/web/dist"
