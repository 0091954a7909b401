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

from hpcprof.profiles.columns.unique import map_unique
from hpcprof.profiles.readers.xplane.wire import NO_PART, Bytes, Damage, Field, Fields, columns_of, fields_of
from hpcprof.profiles.timeline import Ints, Mask, has_plausible_times

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
        chosen = [key for key, metadata in self.metadata.items() if function(metadata.name)]
        return np.isin(self.metadata_id, chosen)

    def has(self, stat: str) -> Mask:
        """Return a mask of the events that have a statistic, shape (events,)."""
        mask = np.zeros(len(self.start), bool)
        mask[self._stats.event[self._rows(stat)]] = True
        return mask

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
        position[references] = map_unique(
            value[references], lambda key: texts.setdefault(self.stat_names.get(key, ""), len(texts))
        )
        for at in np.flatnonzero(kind == _TEXT).tolist():
            position[at] = texts.setdefault(
                Field(_TEXT, int(value[at]), int(end[at])).text(self.data), len(texts)
            )
        result = np.full(len(self.start), NOT_GIVEN)
        result[self._stats.event[rows]] = position
        return [*texts], result

    def _rows(self, stat: str) -> Ints:
        keys = [key for key, name in self.stat_names.items() if name == stat]
        return np.flatnonzero(np.isin(self._stats.key, keys))

    @cached_property
    def _stats(self) -> _Stats:
        event, begin, end = self.stats_of_events.parts(4)
        fields = columns_of(np.frombuffer(self.data, np.uint8), begin, end)
        kind, value, value_end = (np.zeros(len(event), np.int64) for _ in range(3))
        rows = np.isin(fields.number, _STAT_VALUES)
        rows &= (fields.end != NO_PART) == np.isin(fields.number, (_TEXT, _BYTES))
        kind[fields.row[rows]] = fields.number[rows]
        value[fields.row[rows]] = fields.value[rows]
        value_end[fields.row[rows]] = fields.end[rows]
        return _Stats(event, fields.last(1, len(event)), kind, value, value_end)


_MAX_PLANES, _MAX_LINES = 4096, 200_000
"""Maximum number of devices and hosts of a process, and of the threads and streams of each."""


def read_planes(data: bytes) -> tuple[list[Plane], str | None]:
    """Return the planes of an XSpace, and the name of the host if it has one.

    Raises Damage if the bytes are no XSpace.
    """
    columns = np.frombuffer(data, np.uint8)
    parts, host = [], None
    for field in fields_of(data, 0, len(data)):
        if field.number == 1 and field.is_part:
            parts.append(field)
            if len(parts) > _MAX_PLANES:
                raise Damage
        elif field.number == 4 and field.is_part:
            host = field.text(data) or None
    return [_plane(data, columns, part) for part in parts], host


def _plane(data: bytes, columns: Bytes, message: Field) -> Plane:
    name, lines, events, stats, stat_names = "", [], [], [], {}
    for field in fields_of(data, message.value, message.end):
        if not field.is_part:
            continue
        if field.number == 2:
            name = field.text(data)
        elif field.number == 3:
            lines.append(field)
            if len(lines) > _MAX_LINES:
                raise Damage
        elif field.number == 4:
            events.append(field)
        elif field.number == 5:
            key, value = _entry(data, field)
            stat_names[key] = next(
                (part.text(data) for part in value if part.number == 2 and part.is_part), ""
            )
        elif field.number == 6:
            stats.append(field)
    metadata = dict(_metadata(data, event, stat_names) for event in events)
    lines_of_plane, row, begin, end = _lines(data, lines)
    line_start = np.array([line.start_ns for line in lines_of_plane], np.int64)
    fields, start, length = _times(columns, begin, end, line_start[row])
    timed = has_plausible_times(start, start + length) & (length >= 0)
    if not timed.all():
        row, begin, end = row[timed], begin[timed], end[timed]
        fields, start, length = _times(columns, begin, end, line_start[row])
    return Plane(
        data,
        name,
        dict(stat for field in stats if (stat := _stat(data, field, stat_names))),
        lines_of_plane,
        metadata,
        stat_names,
        row,
        start,
        length,
        fields.last(1, len(begin)),
        fields,
        int(np.count_nonzero(~timed)),
    )


def _times(columns: Bytes, begin: Ints, end: Ints, line_start: Ints) -> tuple[Fields, Ints, Ints]:
    """Return the fields of events, their starts and their durations, given the starts of their lines."""
    fields = columns_of(columns, begin, end)
    offset, length = (fields.last(number, len(begin)) for number in (2, 3))
    return fields, line_start + offset // _PS_PER_NS, length // _PS_PER_NS


def _lines(data: bytes, messages: list[Field]) -> tuple[tuple[Line, ...], Ints, Ints, Ints]:
    """Return the lines, and the position of its line, the begin and the end in the file of each event."""
    lines, row, begin, end = [], [], [], []
    for position, message in enumerate(messages):
        number = start = 0
        name = ""
        for field in fields_of(data, message.value, message.end):
            if field.number == 4 and field.is_part:
                row.append(position)
                begin.append(field.value)
                end.append(field.end)
            elif field.number == 1:
                number = field.value
            elif field.number == 2 and field.is_part:
                name = field.text(data)
            elif field.number == 3:
                start = _signed_number(field.value)
        lines.append(Line(number, name, start))
    rows, begins, ends = (np.array(column, np.int64) for column in (row, begin, end))
    return tuple(lines), rows, begins, ends


def _entry(data: bytes, message: Field) -> tuple[int, list[Field]]:
    key, value = 0, []
    for field in fields_of(data, message.value, message.end):
        if field.number == 1 and not field.is_part:
            key = _signed_number(field.value)
        elif field.number == 2 and field.is_part:
            value = list(fields_of(data, field.value, field.end))
    return key, value


def _metadata(data: bytes, message: Field, stat_names: dict[int, str]) -> tuple[int, Metadata]:
    key, value = _entry(data, message)
    parts = [field for field in value if field.is_part]
    texts = {part.number: part.text(data) for part in parts if part.number in (2, 4)}
    stats = [_stat(data, part, stat_names) for part in parts if part.number == 5]
    return key, Metadata(texts.get(2, ""), texts.get(4, ""), dict(stat for stat in stats if stat))


def _stat(data: bytes, message: Field, names: dict[int, str]) -> tuple[str, Stat] | None:
    """Return the name and the value of a statistic of a plane or of an event's metadata."""
    key, value = 0, None
    for field in fields_of(data, message.value, message.end):
        if field.number == 1:
            key = field.value
        elif field.number in _STAT_VALUES:
            value = field
    if value is None or key not in names:
        return None
    if value.is_part != (value.number in (_TEXT, _BYTES)):
        return None
    decoded: Stat = _signed_number(value.value)
    if value.number == _DOUBLE:
        decoded = float(np.array([_signed_number(value.value)]).view(np.float64)[0])
    elif value.number == _TEXT:
        decoded = value.text(data)
    elif value.number == _BYTES:
        decoded = data[value.value : value.end]
    elif value.number == _REFERENCE:
        decoded = names.get(value.value, "")
    return names[key], decoded


def _signed_number(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
