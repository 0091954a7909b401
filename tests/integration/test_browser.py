"""Opening a page in a browser with a window."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hpcprof.cli.open import can_show_pages, open_page


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "sleep"):
        (folder / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("BROWSER", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    return folder


def browser(folder: Path, name: str, script: str) -> Path:
    (folder / name).write_text(f'#!/bin/sh\necho "$@" > {folder}/{name}.opened\n{script}\n')
    (folder / name).chmod(0o755)
    return folder / f"{name}.opened"


def opened(path: Path) -> str:
    for _ in range(500):
        if path.exists() and path.read_text():
            break
        time.sleep(0.02)
    return path.read_text()


def test_a_page_is_opened_without_waiting(programs: Path, tmp_path: Path) -> None:
    said = browser(programs, "firefox", "sleep 5")
    assert can_show_pages()
    assert open_page(tmp_path / "a page.html")
    assert opened(said) == f"file://{tmp_path}/a%20page.html\n"


def test_a_browser_that_fails_is_followed_by_the_next(programs: Path, tmp_path: Path) -> None:
    browser(programs, "xdg-open", "exit 3")
    said = browser(programs, "chromium", "exit 0")
    assert open_page(tmp_path / "page.html")
    assert opened(said)


def test_the_browser_that_the_user_prefers_comes_first(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser(programs, "firefox", "exit 0")
    said = browser(programs, "mine", "exit 0")
    monkeypatch.setenv("BROWSER", os.pathsep.join(["w3m", "absent", "mine --new %s"]))
    assert open_page(tmp_path / "page.html")
    assert opened(said) == f"--new file://{tmp_path}/page.html\n"


def test_text_browsers_are_left_out(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = browser(programs, "w3m", "sleep 5")
    (programs / "x-www-browser").symlink_to(programs / "w3m")
    monkeypatch.setenv("BROWSER", "w3m")
    assert not can_show_pages()
    assert not open_page(tmp_path / "page.html")
    assert not said.exists()


@pytest.mark.parametrize("missing", ["display", "terminal", "browser"])
def test_without_display_terminal_or_browser_no_page_is_shown(
    missing: str, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing != "browser":
        browser(programs, "firefox", "exit 0")
    if missing == "display":
        monkeypatch.delenv("DISPLAY")
        monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    if missing == "terminal":
        monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert not can_show_pages()
