"""A page in a real browser."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


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
