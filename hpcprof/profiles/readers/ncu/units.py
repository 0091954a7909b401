"""Numbers and units as Nsight Compute prints them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

# The base units of ``ncu --print-units base``. Prefixes are powers of 1000: 233,472 byte is printed as
# 233.472 Kbyte. The long names are those of ncu before 2022.
_TIMES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_LONG = {"nsecond": "ns", "usecond": "us", "msecond": "ms", "second": "s"}
_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_PREFIXED = re.compile(r"([KkMGTP]?)(byte|hz)", re.IGNORECASE)

# Thin and no-break spaces and apostrophes: some languages group digits with them.
_GROUPING = str.maketrans("", "", " \u00a0\u202f'\u2019")
_WITH_DECIMAL_COMMA = re.compile(r"[-+]?(\d{1,3}(\.\d{3})+|\d+),(\d{1,2}|\d{4,})")


def uses_decimal_comma(texts: Iterable[str]) -> bool:
    """Return whether the numbers of a file have a decimal comma, as in some locales.

    ``1,234`` may be either. A number that can be nothing else decides, such as ``0,030556``.
    """
    return any(_WITH_DECIMAL_COMMA.fullmatch(text.translate(_GROUPING)) for text in texts)


def number(text: str, decimal_comma: bool = False) -> float | None:
    """Return a value as a float; None for an empty cell, ``nan``, ``n/a``, ``no data`` and any text."""
    plain = text.translate(_GROUPING)
    group, decimal = (".", ",") if decimal_comma else (",", ".")
    plain = plain.replace(group, "").replace(decimal, ".")
    if not re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", plain, re.IGNORECASE):
        return None
    value = float(plain)
    return value if math.isfinite(value) else None


def factor(unit: str) -> float:
    """Return the factor that converts a value to base units.

    A time becomes ns, a rate a number per second: ``us`` gives 1e3, ``Gbyte/s`` and ``sector/ns`` 1e9,
    ``%/Kbyte`` 1e-3. Units without a scale (``%``, ``cycle``, ``inst``) give 1.
    """
    above, _, below = unit.partition("/")
    return _scale(above) / (_per_second(below) if below else 1.0)


def _scale(unit: str) -> float:
    if found := _PREFIXED.fullmatch(unit):
        return _PREFIXES[found[1]]
    return _TIMES.get(_LONG.get(unit, unit), 1.0)


def _per_second(unit: str) -> float:
    time = _TIMES.get(_LONG.get(unit, unit))
    return time / 1e9 if time else _scale(unit)
