"""Times of a PyTorch trace: microseconds as text, to nanoseconds."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import msgspec
import numpy as np

from hpcprof.profiles.timeline import Ints, Mask

_INT64 = np.iinfo(np.int64)

_POINT, _COMMA, _DIGITS = ord("."), ord(","), 10
_MAX_DIGITS = 16
"""Maximum digits before the point: a time with all of them fits 64 bits in ns if it begins with 0 to 8."""


def present(values: Sequence[object]) -> Mask:
    """Return a mask of the values that are not None."""
    return np.fromiter((value is not None for value in values), np.bool_, len(values))


def times(written: list[msgspec.Raw]) -> tuple[Ints, Mask]:
    """Convert times from microseconds, as a trace writes them, to nanoseconds; also return which are valid.

    They are converted from the text, since a double has 16 digits, and a stamp of 1.7e15 us with three
    decimals has 19.
    """
    text = b",".join([*written, b""])
    if _have_three_decimals(text, len(written)):
        digits = text[:-1].replace(b".", b"").decode()
        return np.fromstring(digits, np.int64, sep=","), np.ones(len(written), np.bool_)
    values: list[int | None] = [_nanoseconds_or_none(bytes(value)) for value in written]
    return np.array([value or 0 for value in values], np.int64), present(values)


def _have_three_decimals(text: bytes, count: int) -> bool:
    """Return whether all times are numbers without a sign and with three decimals, as Kineto writes them.

    Each of the ``count`` times is followed by a comma.
    """
    characters = np.frombuffer(text, np.uint8)
    commas = np.flatnonzero(characters == _COMMA)
    # Digits are 0 to 9 after this subtraction, and all other characters larger, as it wraps around.
    other_count = np.count_nonzero(characters - np.uint8(ord("0")) >= _DIGITS)
    whole = np.diff(commas, prepend=-1) - len(".000,")
    if len(commas) != count or other_count != 2 * count or not np.all((whole > 0) & (whole <= _MAX_DIGITS)):
        return False
    longest = commas[whole == _MAX_DIGITS] - len(".000") - _MAX_DIGITS
    return bool(np.all(characters[commas - len(".000")] == _POINT) and np.all(characters[longest] < ord("9")))


def _nanoseconds_or_none(written: bytes) -> int | None:
    try:
        return nanoseconds(written.decode())
    except ValueError:
        return None


def nanoseconds(written: str) -> int:
    """Convert a time from microseconds to nanoseconds; fractions are rounded, ties to even.

    Raises ValueError if the text is not a number or the time does not fit 64 bits.
    """
    whole, _, fraction = written.partition(".")
    if len(fraction) <= 3 and fraction.isdecimal():
        time = int(whole + fraction.ljust(3, "0"))
    else:
        time = _round_stamp(written)
    if not _INT64.min < time <= _INT64.max:
        raise ValueError(f"{written!r} does not fit 64 bits")
    return time


def _round_stamp(written: str) -> int:
    try:
        number = Decimal(written) * 1000
    except InvalidOperation:
        raise ValueError(f"{written!r} is not a time") from None
    if not number.is_finite() or number.adjusted() > 19:
        raise ValueError(f"{written!r} is not a time")
    return int(number.to_integral_value())
