"""When a job without a profiler records some of its steps."""

from __future__ import annotations

import re

from hpcprof.common.errors import UsageError

_DEFAULT_PCT = 20
_MOST_PCT = 10_000
_SLOW = re.compile(r"slow(?::(?P<percent>[0-9]{1,5}))?")


def parse_capture_when(text: str) -> int:
    """Return by how many percent the last steps take longer than those before when some are recorded.

    It is 0 for ``off``.

    Raises
    ------
    UsageError
        If ``text`` is not ``slow``, ``slow:PERCENT`` or ``off``.
    """
    if text == "off":
        return 0
    found = _SLOW.fullmatch(text)
    percent = int(found["percent"] or _DEFAULT_PCT) if found else 0
    if not 0 < percent <= _MOST_PCT:
        raise UsageError(f"--capture-when {text}: write slow, slow:PERCENT with 1 to {_MOST_PCT}, or off.")
    return percent
