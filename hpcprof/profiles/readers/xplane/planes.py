"""The planes of an XSpace, each with its events as columns.

The numbers of the fields are those of xplane.proto (openxla/xla, third_party/tsl/tsl/profiler/protobuf). A
plane is a device or the host, a line one of its streams or threads. Events share their names, and have
statistics by name.
"""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from hpcprof.profiles.columns.unique import each
from hpcprof.profiles.readers.xplane.wire import NO_PART, Bytes, Damage, Field, Fields, columns_of, fields_of
from hpcprof.profiles.timeline import Ints, Mask, plausible

NOT_GIVEN = -1
"""Stands for a statistic that an event does not have."""

_PS_PER_NS = 1000
_DOUBLE, _TEXT, _BYTES, _REFERENCE = 2, 5, 6, 7
_STAT_VALUES = (_DOUBLE, 3, 4, _TEXT, _BYTES, _REFERENCE)

Stat = int | float | str | bytes


class Line(msgspec.Struct, frozen=True):
    """A stream or a thread."""

    number: int
    name: str
    start_ns: int


class Metadata(msgspec.Struct, frozen=True):
    """The common part of the events of one name."""

    name: str
    display_name: str = ""
    stats: dict[str, Stat] = msgspec.field(default_factory=dict)


class _Stats(NamedTuple):
    """Statistics of events: the event, the key of the name, the field of the value, the value and its end."""

    event: Ints
    key: Ints
    kind: Ints
    value: Ints
    end: Ints


class Plane(msgspec.Struct, frozen=True, dict=True):
    """A plane; the arrays have shape (events,).

    ``line`` is the position of the event's line in ``lines``; ``start`` is in ns on the file's clock, and
    ``metadata_id`` the key of its name in ``metadata``.
    """

    data: bytes
    name: str
    stats: dict[str, Stat]
    lines: tuple[Line, ...]
    metadata: dict[int, Metadata]
    stat_names: dict[int, str]
    line: Ints
    start: Ints
    duration: Ints
    metadata_id: Ints
    stats_of_events: Fields
    untimed: int
    """The number of events without a possible time, which are left out."""

    @property
    def end(self) -> Ints:
        """End of each event."""
        return self.start + self.duration

    def metadata_name(self, key: int) -> str:
        """Return the name of the events with this key; empty if the file has none."""
        return self.metadata[key].name if key in self.metadata else ""

    def matching(self, function: Callable[[str], object]) -> Mask:
        """Return a mask of the events whose names satisfy a function, shape (events,)."""
        chosen = [key for key, one in self.metadata.items() if function(one.name)]
        return np.isin(self.metadata_id, chosen)

    def has(self, stat: str) -> Mask:
        """Return which events have a statistic, shape (events,)."""
        found = np.zeros(len(self.start), bool)
        found[self._stats.event[self._rows(stat)]] = True
        return found

    def numbers(self, stat: str) -> Ints:
        """Return a statistic of each event that is a whole number; `NOT_GIVEN` without one."""
        values = np.full(len(self.start), NOT_GIVEN)
        rows = self._rows(stat)
        values[self._stats.event[rows]] = self._stats.value[rows]
        return values

    def texts(self, stat: str) -> tuple[list[str], Ints]:
        """Return the distinct texts of a statistic, and the position of each event's; `NOT_GIVEN` if none."""
        rows = self._rows(stat)
        kind, value, end = self._stats.kind[rows], self._stats.value[rows], self._stats.end[rows]
        texts: dict[str, int] = {}
        position = np.full(len(rows), NOT_GIVEN)
        references = np.flatnonzero(kind == _REFERENCE)
        position[references] = each(
            value[references], lambda key: texts.setdefault(self.stat_names.get(key, ""), len(texts))
        )
        for at in np.flatnonzero(kind == _TEXT).tolist():
            text = _text(self.data, int(value[at]), int(end[at]))
            position[at] = texts.setdefault(text, len(texts))
        result = np.full(len(self.start), NOT_GIVEN)
        result[self._stats.event[rows]] = position
        return [*texts], result

    def _rows(self, stat: str) -> Ints:
        keys = [key for key, name in self.stat_names.items() if name == stat]
        return np.flatnonzero(np.isin(self._stats.key, keys))

    @cached_property
    def _stats(self) -> _Stats:
        event, begin, end = self.stats_of_events.parts(4)
        found = columns_of(np.frombuffer(self.data, np.uint8), begin, end)
        kind, value, value_end = (np.zeros(len(event), np.int64) for _ in range(3))
        rows = np.isin(found.number, _STAT_VALUES)
        rows &= (found.end != NO_PART) == np.isin(found.number, (_TEXT, _BYTES))
        kind[found.row[rows]] = found.number[rows]
        value[found.row[rows]] = found.value[rows]
        value_end[found.row[rows]] = found.end[rows]
        return _Stats(event, found.last(1, len(event)), kind, value, value_end)


_MOST_PLANES, _MOST_LINES = 4096, 200_000
"""Maximum number of devices and hosts of a process, and of the threads and streams of each."""


