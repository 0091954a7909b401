"""The events of a PyTorch trace that a timeline holds, as columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.readers.kineto.collectives import Recorded, recorded
from hpcprof.profiles.readers.kineto.json_stream import Batch, Event
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import HOST, NO_CORRELATION, NO_NAME, SHAPES, IntColumns, Ints, plausible

_INT64 = np.iinfo(np.int64)
Int64 = Annotated[int, msgspec.Meta(ge=int(_INT64.min), le=int(_INT64.max))]
_Shape = tuple[Int64, Int64, Int64]
Categories = tuple[str, ...]
Mask = NDArray[np.bool_]
Built = tuple[IntColumns, Mask]
"""Columns with one row per event, and which rows are valid."""
ValueT = TypeVar("ValueT")

# Kineto writes microseconds with three decimals. The pattern accepts those that fit 64 bits in nanoseconds.
# Each text matches in at most one way; otherwise a list with one odd time would be tried in 2**n ways.
_THREE_DECIMALS = re.compile(rb"(?:-?(?:[0-9]{1,15}|[0-8][0-9]{15})\.[0-9]{3},)*")
_MEMORY = "[memory]"
_COLLECTIVE = b'"Collective name"'


class Arguments(msgspec.Struct, gc=False):
    """The arguments of an event that concern the GPU."""

    device: Int64 | None = None
    stream: Int64 | None = None
    correlation: Int64 = NO_CORRELATION
    bytes: Int64 = -1
    grid: _Shape = (1, 1, 1)
    block: _Shape = (1, 1, 1)


class RangeArguments(msgspec.Struct, gc=False):
    """Whether a range ended before the profiler stopped, which writes its own end for the others."""

    finished: bool = True


class AllocatorArguments(msgspec.Struct, gc=False):
    """The arguments of an event of the allocator; device type 0 is the host (c10::DeviceType)."""

    bytes: Int64 = msgspec.field(name="Bytes")
    allocated: Int64 = msgspec.field(name="Total Allocated")
    reserved: Int64 = msgspec.field(name="Total Reserved")
    device: Int64 = msgspec.field(name="Device Id")
    device_type: Int64 = msgspec.field(name="Device Type")


class BatchDecoder(Generic[ValueT]):
    """Decodes values of one type: all at once if they are valid, else one by one."""

    def __init__(self, kind: Any) -> None:
        self._all: msgspec.json.Decoder[list[ValueT]] = msgspec.json.Decoder(list[kind])
        self._one: msgspec.json.Decoder[ValueT] = msgspec.json.Decoder(kind)

    def __call__(self, written: Sequence[msgspec.Raw | bytes]) -> Sequence[ValueT | None]:
        """Return the values; None for one that is absent or of another type."""
        try:
            return self._all.decode(b"[%b]" % b",".join(written))
        except msgspec.DecodeError:
            return [self._single(bytes(value)) for value in written]

    def _single(self, value: bytes) -> ValueT | None:
        try:
            return self._one.decode(value)
        except msgspec.DecodeError:
            return None


_INTEGERS: BatchDecoder[int] = BatchDecoder(Int64)
_ARGUMENTS: BatchDecoder[Arguments] = BatchDecoder(Arguments)
_NO_ARGUMENTS = Arguments()
_RANGE_ARGUMENTS: BatchDecoder[RangeArguments] = BatchDecoder(RangeArguments)
_NO_ALLOCATION = AllocatorArguments(0, 0, 0, 0, 0)
_ALLOCATOR: BatchDecoder[AllocatorArguments] = BatchDecoder(AllocatorArguments)


class TableRows:
    """The rows of one table, collected batch by batch."""

    def __init__(self, *fields: str) -> None:
        self._batches: dict[str, list[Ints]] = {
            name: [np.empty(SHAPES.get(name, (0,)), np.int64)] for name in fields
        }

    def add(self, columns: IntColumns, valid: Mask) -> None:
        """Append the valid rows."""
        for name, batches in self._batches.items():
            batches.append(columns[name] if valid.all() else columns[name][valid])

    def columns(self) -> IntColumns:
        """Return the whole columns."""
        return {name: np.concatenate(batches) for name, batches in self._batches.items()}


_HOST = ("name", "start", "end", "process", "thread")
_GPU = ("name", "start", "end", "device", "stream", "correlation")


class Events:
    """The events of a trace by kind, collected batch by batch; names are numbers in ``strings``."""

    def __init__(self) -> None:
        self.strings = StringTable()
        self.kernels = TableRows(*_GPU, "grid", "block")
        self.memory = TableRows(*_GPU, "bytes")
        self.graphs = TableRows(*_GPU)
        self.calls = TableRows(*_HOST, "correlation")
        self.ranges = TableRows(*_HOST, "closed")
        self.gpu_marks = TableRows(*_GPU)
        self.allocations = TableRows("time", "device", "bytes", "allocated", "reserved")
        self.collectives: list[Recorded] = []
        self._left_out: Counter[str] = Counter()
        self._kinds: tuple[tuple[Categories, TableRows, Callable[[list[Event]], Built], str], ...] = (
            (("kernel",), self.kernels, self._kernels, "kernel"),
            (("gpu_memcpy", "gpu_memset"), self.memory, self._on_gpu, "memory operation"),
            (("cuda_graph",), self.graphs, self._on_gpu, "CUDA graph"),
            (("cuda_runtime", "cuda_driver"), self.calls, self._calls, "API call"),
            (("user_annotation",), self.ranges, self._ranges, "range"),
            (("gpu_user_annotation", "cuda_sync"), self.gpu_marks, self._on_gpu, "GPU annotation"),
            (("cpu_instant_event",), self.allocations, _allocations, "allocation"),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that count the events that were left out."""
        return tuple(
            f"{n} {what} events lack a valid field and are left out."
            if n > 1
            else f"1 {what} event lacks a valid field and is left out."
            for what, n in sorted(self._left_out.items())
        )

    def add(self, batch: Batch) -> None:
        """Add the events of a batch to their tables; other categories are ignored."""
        by_kind: list[list[Event]] = [[] for _ in self._kinds]
        by_category: dict[str | None, list[Event]] = {
            category: events
            for (categories, *_), events in zip(self._kinds, by_kind, strict=True)
            for category in categories
        }
        for event in batch:
            if event is None:
                self._left_out["unknown"] += 1
            elif (events := by_category.get(event.cat)) is not None:
                events.append(event)
        for (_, table, build, what), events in zip(self._kinds, by_kind, strict=True):
            if events:
                columns, valid = build(events)
                table.add(columns, valid)
                if lost := len(valid) - int(np.count_nonzero(valid)):
                    self._left_out[what] += lost

    def _timed(self, events: list[Event]) -> Built:
        name = self.strings.add_all(event.name for event in events)
        complete = np.fromiter((event.ph == "X" for event in events), np.bool_, len(events))
        start, started = times([event.ts for event in events])
        duration, lasts = times([event.dur for event in events])
        end = start + duration
        # A sum that does not fit 64 bits wraps around.
        forward = (duration >= 0) & (end >= start) & plausible(start, end)
        valid = complete & started & lasts & forward & (name != NO_NAME)
        return {"name": name, "start": start, "end": end}, valid

    def _on_host(self, events: list[Event]) -> Built:
        columns, valid = self._timed(events)
        process, in_process = _integers([event.pid for event in events])
        thread, on_thread = _integers([event.tid for event in events])
        return columns | {"process": process, "thread": thread}, valid & in_process & on_thread

    def _ranges(self, events: list[Event]) -> Built:
        columns, valid = self._on_host(events)
        arguments = _RANGE_ARGUMENTS([event.args for event in events])
        closed = np.array([a is None or a.finished for a in arguments], np.int64)
        return columns | {"closed": closed}, valid

    def _calls(self, events: list[Event]) -> Built:
        columns, valid = self._on_host(events)
        arguments, told = _arguments(events)
        correlation = np.array([a.correlation for a in arguments], np.int64)
        return columns | {"correlation": correlation}, valid & told

    def _kernels(self, events: list[Event]) -> Built:
        """Build the kernels, and keep the record of those that communicate."""
        columns, valid = self._on_gpu(events)
        for row in np.flatnonzero(valid).tolist():
            written = bytes(events[row].args)
            if _COLLECTIVE in written:
                record = recorded(msgspec.json.decode(written), int(columns["correlation"][row]))
                self.collectives += [record] if record else []
        return columns, valid

    def _on_gpu(self, events: list[Event]) -> Built:
        """Build GPU work and annotations; without arguments, the device is the pid and the stream the tid."""
        columns, valid = self._timed(events)
        arguments, told = _arguments(events)
        device, on_device = _told([a.device for a in arguments], [event.pid for event in events])
        stream, on_stream = _told([a.stream for a in arguments], [event.tid for event in events])
        columns |= {
            "device": device,
            "stream": stream,
            "correlation": np.array([a.correlation for a in arguments], np.int64),
            "bytes": np.array([a.bytes for a in arguments], np.int64),
            "grid": np.array([a.grid for a in arguments], np.int64),
            "block": np.array([a.block for a in arguments], np.int64),
        }
        return columns, valid & told & on_device & on_stream


