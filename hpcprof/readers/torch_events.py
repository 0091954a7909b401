"""The events of a PyTorch trace that a timeline holds, as columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from hpcprof.readers.torch_collectives import Recorded, recorded
from hpcprof.timeline import NO_CORRELATION, Ints

Event = Mapping[str, Any]
Row = tuple[Any, ...]

_INT64 = np.iinfo(np.int64)


class _Unusable(Exception):
    """A field that a row needs is absent or holds something else."""


@dataclass
class Rows:
    """Rows of one kind of event, with the names of their fields."""

    fields: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, name: str) -> list[Any]:
        """Return a field of every row."""
        at = self.fields.index(name)
        return [row[at] for row in self.rows]

    def column(self, name: str) -> Ints:
        """Return an integer field, shape (n,)."""
        return np.array(self.values(name), np.int64)

    def triple(self, name: str) -> Ints:
        """Return a field of three integers, shape (n, 3)."""
        return self.column(name).reshape(-1, 3)


_HOST = ("name", "start", "end", "process", "thread")
_GPU = ("name", "start", "end", "device", "stream", "correlation")


@dataclass
class Events:
    """What a trace holds of each kind; ``notes`` counts what was left out."""

    kernels: Rows = field(default_factory=lambda: Rows((*_GPU, "grid", "block")))
    memory: Rows = field(default_factory=lambda: Rows((*_GPU, "bytes")))
    calls: Rows = field(default_factory=lambda: Rows((*_HOST, "correlation")))
    ranges: Rows = field(default_factory=lambda: Rows(_HOST))
    collectives: list[Recorded] = field(default_factory=list)
    notes: tuple[str, ...] = ()


def collect(trace_events: Iterable[Any]) -> Events:
    """Sort a trace's events into kinds, in the trace's order; other categories are passed over."""
    events = Events()
    kinds: dict[str, tuple[Rows, Callable[[Event], Row], str]] = {
        "kernel": (events.kernels, _kernel, "kernel"),
        "gpu_memcpy": (events.memory, _memory, "memory operation"),
        "gpu_memset": (events.memory, _memory, "memory operation"),
        "cuda_runtime": (events.calls, _call, "API call"),
        "cuda_driver": (events.calls, _call, "API call"),
        "user_annotation": (events.ranges, _host, "range"),
    }
    left_out: Counter[str] = Counter()
    for event in trace_events:
        if not isinstance(event, dict):
            left_out["unknown"] += 1
            continue
        category = event.get("cat")
        kind = kinds.get(category) if isinstance(category, str) else None
        if kind is None:
            continue
        table, build, what = kind
        try:
            table.rows.append(build(event))
        except _Unusable:
            left_out[what] += 1
            continue
        if table is events.kernels:
            events.collectives += filter(None, [recorded(_arguments(event), table.rows[-1][5])])
    events.notes = tuple(
        f"{n} {what} event{'s lack' if n > 1 else ' lacks'} a field and {'are' if n > 1 else 'is'} left out."
        for what, n in sorted(left_out.items())
    )
    return events


def nanoseconds(value: object) -> int:
    """Return a time in microseconds, as the trace writes it, in nanoseconds.

    The text is taken digit by digit: a double has 16 digits, and a stamp of 1.7e15 us with three
    decimals has 19. Anything below a nanosecond is rounded to the nearest, to even on a tie.

    Raises
    ------
    ValueError
        If the value is no number or does not fit 64 bits.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        time = value * 1000
    elif isinstance(value, str):
        whole, _, fraction = value.partition(".")
        if len(fraction) <= 3 and fraction.isdecimal():
            time = int(whole + fraction.ljust(3, "0"))
        else:
            time = _rounded(value)
    else:
        raise ValueError(f"{value!r} is no time")
    if not _INT64.min < time <= _INT64.max:
        raise ValueError(f"{value!r} does not fit 64 bits")
    return time


def _rounded(value: str) -> int:
    try:
        number = Decimal(value) * 1000
    except InvalidOperation:
        raise ValueError(f"{value!r} is no time") from None
    if not number.is_finite() or number.adjusted() > 19:
        raise ValueError(f"{value!r} is no time")
    return int(number.to_integral_value())


def _time(event: Event) -> tuple[str, int, int]:
    """Return name, start and end of a complete event."""
    name = event.get("name")
    if event.get("ph") != "X" or not isinstance(name, str):
        raise _Unusable
    try:
        start = nanoseconds(event.get("ts"))
        end = start + nanoseconds(event.get("dur"))
    except ValueError:
        raise _Unusable from None
    return _clean(name), start, _int(end)


def _clean(name: str) -> str:
    """Replace halves of surrogate pairs, which JSON can spell and UTF-8 cannot."""
    return name if name.isascii() else name.encode("utf-8", "replace").decode("utf-8")


def _int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and _INT64.min < value <= _INT64.max:
        return value
    raise _Unusable


def _host(event: Event) -> Row:
    return (*_time(event), _int(event.get("pid")), _int(event.get("tid")))


def _arguments(event: Event) -> Event:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _call(event: Event) -> Row:
    return (*_host(event), _int(_arguments(event).get("correlation", NO_CORRELATION)))


def _gpu(event: Event) -> Row:
    """Return the fields of GPU work; its pid and tid are the device and the stream."""
    arguments = _arguments(event)
    device = _int(arguments.get("device", event.get("pid")))
    stream = _int(arguments.get("stream", event.get("tid")))
    return (*_time(event), device, stream, _int(arguments.get("correlation", NO_CORRELATION)))


def _kernel(event: Event) -> Row:
    return (*_gpu(event), _shape(event, "grid"), _shape(event, "block"))


def _memory(event: Event) -> Row:
    return (*_gpu(event), _int(_arguments(event).get("bytes", -1)))


def _shape(event: Event, name: str) -> tuple[int, int, int]:
    """Return a grid or block; (1, 1, 1) where the trace has none."""
    values = _arguments(event).get(name, [1, 1, 1])
    if not isinstance(values, list) or len(values) != 3:
        raise _Unusable
    x, y, z = map(_int, values)
    return x, y, z
