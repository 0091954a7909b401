"""Protobuf messages by the column: each function encodes a field of many messages at once.

The classes of PyPI's ``perfetto`` make one message at a time, which takes three times as long
(docs/explanation/performance.md, "Perfetto traces").
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.columns.unique import in_ranges
from hpcprof.profiles.timeline import Ints, Mask

_VARINT, _FIXED64, _LENGTH = 0, 1, 2
_MAX_VARINT_BYTES = 10
"""The bytes of a varint of 64 bits."""

Numbers = NDArray[np.uint64] | Ints
"""Numbers from 0."""


class Encoded(NamedTuple):
    """The bytes of n pieces, one after the other, and the ``length`` of each, shape (n,)."""

    data: NDArray[np.uint8]
    length: Ints

    def take(self, rows: Ints) -> "Encoded":
        """Return the pieces that an index array selects, in its order."""
        length = self.length[rows]
        begin = (np.cumsum(self.length) - self.length)[rows]
        return Encoded(self.data[in_ranges(begin, length)], length)


def varints(field: int, values: Numbers, present: Mask | None = None) -> Encoded:
    """Encode a field of whole numbers; it is left out where it is not ``present``."""
    number = np.asarray(values).astype(np.uint64)
    digit = np.arange(_MAX_VARINT_BYTES, dtype=np.uint64)
    shifted = number[:, np.newaxis] >> (digit * np.uint64(7))
    length = np.maximum(np.count_nonzero(shifted, axis=1), 1)
    more = np.arange(_MAX_VARINT_BYTES) < length[:, np.newaxis] - 1
    content = (shifted & np.uint64(0x7F)).astype(np.uint8) | (more * np.uint8(0x80))
    used = np.arange(_MAX_VARINT_BYTES) < length[:, np.newaxis]
    return _prepend_tag(field, _VARINT, content, used, present)


def fixed64(field: int, values: NDArray[np.uint64]) -> Encoded:
    """Encode a field of type fixed64."""
    content = values.astype("<u8").view(np.uint8).reshape(-1, 8)
    return _prepend_tag(field, _FIXED64, content, np.ones(content.shape, bool), None)


def texts(field: int, values: Sequence[str]) -> Encoded:
    """Encode a field of texts."""
    written = [value.encode("utf-8", "replace") for value in values]
    content = np.frombuffer(b"".join(written), np.uint8)
    return nested(field, Encoded(content, np.array([len(text) for text in written], np.int64)))


def nested(field: int, message: Encoded, present: Mask | None = None) -> Encoded:
    """Encode a field of messages; it is left out where it is not ``present``."""
    head = varints(field, message.length)
    # The tags of a length and of a number differ in the lowest bits of their first byte.
    head.data[np.cumsum(head.length) - head.length] |= _LENGTH
    whole = join(head, message)
    if present is None:
        return whole
    present_parts = whole.take(np.flatnonzero(present))
    return Encoded(present_parts.data, np.where(present, whole.length, 0))


def join(*parts: Encoded) -> Encoded:
    """Return pieces that consist of those of all parts, one after the other."""
    length = sum((part.length for part in parts), np.zeros(1, np.int64))
    begin = np.cumsum(length) - length
    data = np.empty(int(length.sum()), np.uint8)
    for part in parts:
        data[in_ranges(begin, part.length)] = part.data
        begin = begin + part.length
    return Encoded(data, length)


def gathered(part: Encoded, owner: Ints, count: int) -> Encoded:
    """Return ``count`` pieces of which each consists of all that it owns, in their order."""
    ordered = part.take(np.argsort(owner, kind="stable"))
    length = np.zeros(count, np.int64)
    np.add.at(length, owner, part.length)
    return Encoded(ordered.data, length)


def stacked(*parts: Encoded) -> Encoded:
    """Return the pieces of the first part, then those of the next one, and so on."""
    return Encoded(*map(np.concatenate, zip(*parts, strict=True)))


def nothing(count: int) -> Encoded:
    """Return empty pieces."""
    return Encoded(np.empty(0, np.uint8), np.zeros(count, np.int64))


def _prepend_tag(
    field: int, kind: int, content: NDArray[np.uint8], used: Mask, present: Mask | None
) -> Encoded:
    """Put the tag of a field before the used bytes of each row."""
    tag = np.frombuffer(varint(field << 3 | kind), np.uint8)
    whole = np.hstack([np.tile(tag, (len(content), 1)), content])
    is_kept = np.hstack([np.ones((len(content), len(tag)), bool), used])
    if present is not None:
        is_kept &= present[:, np.newaxis]
    return Encoded(whole[is_kept], np.count_nonzero(is_kept, axis=1))


def varint(number: int) -> bytes:
    """Encode a single number from 0."""
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*digits, number))
