"""Waiting for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 240) -> None:
    """Wait until a condition holds, long enough for a machine that others use too."""
    begun = time.monotonic()
    asked = begun
    while not condition():
        now = time.monotonic()
        assert now - begun < seconds, "the condition did not come true"
        # A condition that costs time, such as a scheduler's command, is asked for less often.
        time.sleep(max(0.01, 4 * (now - asked)))
        asked = time.monotonic()
