"""Bounds of what reading a file may take, whatever sizes the file itself declares."""

from __future__ import annotations

from pathlib import Path

from hpcprof.common.errors import DamagedInput
from hpcprof.common.units import format_bytes

LARGEST_RATIO = 200
"""A file may become this many times larger: exports of nsys become 5 to 15 times larger, and bombs 1000."""

ALWAYS_ALLOWED = 100_000_000
"""A file may become this large, in bytes, whatever its size is."""

ROW_BYTES = 5
"""Minimum bytes of a row in a SQLite file, beside those of its values."""

STEPS = 10_000_000
"""Steps of SQLite between two looks at how many it has taken."""

_FEWEST_BYTES = 12
"""Minimum bytes of a text per line, and of JSON per value in braces, which takes 20 times as much memory."""


def most_unpacked(size: int) -> int:
    """Return the most bytes that may become of a file of ``size`` bytes."""
    return max(ALWAYS_ALLOWED, LARGEST_RATIO * size)


def most_selected(path: Path) -> int:
    """Return the most bytes that the rows of a table in a SQLite file may have."""
    return ALWAYS_ALLOWED // 10 + path.stat().st_size


def most_steps(path: Path) -> int:
    """Return the most steps that SQLite may take to read a file, whose rows are fewer than its bytes."""
    return 10 * ALWAYS_ALLOWED + LARGEST_RATIO * path.stat().st_size


def bomb(path: Path) -> DamagedInput:
    """Return the error of a file that becomes larger than it may."""
    size = path.stat().st_size
    return DamagedInput(
        f"{path} ({format_bytes(size)}) was not unpacked: it becomes larger than "
        f"{format_bytes(most_unpacked(size))}; if that is right, unpack it yourself."
    )


def refuse_crowded(path: Path, text: bytes) -> None:
    """Raise `DamagedInput` for a JSON text of countless tiny values, which take far more memory than it."""
    if is_crowded(text):
        raise DamagedInput(
            f"{path} is not a profile: {format_bytes(len(text))} of JSON have countless tiny values."
        )


def refuse_short_lines(path: Path, text: bytes) -> None:
    """Raise `DamagedInput` for a text of countless tiny lines, which take far more memory than it."""
    if _has_often(text, b"\n", b"\r"):
        raise DamagedInput(
            f"{path} is not a profile: {format_bytes(len(text))} of text have countless tiny lines."
        )


def is_crowded(text: bytes) -> bool:
    """Return whether a JSON text has a value in braces or brackets every few bytes."""
    return _has_often(text, b"{", b"[")


def _has_often(text: bytes, *signs: bytes) -> bool:
    large = len(text) > ALWAYS_ALLOWED // LARGEST_RATIO
    return large and len(text) < _FEWEST_BYTES * sum(map(text.count, signs))
