"""A trace's JSON read in pieces, so that memory does not grow with the file.

JSON is read from left to right: where a list that is cut after one of its events, and closed there,
is valid, the cut is between two events of the list and not inside a name or a nested list. So the
text is cut at a likely place, and the parser itself tells whether the place was right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

_CHUNK = 8 << 20
_LARGEST = 64 << 20
"""What may precede the events, or be one event, in bytes: more is no trace, and would fill the memory."""

_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_SPACE = re.compile(r"[ \t\n\r]*")
_BRACES = 64
_GAP = 256

NO_VALUE = msgspec.Raw(b"")
NO_ARGUMENTS = msgspec.Raw(b"{}")


class NotATrace(Exception):
    """The rest of a sentence that begins with the file's name."""


class Event(msgspec.Struct, gc=False):
    """An event; what is not text stays as it is written, so that no digit is lost."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    ts: msgspec.Raw = NO_VALUE
    dur: msgspec.Raw = NO_VALUE
    pid: msgspec.Raw = NO_VALUE
    tid: msgspec.Raw = NO_VALUE
    args: msgspec.Raw = NO_ARGUMENTS


Batch = list[Event | None]
"""Events in the trace's order; None stands for one that is no JSON object."""
_Decoder = msgspec.json.Decoder[Batch]

_TEXTS = ("ph", "cat", "name")


def _as_written(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


_LENIENT = json.JSONDecoder(parse_float=_as_written, parse_constant=_as_written)


class TraceStream:
    """The events of a trace in batches; ``properties`` is what stands around them, once all are read.

    With the first batch it is what stands before them. Events are of ``kind``, whose fields beyond those of
    `Event` are values as they are written. Reading raises `NotATrace`, and whatever reading the file raises.
    """

    def __init__(self, file: BinaryIO, kind: type[Event] = Event) -> None:
        self.properties: dict[str, Any] = {}
        self._file = file
        self._kind = kind
        self._decoder: _Decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._head = b""

    def batches(self) -> Iterator[Batch]:
        """Yield the events, some ten thousand at a time."""
        rest: bytes | None = self._begin()
        first = True
        while rest is not None:
            batch, rest = self._next(rest, first)
            first = False
            yield batch

    def _begin(self) -> bytes:
        """Read up to the list of events and return what was read of it."""
        text = b""
        while len(text) < _LARGEST:
            more = self._file.read(max(_CHUNK, len(text)))
            text += more
            for key in _KEY.finditer(text):
                head = text[: key.start()]
                if (properties := _object(head + b'"traceEvents":[]}')) is not None:
                    self._head, self.properties = head, properties
                    return text[key.end() :]
            if not more:
                if not text.strip():
                    raise NotATrace("is empty.")
                _parsed(text)
                break
        raise NotATrace("is no PyTorch profiler trace: it has no list of traceEvents.")

    def _next(self, text: bytes, first: bool) -> tuple[Batch, bytes | None]:
        """Return the events that ``text`` and the next piece of the file hold whole, and what is left.

        Nothing is left, None, where the list ended; ``first`` says that it has only begun.
        """
        while True:
            more = self._file.read(max(_CHUNK, len(text)))
            text += more
            ended = not more
            until, after = _end_of_list(text) if ended else _last_event(text)
            batch, rest = _events(text[:until], self._decoder), text[after:]
            if batch is None or not (batch or (first and ended)):
                batch, rest, ended = _scan(text, first, ended, self._kind)
            if ended:
                self._finish(rest)
                return batch, None
            if batch:
                return batch, rest
            if len(text) > _LARGEST:
                size = f"{_LARGEST >> 20} MiB"
                raise NotATrace(f"is no PyTorch profiler trace: it has an event of more than {size}.")

    def _finish(self, tail: bytes) -> None:
        """Read what stands around the events; ``tail`` is what is known of what follows the list."""
        while len(tail) < _LARGEST and (more := self._file.read(_CHUNK)):
            tail += more
        self.properties = _parsed(self._head + b'"traceEvents":[]' + tail)


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        parsed = _parsed(text)
    except NotATrace:
        return None
    return parsed if isinstance(parsed, dict) else None


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise NotATrace(f"is no valid JSON: {error}.") from None


def _events(text: bytes, decoder: _Decoder) -> Batch | None:
    """Parse whole events between commas; None where they are not whole, or a field is unusual."""
    try:
        return decoder.decode(b"".join((b"[", text, b"]")))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _last_event(text: bytes) -> tuple[int, int]:
    """Return where the last whole event probably ends, and where the next begins: ``}``, comma, ``{``."""
    at = len(text)
    for _ in range(_BRACES):
        at = text.rfind(b"{", 0, at)
        if at < 0:
            break
        before = text[max(at - _GAP, 0) : at].rstrip()
        if before.endswith(b",") and (end := before[:-1].rstrip()).endswith(b"}"):
            return max(at - _GAP, 0) + len(end), at
    return 0, 0


def _end_of_list(text: bytes) -> tuple[int, int]:
    """Return where the list probably ends: at the last bracket."""
    at = text.rfind(b"]")
    return max(at, 0), at + 1


def _scan(text: bytes, first: bool, final: bool, kind: type[Event]) -> tuple[Batch, bytes, bool]:
    """Parse event by event: slower, but it finds the end of the list and takes unusual fields.

    Returns the events, what follows them, and whether the list ended.
    """
    # Bytes that are no UTF-8 survive the way back; a name that holds them is cleaned.
    decoded = text.decode("utf-8", "surrogateescape")
    batch: Batch = []
    begin = _space(decoded, 0)
    if first and decoded.startswith("]", begin):
        return batch, _encoded(decoded[begin + 1 :]), True
    while True:
        try:
            value, end = _LENIENT.raw_decode(decoded, begin)
        except (ValueError, RecursionError) as error:
            if final or isinstance(error, RecursionError):
                raise NotATrace(f"is no valid JSON: {error}.") from None
            return batch, _encoded(decoded[begin:]), False
        end = _space(decoded, end)
        if end == len(decoded) and not final:
            return batch, _encoded(decoded[begin:]), False
        batch.append(_lenient(value, kind))
        if decoded.startswith("]", end):
            return batch, _encoded(decoded[end + 1 :]), True
        if not decoded.startswith(",", end):
            raise NotATrace(f"is no valid JSON: no comma after event {len(batch)} of the last piece.")
        begin = _space(decoded, end + 1)


def _space(text: str, at: int) -> int:
    """Return where the white space at a place ends."""
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _lenient(value: object, kind: type[Event]) -> Event | None:
    """Build an event from parsed JSON; a field that is not what it should be counts as absent."""
    if not isinstance(value, dict):
        return None
    event = kind()
    for name in _TEXTS:
        if isinstance(found := value.get(name), str):
            # JSON can spell halves of surrogate pairs, which UTF-8 cannot.
            setattr(event, name, found.encode("utf-8", "replace").decode("utf-8"))
    for name in kind.__struct_fields__:
        try:
            if name in value and name not in _TEXTS:
                setattr(event, name, msgspec.Raw(msgspec.json.encode(value[name])))
        except (ValueError, OverflowError):
            continue
    return event
