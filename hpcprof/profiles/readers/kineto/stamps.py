"""Times of a PyTorch trace: microseconds as text, to nanoseconds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.timeline import Ints

Mask = NDArray[np.bool_]
_INT64 = np.iinfo(np.int64)

# Kineto writes microseconds with three decimals. The pattern accepts those that fit 64 bits in nanoseconds.
# Each text matches in at most one way; otherwise a list with one odd time would be tried in 2**n ways.
_THREE_DECIMALS = re.compile(rb"(?:-?(?:[0-9]{1,15}|[0-8][0-9]{15})\.[0-9]{3},)*")


def present(values: Sequence[object]) -> Mask:
    """Return which values are not None."""
    return np.fromiter((value is not None for value in values), np.bool_, len(values))


def times(written: list[msgspec.Raw]) -> tuple[Ints, Mask]:
    """Convert times from microseconds, as a trace writes them, to nanoseconds; also return which are valid.

    They are converted from the text, since a double has 16 digits, and a stamp of 1.7e15 us with three
    decimals has 19.
    """
    text = b",".join(written)
    if _THREE_DECIMALS.fullmatch(text + b","):
        digits = text.replace(b".", b"").decode()
        return np.fromstring(digits, np.int64, sep=","), np.ones(len(written), np.bool_)
    values: list[int | None] = [_nanoseconds_or_none(bytes(value)) for value in written]
    return np.array([value or 0 for value in values], np.int64), present(values)


def _nanoseconds_or_none(written: bytes) -> int | None:
    try:
        return nanoseconds(written.decode())
    except ValueError:
        return None


def nanoseconds(written: str) -> int:
    """Convert a time from microseconds to nanoseconds; fractions are rounded, ties to even.

    Raises
    ------
    ValueError
        If the text is not a number or the time does not fit 64 bits.
    """
    whole, _, fraction = written.partition(".")
    if len(fraction) <= 3 and fraction.isdecimal():
        time = int(whole + fraction.ljust(3, "0"))
    else:
        time = _rounded(written)
    if not _INT64.min < time <= _INT64.max:
        raise ValueError(f"{written!r} does not fit 64 bits")
    return time


def _rounded(written: str) -> int:
    try:
        number = Decimal(written) * 1000
    except InvalidOperation:
        raise ValueError(f"{written!r} is not a time") from None
    if not number.is_finite() or number.adjusted() > 19:
        raise ValueError(f"{written!r} is not a time")
    return int(number.to_integral_value())
