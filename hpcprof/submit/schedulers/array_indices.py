"""Indices of job arrays, as both Slurm and PBS write them."""

from __future__ import annotations

import re

_RANGE = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+)(?::(?P<step>\d+))?)?")


def indices(text: str) -> list[int]:
    """Return the indices that a text such as ``0-3,7,8-12:2%4`` names; ``%4`` is how many run at once.

    What is no index, such as the ``-`` of PBS where none is left, or the ``...`` of a text that was cut,
    names none.
    """
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        match = _RANGE.fullmatch(part)
        if match:
            first = int(match["first"])
            found += range(first, int(match["last"] or first) + 1, int(match["step"] or 1))
    return found
