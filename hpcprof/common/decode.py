"""Decode files, JSON and mappings to values and typed models, with errors that a user can act on."""

import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, TypeVar, overload

import msgspec

from hpcprof.common.errors import UsageError, unknown

ModelT = TypeVar("ModelT", bound=msgspec.Struct)
ValueT = TypeVar("ValueT")
JsonText = str | bytes | bytearray | memoryview | msgspec.Raw

LARGEST_FILE = 100_000_000
"""Maximum size of a file that is read whole, in bytes, but for profiles."""

_PREPARATION_LOCK = Lock()
_EARLIEST_TIME, _LATEST_TIME = (datetime(year, 1, 1, tzinfo=timezone.utc) for year in (1970, 2200))
_PATH = re.compile(r" - at `(?P<key>key` in `)?\$(?P<path>[^`]*)`$")
_UNKNOWN_FIELD = re.compile(r"^Object contains unknown field `(?P<field>[^`]*)`")
_TYPE_NAMES = {
    "str": "text",
    "str | null": "text",
    "object": "a mapping",
    "array": "a list",
    "int": "a whole number",
    "int | null": "a whole number",
}


def decode(model: type[ModelT], data: object, where: str, lines: Mapping[str, int] | None = None) -> ModelT:
    """Convert the content of a YAML or JSON file to a model; unknown keys are errors.

    An error names the file (``where``), the key with its line (`hpcprof.common.yaml_file.key_lines`), its
    value and the valid ones.
    """
    try:
        return msgspec.convert(data, model)
    except msgspec.ValidationError as error:
        raise _explain(str(error), model, data, where, lines or {}) from None


def _explain(
    message: str, model: type[msgspec.Struct], data: object, where: str, lines: Mapping[str, int]
) -> UsageError:
    match = _PATH.search(message)
    general = match["path"].lstrip(".") if match else ""
    text = _PATH.sub("", message)
    node = _type_at(model, general)
    field = _UNKNOWN_FIELD.match(text)
    path, value = _place(data, general, field["field"] if field else "", text.startswith("Expected `str"))
    key = f"{path}.{field['field']}".lstrip(".") if field else path
    line = lines.get(key) or lines.get(key.partition(".")[0].partition("[")[0])
    where += f", line {line}" if line else ""
    if field:
        struct = _struct(node)
        inside = f" in {where}" + (f", under {path}" if path else "")
        return unknown("key", field["field"], struct.cls.__struct_encode_fields__ if struct else (), inside)
    if isinstance(node, msgspec.inspect.EnumType):
        valid = [member.value for member in node.cls]
        return unknown("value", str(value), valid, f" in {where}, {path}")
    for name, plain in _TYPE_NAMES.items():
        text = text.replace(f"`{name}`", plain)
    value_text = f" = {value!r}" if path and not isinstance(value, (dict, list)) else ""
    place = ("a key under " if match and match["key"] else "") + (path or "the file")
    is_text = isinstance(value, str) and text.startswith("Expected a list")
    advice = ": write its items as [A, B]" if is_text else ""
    return UsageError(f"{where}: {place}{value_text}: {text[:1].lower()}{text[1:].replace('`', '')}{advice}.")


def _steps(path: str) -> list[str]:
    return re.findall(r"\[\.\.\.\]|[^.\[\]]+", path)


def _place(data: object, path: str, unknown_key: str, text_expected: bool) -> tuple[str, object]:
    for place, value in _places(data, _steps(path)):
        if unknown_key:
            fits = isinstance(value, Mapping) and unknown_key in value
        else:
            fits = not (text_expected and isinstance(value, str))
        if fits:
            return place, value
    return path, None


def _places(data: object, steps: list[str], path: str = "") -> Iterator[tuple[str, object]]:
    if not steps:
        yield path, data
        return
    step, *inner_steps = steps
    if isinstance(data, Mapping):
        for key in list(data) if step == "[...]" else [step]:
            yield from _places(data.get(key), inner_steps, f"{path}.{key}".lstrip("."))
    elif isinstance(data, list) and step.isdigit() and int(step) < len(data):
        yield from _places(data[int(step)], inner_steps, f"{path}[{step}]")