def _allocations(events: list[Event]) -> Built:
    """Build the events of the allocator; other instant events are ignored."""
    events = [event for event in events if event.name == _MEMORY]
    time, timed = times([event.ts for event in events])
    arguments = _ALLOCATOR([event.args for event in events])
    told = [a or _NO_ALLOCATION for a in arguments]
    columns = {
        "time": time,
        "device": np.array([HOST if a.device_type == 0 else a.device for a in told], np.int64),
        "bytes": np.array([a.bytes for a in told], np.int64),
        "allocated": np.array([a.allocated for a in told], np.int64),
        "reserved": np.array([a.reserved for a in told], np.int64),
    }
    return columns, timed & _present(arguments)


def _arguments(events: list[Event]) -> tuple[list[Arguments], Mask]:
    arguments = _ARGUMENTS([event.args for event in events])
    return [a or _NO_ARGUMENTS for a in arguments], _present(arguments)


def _integers(written: list[msgspec.Raw]) -> tuple[Ints, Mask]:
    values = _INTEGERS(written)
    return np.array([value or 0 for value in values], np.int64), _present(values)


def _told(values: list[int | None], otherwise: list[msgspec.Raw]) -> tuple[Ints, Mask]:
    """Return the values, with those of another field in place of None."""
    told = _present(values)
    column = np.array([value or 0 for value in values], np.int64)
    if told.all():
        return column, told
    other, valid = _integers(otherwise)
    return np.where(told, column, other), told | valid


