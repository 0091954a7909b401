"""Reads the JSON of a trace in pieces, so that memory does not grow with the file.

The text is cut where an event of the list probably ends, and the list is closed there. If the result is valid
JSON, the cut was between two events, and not inside a name or a nested list.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

_CHUNK = 8 << 20
_MAX_EVENT_BYTES = 64 << 20
"""Maximum bytes before the events and in one event: with more, a file is not a trace."""

_MAX_OTHER_VALUES = 100_000
"""Maximum number of values in a piece of the file that are no events: each is parsed alone."""

_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_SPACE = re.compile(r"[ \t\n\r]*")
_BRACES = 64
_GAP = 256

NO_VALUE = msgspec.Raw(b"")
NO_ARGUMENTS = msgspec.Raw(b"{}")


class NotATrace(Exception):
    """A file is not a trace; the message is the rest of a sentence that begins with the file's name."""


class Event(msgspec.Struct, gc=False):
    """An event. Values other than text stay as they are written, so that no digit is lost."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    ts: msgspec.Raw = NO_VALUE
    dur: msgspec.Raw = NO_VALUE
    pid: msgspec.Raw = NO_VALUE
    tid: msgspec.Raw = NO_VALUE
    id: msgspec.Raw = NO_VALUE
    args: msgspec.Raw = NO_ARGUMENTS


Batch = list[Event | None]
"""Events in the trace's order; None is one that is not a JSON object."""

_TEXTS = ("ph", "cat", "name")


def _raw_value(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


# Not strict: programs put control characters into the names of their ranges.
_LENIENT = json.JSONDecoder(parse_float=_raw_value, parse_constant=_raw_value, strict=False)


class TraceStream:
    """The events of a trace in batches, and its other ``properties``.

    From the first batch on, ``properties`` holds those before the events; after the last batch, all of them.
    Events are of ``kind``, whose fields beyond those of `Event` hold values as they are written. Their
    list may be the whole file. Reading raises `NotATrace`, and whatever reading the file raises.
    """

    def __init__(self, file: BinaryIO, kind: type[Event] = Event) -> None:
        self.properties: dict[str, Any] = {}
        self._file = file
        self._kind = kind
        self._decoder: msgspec.json.Decoder[Batch] = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
        self._head = self._foot = b""

    def batches(self) -> Iterator[Batch]:
        """Yield the events, some ten thousand at a time."""
        tail: bytes | None = self._begin()
        first = True
        while tail is not None:
            events, tail = self._read_batches(tail, first)
            first = False
            yield from events

    def _begin(self) -> bytes:
        """Read up to the list of events and return the part of the list that was read."""
        text = b""
        while len(text) < _MAX_EVENT_BYTES:
            more = self._file.read(max(_CHUNK, len(text)))
            text += more
            if text.lstrip().startswith(b"["):
                self._head, self._foot = b"{", b"}"
                return text.lstrip()[1:]
            for key in _KEY.finditer(text):
                head = text[: key.start()]
                if (properties := _object(head + b'"traceEvents":[]}')) is not None:
                    self._head, self.properties = head, properties
                    return text[key.end() :]
            if not more:
                if not text.strip():
                    raise NotATrace("is empty.")
                _parse_text(text)
                break
        raise NotATrace("is not a PyTorch profiler trace: it has no list of traceEvents.")

    def _read_batches(self, text: bytes, first: bool) -> tuple[list[Batch], bytes | None]:
        """Return the whole events in ``text`` and the next piece of the file, and the text after them.

        The text is None if the list has ended. ``first`` is true for the first piece of the list.
        """
        while True:
            more = self._file.read(max(_CHUNK, len(text)))
            text += more
            ended = not more
            if ended and self._foot and (whole := text.rstrip().rstrip(b",")).endswith(b"}"):
                # A list that is the whole file need not be closed.
                text = whole + b"]"
            if ended and not text.rstrip().endswith((b"}", b"]")):
                raise NotATrace("ends in the middle of an event: its writer, or a copy of it, was cut off.")
            close = text.rfind(b"]")
            until, after = (max(close, 0), close + 1) if ended else _last_event(text)
            events, tail = self._decode_events(text[:until]), text[after:]
            if not any(events) and not (events and first and ended):
                batch, tail, ended = _scan(text, first, ended, self._kind)
                if batch.count(None) > _MAX_OTHER_VALUES:
                    raise NotATrace(
                        "is not a PyTorch profiler trace: it has countless values that are no events."
                    )
                events = [batch]
            if ended:
                self._finish(tail)
                return events, None
            if any(events):
                return events, tail
            if len(text) > _MAX_EVENT_BYTES:
                size = f"{_MAX_EVENT_BYTES >> 20} MiB"
                raise NotATrace(f"is not a PyTorch profiler trace: it has an event of more than {size}.")

    def _decode_events(self, text: bytes) -> list[Batch]:
        """Parse events separated by commas; without a batch if one is incomplete or a field is unusual."""
        try:
            return [self._decoder.decode(b"".join((b"[", text, b"]")))]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return []

    def _finish(self, tail: bytes) -> None:
        """Read the properties around the events; ``tail`` is the text after the list read so far."""
        while len(tail) < _MAX_EVENT_BYTES and (more := self._file.read(_CHUNK)):
            tail += more
        self.properties = _parse_text(self._head + b'"traceEvents":[]' + tail + self._foot)


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        parsed = _parse_text(text)
    except NotATrace:
        return None
    return parsed if isinstance(parsed, dict) else None


def _parse_text(text: bytes) -> Any:
    try:
        return json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError) as error:
        raise NotATrace(f"is not valid JSON: {error}.") from None


