"""JSON records of numbers as columns, where all records have the same fields.

Records that one line of a program wrote differ in their digits only. To read the digits takes a third of the
time of making an object for each record, and for each object in it.
"""

from collections.abc import Iterator

import msgspec
import numpy as np

from hpcprof.profiles.timeline import Ints

_DIGITS = b"0123456789"
_ZEROS = bytes.maketrans(_DIGITS, b"0" * len(_DIGITS))
_COLON_TO_SPACE = bytes.maketrans(b":", b" ")
_NO_NUMBERS = bytes({*range(256)} - {*_DIGITS, *b":,"})
_MAX_NUMBER = (1 << 63) - 1
_SEPARATOR = b"},{"
_BLOCK = 256 << 10
"""Maximum number of bytes that stay in the processor's cache."""


def equal_records(written: msgspec.Raw) -> tuple[bytes, dict[str, Ints]] | None:
    """Return the first record of a JSON list and the columns of all, by the names on the way to a field.

    Returns None if a record has other fields than the first, or a value that is no natural number below 2^63.
    """
    blocks = _blocks(memoryview(written))
    text = next(blocks, b"")
    first = text[: text.find(_SEPARATOR) + 1]
    record = first.translate(None, _DIGITS)
    try:
        fields = [*_flat_fields(msgspec.json.decode(first))]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not fields or b"-" in record or any("," in name or type(value) is not int for name, value in fields):
        return None
    columns_of_fields: list[Ints] = []
    repeated = (record + b",") * (_BLOCK // len(record) + 1)
    while text:
        without_digits = text.translate(None, _DIGITS)
        count, remainder = divmod(len(without_digits) + 1, len(record) + 1)
        # Each number stands after a colon; digits before one are of a name.
        numbers = text.translate(_COLON_TO_SPACE, _NO_NUMBERS)
        if remainder or not repeated.startswith(without_digits) or b"0 " in numbers.translate(_ZEROS):
            return None
        columns_of_fields.append(np.fromstring(numbers, np.int64, sep=","))
        if len(columns_of_fields[-1]) != count * len(fields) or columns_of_fields[-1].max() == _MAX_NUMBER:
            return None
        text = next(blocks, b"")
    columns = np.concatenate(columns_of_fields).reshape(-1, len(fields)).T
    return first, dict(zip((name for name, _ in fields), columns, strict=True))


def _blocks(written: memoryview) -> Iterator[bytes]:
    """Yield the records of a JSON list, separated by commas, some thousand at a time."""
    at, end = 1, len(written) - 1
    while at < end:
        block = bytes(written[at : min(at + _BLOCK, end)])
        # The last record of a block that is not the last one can be cut off.
        until = len(block) if at + len(block) == end else block.rfind(_SEPARATOR) + 1
        yield block[:until]
        at += max(until, 1) + 1


def _flat_fields(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat_fields(inner, f"{path}.{name}" if path else name)
    else:
        yield path, value
