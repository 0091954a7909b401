"""Opening a page in a browser that has a window, without waiting for it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hpcprof.common.processes import CommandNotStarted, start_in_background

_WINDOWED = (
    "xdg-open",
    "x-www-browser",
    "firefox",
    "google-chrome",
    "chromium",
    "chromium-browser",
    "epiphany",
    "konqueror",
)
_IN_TERMINAL = {"www-browser", "w3m", "lynx", "links", "links2", "elinks", "browsh", "carbonyl"}
_SECONDS = 0.5
"""A browser that cannot open a page ends within this time, with an error."""


def can_show_pages() -> bool:
    """Return whether there is a display, and somebody at a terminal to look at it."""
    display = sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return display and sys.stdout.isatty() and next(_commands(), None) is not None


def open_page(page: Path) -> bool:
    """Open a page in a browser, and return whether one was started; text browsers are left out."""
    return any(_starts([*command, page.absolute().as_uri()]) for command in _commands())


def _commands() -> Iterator[list[str]]:
    """Yield the commands of browsers with a window that are installed, those that the user prefers first."""
    preferred = os.environ.get("BROWSER", "").split(os.pathsep)
    for text in (*preferred, *(("open",) if sys.platform == "darwin" else _WINDOWED)):
        try:
            words = [word for word in shlex.split(text) if word not in ("%s", "&")]
        except ValueError:
            continue
        found = shutil.which(words[0]) if words else None
        # A name such as x-www-browser may be a link to any browser.
        if found and not {Path(found).name, Path(found).resolve().name} & _IN_TERMINAL:
            yield [found, *words[1:]]


def _starts(command: list[str]) -> bool:
    # With it, xdg-open could start a text browser.
    environment = {name: value for name, value in os.environ.items() if name != "BROWSER"}
    try:
        process = start_in_background(command, Path.cwd(), environment)
    except CommandNotStarted:
        return False
    end = time.monotonic() + _SECONDS
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    if process.poll() is None:
        process.returncode = 0  # The browser runs on: it is not ours to wait for.
    return process.returncode == 0