def _last_event(text: bytes) -> tuple[int, int]:
    """Return the likely end of the last complete event and begin of the next: ``}``, a comma and ``{``."""
    at = len(text)
    for _ in range(_BRACES):
        at = text.rfind(b"{", 0, at)
        if at < 0:
            break
        before = text[max(at - _GAP, 0) : at].rstrip()
        if before.endswith(b",") and (end := before[:-1].rstrip()).endswith(b"}"):
            return max(at - _GAP, 0) + len(end), at
    return 0, 0


def _scan(text: bytes, first: bool, final: bool, kind: type[Event]) -> tuple[Batch, bytes, bool]:
    """Parse event by event, which is slower but finds the end of the list and accepts unusual fields.

    Returns the events, the text after them, and whether the list has ended.
    """
    # Bytes that are not UTF-8 survive encoding again; a name that holds them is cleaned.
    decoded = text.decode("utf-8", "surrogateescape")
    batch: Batch = []
    begin = _space(decoded, 0)
    if first and decoded.startswith("]", begin):
        return batch, _encode_text(decoded[begin + 1 :]), True
    while True:
        try:
            value, end = _LENIENT.raw_decode(decoded, begin)
        except (ValueError, RecursionError) as error:
            if final or isinstance(error, RecursionError):
                raise NotATrace(f"is not valid JSON: {error}.") from None
            return batch, _encode_text(decoded[begin:]), False
        end = _space(decoded, end)
        if end == len(decoded) and not final:
            return batch, _encode_text(decoded[begin:]), False
        batch.append(_lenient(value, kind))
        if decoded.startswith("]", end):
            return batch, _encode_text(decoded[end + 1 :]), True
        if not decoded.startswith(",", end):
            raise NotATrace(f"is not valid JSON: no comma after event {len(batch)} of the last piece.")
        begin = _space(decoded, end + 1)


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _lenient(value: object, kind: type[Event]) -> Event | None:
    """Build an event from parsed JSON; a field of a wrong type counts as absent."""
    if not isinstance(value, dict):
        return None
    event = kind()
    for name in _TEXTS:
        if isinstance(text := value.get(name), str):
            # JSON can spell halves of surrogate pairs, which UTF-8 cannot.
            setattr(event, name, text.encode("utf-8", "replace").decode("utf-8"))
    for name in kind.__struct_fields__:
        try:
            if name in value and name not in _TEXTS:
                setattr(event, name, msgspec.Raw(msgspec.json.encode(value[name])))
        except (ValueError, OverflowError):
            continue
    return event
