"""Protocol Buffers' wire format: the fields of messages, one by one or of many messages as columns.

A message is a part of the file, from ``begin`` to ``end``. A field has a number, and a value: a number or a
part of the file, which is a text or a message. See https://protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.timeline import Ints

Bytes = NDArray[np.uint8]

NO_PART = -1
"""Stands for the end of a field that is a number."""
_VARINT, _FIXED_64, _PART, _FIXED_32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_MAX_FIELDS = 10_000
"""Maximum number of fields in a message of `columns_of`, which takes 0.1 ms for each."""


class Damage(ValueError):
    """The bytes are no message."""


class Field(NamedTuple):
    """A field: its ``value``, or the begin and the ``end`` of its part of the file."""

    number: int
    value: int
    end: int = NO_PART

    @property
    def is_part(self) -> bool:
        """True for a text or a message, False for a number."""
        return self.end != NO_PART

    def text(self, data: bytes) -> str:
        """Return the text of the part; bytes that are no UTF-8 are replaced."""
        return data[self.value : self.end].decode("utf-8", "replace")


class Fields(msgspec.Struct, frozen=True):
    """The fields of several messages; the fields of one message are in their order.

    ``row`` is the position of the message, and ``end`` is `NO_PART` for numbers. All have shape (fields,).
    Numbers are 64 bits, also those of unsigned and floating-point fields.
    """

    row: Ints
    number: Ints
    value: Ints
    end: Ints

    def last(self, number: int, messages: int, default: int = 0) -> Ints:
        """Return the value of a field of each message, the last one if it is repeated."""
        values = np.full(messages, default)
        rows = self.number == number
        values[self.row[rows]] = self.value[rows]
        return values

    def parts(self, number: int) -> tuple[Ints, Ints, Ints]:
        """Return the message, the begin and the end of each part in a field."""
        rows = (self.number == number) & (self.end != NO_PART)
        return self.row[rows], self.value[rows], self.end[rows]


def fields_of(data: bytes, begin: int, end: int) -> Iterator[Field]:
    """Yield the fields of a message.

    Raises Damage if the bytes are no message.
    """
    at = begin
    while at < end:
        tag, at = varint(data, at, end)
        kind = tag & 7
        if not tag >> 3:
            raise Damage
        if kind == _VARINT:
            value, at = varint(data, at, end)
            yield Field(tag >> 3, value)
            continue
        size = 8 if kind == _FIXED_64 else 4
        if kind == _PART:
            size, at = varint(data, at, end)
        elif kind not in (_FIXED_64, _FIXED_32):
            raise Damage
        if size > end - at:
            raise Damage
        if kind == _PART:
            yield Field(tag >> 3, at, at + size)
        else:
            yield Field(tag >> 3, int.from_bytes(data[at : at + size], "little"))
        at += size


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number of variable length that begins at a place, and the place behind it.

    Raises Damage if it does not end before ``end``.
    """
    value = shift = 0
    while at < end and shift < 7 * _MAX_VARINT_BYTES:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, at
        shift += 7
    raise Damage


def packed(data: bytes, field: Field) -> list[int]:
    """Return the numbers of a repeated field: a packed part, or the single number of this field."""
    if not field.is_part:
        return [field.value]
    values, at = [], field.value
    while at < field.end:
        value, at = varint(data, at, field.end)
        values.append(value)
    return values


def columns_of(data: Bytes, begin: Ints, end: Ints) -> Fields:
    """Return the fields of messages; all messages are parsed at once.

    Raises Damage if the bytes are no messages, or one has too many fields.
    """
    # A number may be read beyond the end of the last message before it is found to be cut off.
    data = np.append(data, np.zeros(_MAX_VARINT_BYTES, np.uint8))
    row = np.flatnonzero(begin < end)
    at, end = begin[row], end[row]
    fields: list[tuple[Ints, ...]] = [(np.empty(0, np.int64),) * 4]
    while len(row):
        tag, at = _varints(data, at)
        kind = tag & 7
        value, part_end = np.zeros(len(row), np.int64), np.full(len(row), NO_PART)
        _take_numbers(data, kind, at, value)
        parts = np.flatnonzero(kind == _PART)
        size, at[parts] = _varints(data, at[parts])
        if np.any(size < 0) or np.any(size > end[parts] - at[parts]):
            raise Damage
        value[parts] = at[parts]
        at[parts] += size
        part_end[parts] = at[parts]
        if np.any(at > end) or not np.isin(kind, (_VARINT, _FIXED_64, _PART, _FIXED_32)).all():
            raise Damage
        fields.append((row, (tag >> 3) & (1 << 61) - 1, value, part_end))
        unfinished = at < end
        row, at, end = row[unfinished], at[unfinished], end[unfinished]
        if len(fields) > _MAX_FIELDS:
            raise Damage
    return Fields(*(np.concatenate(column) for column in zip(*fields, strict=True)))


def _take_numbers(data: Bytes, kind: Ints, at: Ints, value: Ints) -> None:
    """Read the fields that are numbers into ``value``, and move ``at`` behind them."""
    rows = np.flatnonzero(kind == _VARINT)
    value[rows], at[rows] = _varints(data, at[rows])
    for fixed, size in ((_FIXED_64, 8), (_FIXED_32, 4)):
        rows = np.flatnonzero(kind == fixed)
        if np.any(at[rows] + size > len(data)):
            raise Damage
        read = np.zeros((len(rows), 8), np.uint8)
        read[:, :size] = data[at[rows][:, None] + np.arange(size)]
        value[rows] = read.view("<i8")[:, 0]
        at[rows] += size


def _varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Return the numbers that begin at each place, and the places behind them."""
    value, at = np.zeros(len(at), np.uint64), at.copy()
    open_rows = np.arange(len(at))
    for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
        if np.any(at[open_rows] >= len(data)):
            raise Damage
        byte = data[at[open_rows]]
        value[open_rows] |= (byte & np.uint8(127)).astype(np.uint64) << np.uint64(shift)
        at[open_rows] += 1
        open_rows = open_rows[byte >= 128]
        if not len(open_rows):
            return value.view(np.int64), at
    raise Damage
