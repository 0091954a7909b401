"""Columns of numbers from the fields of events as they are written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

import msgspec
import numpy as np

from hpcprof.profiles.readers.kineto.arguments import BatchDecoder, Int64
from hpcprof.profiles.readers.kineto.stamps import Mask, present
from hpcprof.profiles.timeline import Ints

_INT64 = np.iinfo(np.int64)
_INTEGERS: BatchDecoder[int] = BatchDecoder(Int64)
_QUOTED = re.compile(rb'"[0-9]{1,19}"')


def column(arguments: Sequence[object], name: str, otherwise: int) -> Ints:
    """Return one argument of each event, ``otherwise`` where it has none."""
    values = list(map(attrgetter(name), arguments))
    if (whole := _complete(values)) is not None:
        return whole
    return np.array([otherwise if value is None else value for value in values], np.int64)


def integers(written: Sequence[msgspec.Raw]) -> tuple[Ints, Mask]:
    """Return the integers in a field of all events as they are written, and which are valid."""
    numbers = _INTEGERS(written)
    if (whole := _complete(numbers)) is not None:
        return whole, np.ones(len(whole), np.bool_)
    found = [_spelled(bytes(text)) if v is None else v for v, text in zip(numbers, written, strict=True)]
    return np.array([value or 0 for value in found], np.int64), present(found)


def told(values: Sequence[int | None], otherwise: Sequence[msgspec.Raw]) -> tuple[Ints, Mask]:
    """Return the values, with those of another field in place of None, and which are valid."""
    if (whole := _complete(values)) is not None:
        return whole, np.ones(len(whole), np.bool_)
    known = present(values)
    first = np.array([value or 0 for value in values], np.int64)
    other, valid = integers(otherwise)
    return np.where(known, first, other), known | valid


def none_written(values: Sequence[msgspec.Raw | msgspec.UnsetType]) -> bool:
    """Return whether no event has an argument."""
    return {*map(type, values)} <= {msgspec.UnsetType}


def shapes(values: list[tuple[int, int, int]]) -> Ints:
    """Return shapes as a column, which takes numpy longer from tuples."""
    return np.fromiter(chain.from_iterable(values), np.int64, 3 * len(values)).reshape(-1, 3)


def _complete(values: Sequence[int | None]) -> Ints | None:
    """Return a column of values, or None if one is missing, which costs less than to look for one first."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except TypeError:
        return None


def _spelled(written: bytes) -> int | None:
    """Return the integer that a text spells: PyTorch up to 1.11 writes ``"tid": "25738"``."""
    number = int(written[1:-1]) if _QUOTED.fullmatch(written) else None
    return number if number is None or number <= _INT64.max else None
