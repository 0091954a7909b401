"""How far a collect is."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

_WIDTH = 24


class Progress:
    """Shows on standard error the ranks that are done: a bar on a terminal, elsewhere a line a rank."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def __call__(self, done: int, ranks: int, path: Path) -> None:
        """Show that the profile of one more rank is done."""
        if not self._terminal:
            click.echo(f"{path} ({done} of {ranks})", err=True)
            return
        rate = done / max(time.monotonic() - self._began, 1e-9)
        filled = _WIDTH * done // ranks
        left = _duration((ranks - done) / rate)
        line = f"[{'=' * filled:{_WIDTH}}] {done} of {ranks} ranks, {rate:.1f} a second, {left} left"
        # Erased to its end, because the line before may have been longer.
        click.echo(f"\r{line}\x1b[K", err=True, nl=done == ranks)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