def _type_at(model: type[msgspec.Struct], path: str) -> Any:
    node: Any = msgspec.inspect.type_info(model)
    for step in _steps(path):
        node = _child(node, step)
    return node


def _child(node: Any, step: str) -> Any:
    struct = _struct(node)
    if struct is not None:
        return next((f.type for f in struct.fields if f.encode_name == step), None)
    return getattr(node, "value_type", None) or getattr(node, "item_type", None)


def _struct(node: Any) -> Any:
    if isinstance(node, msgspec.inspect.UnionType):
        return next((t for t in node.types if isinstance(t, msgspec.inspect.StructType)), None)
    return node if isinstance(node, msgspec.inspect.StructType) else None


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read its bytes, without waiting; raises OSError for everything else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def last_lines(path: Path, size: int, since: int = 0) -> tuple[list[str], bool]:
    """Return the complete lines in the last ``size`` bytes of a file, and True if there are earlier ones.

    Bytes before the position ``since`` do not count, unless the file has become shorter than that. A line
    that is cut at its beginning is left out, because the missing part may name a secret. Raises OSError.
    """
    with open_regular(path) as file:
        end = file.seek(0, os.SEEK_END)
        begin = since if since <= end else 0
        file.seek(max(begin, end - size))
        text = file.read(size).decode("utf-8", "replace")
    is_cut = end - begin > size
    return visible_lines(_CUT_LINE.sub("", text) if is_cut else text), is_cut


_CUT_LINE = re.compile(r"\A[^\r\n]*(?:\r*\n|\r)?")
"""The rest of a line, or of a state of a progress bar, at the beginning of a text."""


def visible_lines(text: str) -> list[str]:
    """Return the lines of a log as a terminal leaves them: progress bars write over their last state."""
    lines = text.removesuffix("\n").split("\n") if text else []
    return [line.rstrip("\r").rpartition("\r")[2] for line in lines]


def read_file(path: Path, most: int = LARGEST_FILE) -> bytes:
    """Return the content of a regular file; raise OSError for another kind of file or a larger one."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it is larger than {most / 1e6:g} MB", str(path))
        return file.read()


def read_text(path: Path, most: int = LARGEST_FILE) -> str:
    """Return the text of a file as `read_file` does; bytes that are not UTF-8 become U+FFFD."""
    return read_file(path, most).decode("utf-8", "replace")


@overload
def from_json(text: JsonText, *, strict: bool = True) -> Any: ...
@overload
def from_json(text: JsonText, type: type[ValueT], *, strict: bool = True) -> ValueT: ...
def from_json(text: JsonText, type: Any = Any, *, strict: bool = True) -> Any:
    """Decode a text of JSON; every fault of the text is a `msgspec.DecodeError`."""
    try:
        return _decoder(type, strict).decode(text)
    except (UnicodeError, RecursionError, OverflowError) as error:
        raise msgspec.DecodeError(f"JSON is malformed: {error}") from None


@cache
def _decoder(model: Any, strict: bool) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a type, made under a lock: msgspec crashes if threads make decoders together."""
    with _PREPARATION_LOCK:
        return msgspec.json.Decoder(model, strict=strict)


def is_plausible_time(when: datetime) -> bool:
    """Return whether a time has a zone and is from 1970 to 2200, so that every other zone can show it."""
    return when.tzinfo is not None and _EARLIEST_TIME < when < _LATEST_TIME


def parse_count(text: str) -> int | None:
    """Return the whole number that a text holds, at most 18 digits; None for anything else."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def lenient_json(written: str | bytes | None) -> Any:
    """Decode a text of JSON that may contain NaN, as PyTorch writes it; None if it is not JSON."""
    try:
        return json.loads(written or "null")
    except (ValueError, RecursionError):
        return None


def lenient_json_list(written: str | None) -> list[Any]:
    """Decode a text of JSON that holds a list, as `lenient_json` does; an empty list for anything else."""
    values = lenient_json(written)
    return values if isinstance(values, list) else []