def _present(values: Sequence[object]) -> Mask:
    return np.fromiter((value is not None for value in values), np.bool_, len(values))


def times(written: list[msgspec.Raw]) -> tuple[Ints, Mask]:
    """Convert times from microseconds, as a trace writes them, to nanoseconds; also return which are valid.

    They are converted from the text, since a double has 16 digits, and a stamp of 1.7e15 us with three
    decimals has 19.
    """
    text = b",".join(written)
    if _THREE_DECIMALS.fullmatch(text + b","):
        digits = text.replace(b".", b"").decode()
        return np.fromstring(digits, np.int64, sep=","), np.ones(len(written), np.bool_)
    values: list[int | None] = [_nanoseconds_or_none(bytes(value)) for value in written]
    return np.array([value or 0 for value in values], np.int64), _present(values)


def _nanoseconds_or_none(written: bytes) -> int | None:
    try:
        return nanoseconds(written.decode())
    except ValueError:
        return None


def nanoseconds(written: str) -> int:
    """Convert a time from microseconds to nanoseconds; fractions are rounded, ties to even.

    Raises
    ------
    ValueError
        If the text is not a number or the time does not fit 64 bits.
    """
    whole, _, fraction = written.partition(".")
    if len(fraction) <= 3 and fraction.isdecimal():
        time = int(whole + fraction.ljust(3, "0"))
    else:
        time = _rounded(written)
    if not _INT64.min < time <= _INT64.max:
        raise ValueError(f"{written!r} does not fit 64 bits")
    return time


def _rounded(written: str) -> int:
    try:
        number = Decimal(written) * 1000
    except InvalidOperation:
        raise ValueError(f"{written!r} is not a time") from None
    if not number.is_finite() or number.adjusted() > 19:
        raise ValueError(f"{written!r} is not a time")
    return int(number.to_integral_value())