def space_of(data: bytes) -> tuple[list[Plane], str | None]:
    """Return the planes of an XSpace, and the name of the host if it has one.

    Raises Damage if the bytes are no XSpace.
    """
    columns = np.frombuffer(data, np.uint8)
    parts, host = [], None
    for one in fields_of(data, 0, len(data)):
        if one.number == 1 and one.end != NO_PART:
            parts.append(one)
            if len(parts) > _MOST_PLANES:
                raise Damage
        elif one.number == 4 and one.end != NO_PART:
            host = _text(data, one.value, one.end) or None
    return [_plane(data, columns, part) for part in parts], host


def _plane(data: bytes, columns: Bytes, message: Field) -> Plane:
    name, lines, events, stats, stat_names = "", [], [], [], {}
    for one in fields_of(data, message.value, message.end):
        if one.end == NO_PART:
            continue
        if one.number == 2:
            name = _text(data, one.value, one.end)
        elif one.number == 3:
            lines.append(one)
            if len(lines) > _MOST_LINES:
                raise Damage
        elif one.number == 4:
            events.append(one)
        elif one.number == 5:
            key, value = _entry(data, one)
            stat_names[key] = next(
                (_text(data, *n[1:]) for n in value if n.number == 2 and n.end != NO_PART), ""
            )
        elif one.number == 6:
            stats.append(one)
    metadata = dict(_metadata(data, event, stat_names) for event in events)
    found, row, begin, end = _lines(data, lines)
    first = np.array([line.start_ns for line in found], np.int64)
    fields, start, length = _times(columns, begin, end, first[row])
    timed = plausible(start, start + length) & (length >= 0)
    if not timed.all():
        row, begin, end = row[timed], begin[timed], end[timed]
        fields, start, length = _times(columns, begin, end, first[row])
    return Plane(
        data,
        name,
        dict(stat for one in stats if (stat := _stat(data, one, stat_names))),
        found,
        metadata,
        stat_names,
        row,
        start,
        length,
        fields.last(1, len(begin)),
        fields,
        int(np.count_nonzero(~timed)),
    )


def _times(columns: Bytes, begin: Ints, end: Ints, first: Ints) -> tuple[Fields, Ints, Ints]:
    """Return the fields of events, their starts and their durations, given the starts of their lines."""
    fields = columns_of(columns, begin, end)
    offset, length = (fields.last(number, len(begin)) for number in (2, 3))
    return fields, first + offset // _PS_PER_NS, length // _PS_PER_NS


def _lines(data: bytes, messages: list[Field]) -> tuple[tuple[Line, ...], Ints, Ints, Ints]:
    """Return the lines, and of each event the position of its line and its part of the file."""
    lines, row, begin, end = [], [], [], []
    for position, message in enumerate(messages):
        number = start = 0
        name = ""
        for one in fields_of(data, message.value, message.end):
            if one.number == 4 and one.end != NO_PART:
                row.append(position)
                begin.append(one.value)
                end.append(one.end)
            elif one.number == 1:
                number = one.value
            elif one.number == 2 and one.end != NO_PART:
                name = _text(data, one.value, one.end)
            elif one.number == 3:
                start = _signed(one.value)
        lines.append(Line(number, name, start))
    rows, begins, ends = (np.array(column, np.int64) for column in (row, begin, end))
    return tuple(lines), rows, begins, ends


def _entry(data: bytes, message: Field) -> tuple[int, list[Field]]:
    """Return the key and the fields of the value of an entry of a map."""
    key, value = 0, []
    for one in fields_of(data, message.value, message.end):
        if one.number == 1 and one.end == NO_PART:
            key = _signed(one.value)
        elif one.number == 2 and one.end != NO_PART:
            value = list(fields_of(data, one.value, one.end))
    return key, value


def _metadata(data: bytes, message: Field, stat_names: dict[int, str]) -> tuple[int, Metadata]:
    key, value = _entry(data, message)
    parts = [one for one in value if one.end != NO_PART]
    texts = {part.number: _text(data, part.value, part.end) for part in parts if part.number in (2, 4)}
    stats = [_stat(data, part, stat_names) for part in parts if part.number == 5]
    return key, Metadata(texts.get(2, ""), texts.get(4, ""), dict(stat for stat in stats if stat))


def _stat(data: bytes, message: Field, names: dict[int, str]) -> tuple[str, Stat] | None:
    """Return the name and the value of a statistic that is not one of an event."""
    key, value = 0, None
    for one in fields_of(data, message.value, message.end):
        if one.number == 1:
            key = one.value
        elif one.number in _STAT_VALUES:
            value = one
    if value is None or key not in names:
        return None
    if (value.end != NO_PART) != (value.number in (_TEXT, _BYTES)):
        return None
    made: Stat = _signed(value.value)
    if value.number == _DOUBLE:
        made = float(np.array([_signed(value.value)]).view(np.float64)[0])
    elif value.number == _TEXT:
        made = _text(data, value.value, value.end)
    elif value.number == _BYTES:
        made = data[value.value : value.end]
    elif value.number == _REFERENCE:
        made = names.get(value.value, "")
    return names[key], made


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(data: bytes, begin: int, end: int) -> str:
    return data[begin:end].decode("utf-8", "replace")
