"""Reader of the Chrome traces of Intel's unitrace.

Work on the GPU has the category ``gpu_op`` and processes of its own, one per device or tile, which metadata
names. Each operation has an id, which the arrow ``Flow_H2D_…`` from its call on the host has too. The arrow
back begins at the operation's start, so it does not tell when the host knew of its end.
"""

import glob
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from hpcprof.common.errors import DamagedInput, reading
from hpcprof.profiles import kernel_classification
from hpcprof.profiles.columns.intervals import styles_of_threads
from hpcprof.profiles.columns.joins import latest_rows
from hpcprof.profiles.host_memory import HostMemory
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.declaration import ProfilePart, rank_from_name
from hpcprof.profiles.readers.foreign_files import foreign_kind
from hpcprof.profiles.readers.kineto.events import integers
from hpcprof.profiles.readers.kineto.json_stream import Event
from hpcprof.profiles.readers.kineto.stamps import times
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.readers.unitrace import UNITRACE
from hpcprof.profiles.timeline import (
    NO_BYTES,
    NO_CORRELATION,
    ApiCalls,
    Category,
    Gpu,
    GpuMarks,
    IntColumns,
    Ints,
    KernelCounters,
    Kernels,
    MemoryOperations,
    MpiCalls,
    Origin,
    Ranges,
    Timeline,
)

_EVENTS = re.compile(rb'\{\s*"traceEvents"\s*:\s*\[')
_UNITRACE_WORDS = re.compile(rb'(?:HOST|DEVICE)<|"gpu_op"|"(?:CL_)?Flow_H2D_|"ph": "\w", "tid": \d+, "pid": ')
"""Names of processes, categories and the order of keys that unitrace alone writes into Chrome traces."""
_HEAD_BYTES = 1 << 16
_HOST = re.compile(r"(?:RANK (?P<rank>\d{1,9}) )?HOST<(?P<host>[^>]*)>")
_DEVICE = re.compile(
    r"DEVICE<[^>]*>(?:\[(?P<name>.*?)\] )?.*?(?:#(?P<device>\d{1,9})(?:\.(?P<tile>\d{1,9}))?)?$"
)
_RANK = re.compile(rb'"name": "RANK (\d{1,9}) HOST<')
_TILE = re.compile(r"Tile #(\d{1,9}): ")
_SIZES = r"\{(\d{1,9}); (\d{1,9}); (\d{1,9})\}"
_SHAPE = re.compile(rf"\[(?:SIMD\w+)? ?{_SIZES} {_SIZES}\]$")
_MEMORY = re.compile(
    r"(\w*(?:Memory|Image|Buffer)\w*(?:Copy|Fill|Read|Write)\w*)(?:\((\w)2(\w)\))?(?:\[(\d{1,18})\])?"
)
_COMMAND = re.compile(r"(?:zeCommandListAppend|clEnqueue)\w+")
_API = re.compile(r"(?:ze[stx]?|cl|ur|pi)[A-Z]\w*")
HOST_IN_NAME = re.compile(r"(?:(?<=HOST<)|(?<=DEVICE<))[^>]+")
"""The host in the name of a process."""

_SUFFIX_IN_JOBS = ".unitrace.json"
_COUNTER_COLUMNS = "Kernel,GlobalInstanceId,SubDeviceId,"
_AVERAGED_UNITS = ("[%]", "Hz]")
_NO_COUNTER = re.compile(r"QueryBeginTime\[ns\]|ReportReason|ContextId\w*|SourceId|StreamMarker|")
_EVENT_KINDS = {("gpu_op", "X"), ("cpu_op", "X"), ("cpu_op", "B"), ("cpu_op", "E")}
_FLOW = re.compile(r"(?:CL_)?Flow_H2D_(\d{1,18})_")

# A copy reads and writes device memory, host memory of the driver (pinned), shared or any other (pageable).
_SIDES = {
    "M": ("Pageable", HostMemory.PAGEABLE),
    "H": ("Host", HostMemory.PINNED),
    "S": ("Shared", HostMemory.MANAGED),
    "D": ("Device", HostMemory.NONE),
}
_MEMORY_BY_SPEED = (HostMemory.PAGEABLE, HostMemory.PINNED, HostMemory.MANAGED, HostMemory.NONE)


class Arguments(msgspec.Struct):
    """The arguments of an event that are read."""

    id: str = ""
    name: str = ""


class _Trace(msgspec.Struct):
    events: list[Event] = msgspec.field(name="traceEvents")


class _Kind(Enum):
    """The kind of an operation; marks are barriers and signals, which are no work."""

    KERNEL = "kernel"
    MEMORY = "memory"
    MARK = "mark"


class _Operation(NamedTuple):
    """An operation by its name: what it is called, its tile or -1, its shape or bytes."""

    name: str
    tile: int
    shape: tuple[int, ...] = (1, 1, 1, 1, 1, 1)
    kind: _Kind = _Kind.KERNEL
    size: int = NO_BYTES
    host_memory: HostMemory = HostMemory.UNKNOWN


def read(path: Path) -> Timeline:
    """Read a trace, also one whose end is missing because the program was killed.

    Times are nanoseconds since 1970; unitrace rounds them to fractions of a microsecond. Tiles are devices.
    """
    with reading(path):
        written = path.read_bytes()
    events, lost = whole_events(path, written)
    return _Builder(path, events, lost).timeline()


def identify_rank(path: Path) -> int | None:
    """Return the rank in the metadata of a trace, else in its name or that of its folder."""
    with reading(path), path.open("rb") as file:
        match = _RANK.search(file.read(_HEAD_BYTES))
        if match is None:  # older versions end with the metadata
            file.seek(max(0, path.stat().st_size - _HEAD_BYTES))
            match = _RANK.search(file.read())
    return int(match[1]) if match else _named_rank(path)


def is_trace(path: Path) -> bool:
    """Return whether a file is a trace of unitrace, by what it begins with."""
    with reading(path), path.open("rb") as file:
        return _UNITRACE_WORDS.search(file.read(_HEAD_BYTES)) is not None


def _named_rank(path: Path) -> int | None:
    rank = rank_from_name(path)
    return rank_from_name(path.parent) if rank is None else rank


def whole_events(path: Path, written: bytes) -> tuple[list[Event], list[Loss]]:
    """Return the events of a trace; without its closing brackets, those that are whole."""
    begin = _EVENTS.match(written.lstrip())
    if begin is None or not _UNITRACE_WORDS.search(written[:_HEAD_BYTES]):
        raise DamagedInput(f"{path} is {foreign_kind(path) or 'no trace of unitrace'}.")
    try:
        return msgspec.json.decode(written, type=_Trace).events, []
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    # unitrace writes one event per line.
    lines = written.lstrip()[begin.end() :].splitlines()
    decoder = msgspec.json.Decoder(Event)
    events, damaged = [], 0
    for line in lines:
        text = line.strip().strip(b",")
        if not text or text in (b"]", b"}", b"]}"):
            continue
        try:
            events.append(decoder.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError):
            damaged += 1
    if not events:
        raise DamagedInput(f"{path} is damaged or truncated: it holds no whole event of unitrace.")
    return events, losses(LossKind.ROW, Subject.EVENT, {"form": damaged}, len(events) + damaged)


def other_files(path: Path, part: ProfilePart | None = None) -> list[Path]:
    """Return the tables of counters that belong to a trace, as unitrace or the job named them."""
    if path.name.lower().endswith(_SUFFIX_IN_JOBS):
        return sorted(path.parent.glob(f"{glob.escape(path.name[: -len(_SUFFIX_IN_JOBS)])}.metrics_*.csv"))
    return sorted(file for place in ("", "metrics/") for file in path.parent.glob(f"{place}metrics_*.csv"))


def _kernel_counters(text: str) -> tuple[dict[tuple[int, str], float], int]:
    """Return the counters of each kernel by its instance, of all its tiles, and count the damaged rows.

    Shares and frequencies of tiles are averaged, all else is added.
    """
    parts: dict[tuple[int, str], list[float]] = defaultdict(list)
    names: list[str] = []
    damaged = 0
    for line in text.splitlines():
        if line.startswith(_COUNTER_COLUMNS):
            names = line[len(_COUNTER_COLUMNS) :].split(",")
        if not line.strip() or line.startswith((_COUNTER_COLUMNS, "===")):
            continue
        # The name of a kernel may have commas.
        _, *numbers = line.rsplit(",", len(names) + 2)
        try:
            instance, _, *values = map(float, numbers)
        except ValueError:
            damaged += 1
            continue
        if len(values) != len(names) or not np.isfinite([instance, *values]).all():
            damaged += 1
            continue
        for counter, value in zip(names, values, strict=True):
            if not _NO_COUNTER.fullmatch(counter):
                parts[int(instance), counter].append(value)
    return {
        key: sum(values) / (len(values) if key[1].endswith(_AVERAGED_UNITS) else 1)
        for key, values in parts.items()
    }, damaged


class _Builder:
    def __init__(self, path: Path, events: Sequence[Event], lost: list[Loss]) -> None:
        self._path, self._lost = path, lost
        self._strings = StringTable()
        self._named = [event for event in events if event.ph == "M" and event.name == "process_name"]
        self._gpu = [event for event in events if event.cat == "gpu_op" and event.ph == "X"]
        self._host = [event for event in events if event.cat == "cpu_op" and event.ph == "X"]
        self._pairs = [event for event in events if event.cat == "cpu_op" and event.ph in ("B", "E")]
        self._flows = [
            (int(match[1]), event)
            for event in events
            if event.ph == "s" and event.cat and (match := _FLOW.match(event.cat))
        ]

    def timeline(self) -> Timeline:
        """Return the timeline."""
        events, columns = self._valid_events([*self._host, *self._close_events()], Subject.CALL)
        calls = {**columns, "name": self._strings.add_all(event.name or None for event in events)}
        process = int(calls["process"][0]) if len(calls["process"]) else 0
        is_api = np.array([bool(_API.fullmatch(text)) for text in self._texts(calls["name"])], bool)
        is_mpi = np.array([text.startswith("MPI_") for text in self._texts(calls["name"])], bool)
        api = {key: values[is_api] for key, values in calls.items()}
        ranges = {key: values[~is_api & ~is_mpi] for key, values in calls.items()}
        placed = [ranges[key] for key in ("process", "thread", "start", "end")]
        api["correlation"] = np.arange(1, len(api["start"]) + 1)
        operations, gpus = self._operations(process, self._launches(api))
        counters = self._counters(operations)
        names = [self._named_operations[number] for number in operations.pop("number").tolist()]
        rows = {kind: np.flatnonzero([operation.kind == kind for operation in names]) for kind in _Kind}
        copied = [names[row] for row in rows[_Kind.MEMORY].tolist()]
        texts = self._strings.array()
        return Timeline(
            origin=self._origin(gpus),
            strings=texts,
            kernels=_kernels(operations, rows[_Kind.KERNEL], names, texts),
            memops=MemoryOperations(
                **{key: values[rows[_Kind.MEMORY]] for key, values in operations.items()},
                category=np.full(len(copied), int(Category.MEM)),
                bytes=np.array([operation.size for operation in copied], np.int64),
                host_memory=np.array([int(operation.host_memory) for operation in copied], np.int64),
            ),
            calls=ApiCalls(**api),
            # Ranges of SYCL, oneCCL and the program; on one thread they nest, or are started and ended.
            ranges=Ranges(**ranges, style=styles_of_threads(*placed)),
            gpu_marks=GpuMarks(**{key: operations[key][rows[_Kind.MARK]] for key in GpuMarks.__match_args__}),
            mpi_calls=MpiCalls(**{key: values[is_mpi] for key, values in calls.items()}),
            counters=counters,
        )

    def _texts(self, names: Ints) -> list[str]:
        texts = [*self._strings.array().tolist(), ""]
        return [texts[number] for number in names.tolist()]

    def _valid_events(self, events: Sequence[Event], subject: Subject) -> tuple[list[Event], IntColumns]:
        """Return the events whose times, process and thread are valid, with these as columns."""
        start, started = times([event.ts for event in events])
        length, timed = times([event.dur for event in events])
        pid, has_process = integers([event.pid for event in events])
        tid, has_thread = integers([event.tid for event in events])
        checks = {"ts": started, "dur": timed, "pid": has_process, "tid": has_thread}
        valid = np.logical_and.reduce([*checks.values(), np.ones(len(events), bool)])
        if not valid.all():
            first = {name: np.count_nonzero(~mask) for name, mask in checks.items()}
            field = next(name for name, count in first.items() if count)
            self._lost += losses(LossKind.ROW, subject, {field: np.count_nonzero(~valid)}, len(events))
        columns = {"start": start, "end": start + length, "process": pid, "thread": tid}
        valid_events = [event for event, keep in zip(events, valid.tolist(), strict=True) if keep]
        return valid_events, {key: values[valid] for key, values in columns.items()}

    def _close_events(self) -> list[Event]:
        open_ranges: dict[tuple[bytes, bytes], list[Event]] = defaultdict(list)
        complete, unbegun = [], 0
        for event in self._pairs:
            waiting = open_ranges[bytes(event.pid), bytes(event.tid)]
            if event.ph == "B":
                waiting.append(event)
            elif not waiting:
                unbegun += 1
            else:
                begun = waiting.pop()
                (start, end), valid = times([begun.ts, event.ts])
                if valid.all():
                    begun.dur = msgspec.Raw(f"{(end - start) // 1000}.{(end - start) % 1000:03d}".encode())
                complete.append(begun)
        fields = {"start": unbegun, "end": sum(map(len, open_ranges.values()))}
        self._lost += losses(LossKind.ROW, Subject.RANGE, fields, len(complete) + sum(fields.values()))
        return complete

    def _launches(self, api: IntColumns) -> dict[int, int]:
        """Return the correlation of the call that launched each operation, by its id."""
        moments, timed = times([event.ts for _, event in self._flows])
        pid, has_process = integers([event.pid for _, event in self._flows])
        tid, has_thread = integers([event.tid for _, event in self._flows])
        row = latest_rows((api["process"], api["thread"]), api["start"], (pid, tid), moments)
        valid = timed & has_process & has_thread & (row >= 0)
        if len(api["end"]):
            valid &= api["end"][row] >= moments
        ids = [number for number, _ in self._flows]
        return {
            number: int(api["correlation"][call])
            for number, call, is_valid in zip(ids, row.tolist(), valid.tolist(), strict=True)
            if is_valid
        }

    def _operations(self, process: int, launches: Mapping[int, int]) -> tuple[IntColumns, tuple[Gpu, ...]]:
        events, columns = self._valid_events(self._gpu, Subject.KERNEL)
        numbers: dict[str, int] = {}
        number = np.array([numbers.setdefault(event.name or "", len(numbers)) for event in events], np.int64)
        self._named_operations = [_operation(name) for name in numbers]
        tile = np.array([operation.tile for operation in self._named_operations], np.int64)[number]
        device, gpus = self._devices(columns["process"], tile)
        written = (known_arguments(event).id for event in events)
        ids = [int(text) if text.isdecimal() and len(text) < 19 else -1 for text in written]
        correlation = [launches.get(key, NO_CORRELATION) for key in ids]
        name = self._strings.add_all(operation.name or None for operation in self._named_operations)
        streams: dict[int, int] = {}
        # Threads of devices count down, so the first one has the greatest number.
        for thread in np.unique(columns["thread"])[::-1].tolist():
            streams.setdefault(thread, len(streams))
        return {
            "start": columns["start"],
            "end": columns["end"],
            "device": device,
            "stream": np.array([streams[thread] for thread in columns["thread"].tolist()], np.int64),
            "name": name[number] if len(name) else number,
            "correlation": np.array(correlation, np.int64),
            "process": np.full(len(events), process),
            "number": number,
            "id": np.array(ids, np.int64),
        }, gpus

    def _counters(self, operations: IntColumns) -> KernelCounters:
        """Return the counters in the tables beside the trace; an instance is an operation by its id."""
        row = {number: at for at, number in enumerate(operations.pop("id").tolist())}
        values: list[tuple[int, str, float]] = []
        unknown = damaged = 0
        for path in other_files(self._path):
            with reading(path):
                text = path.read_text(encoding="utf-8", errors="replace")
            measured, odd_count = _kernel_counters(text)
            damaged += odd_count
            for (instance, counter), value in measured.items():
                if instance in row:
                    values.append((row[instance], counter, value))
                else:
                    unknown += 1
        count = len(values) + unknown + damaged
        fields = {"GlobalInstanceId": unknown, "values": damaged}
        self._lost += losses(LossKind.ROW, Subject.COUNTER, fields, count)
        place = np.array([at for at, _, _ in values], np.int64)
        return KernelCounters(
            **{key: operations[key][place] for key in ("start", "end", "process", "device", "name")},
            counter=self._strings.add_all(counter for _, counter, _ in values),
            value=np.array([value for _, _, value in values], np.float64),
        )

    def _devices(self, process: Ints, tile: Ints) -> tuple[Ints, tuple[Gpu, ...]]:
        """Return the number of each operation's device or tile, and all of them in their order."""
        devices: dict[int, re.Match[str]] = {}
        for event in self._named:
            match = _DEVICE.search(known_arguments(event).name)
            pid, valid = integers([event.pid])
            if match and valid.all():
                devices[int(pid[0])] = match
        placed = [*zip(process.tolist(), tile.tolist(), strict=True)]
        used = sorted({*placed}, key=lambda place: _device_order(devices, *place))
        number = {key: place for place, key in enumerate(used)}
        column = np.array([number[place] for place in placed], np.int64)
        gpus = [
            Gpu(device=place, name=devices[pid]["name"])
            for place, (pid, _) in enumerate(used)
            if pid in devices and devices[pid]["name"]
        ]
        return column, tuple(gpus)

    def _origin(self, gpus: tuple[Gpu, ...]) -> Origin:
        hosts = (_HOST.match(known_arguments(event).name) for event in self._named)
        host = next((name for name in hosts if name), None)
        return Origin(
            path=self._path,
            kind=UNITRACE.name,
            rank=int(host["rank"]) if host and host["rank"] else _named_rank(self._path),
            host=host["host"] or None if host else None,
            start_utc_ns=0,
            gpus=gpus,
            losses=tuple(self._lost),
        )


def _device_order(devices: Mapping[int, re.Match[str]], process: int, tile: int) -> tuple[int, int, int]:
    """Return the sort key of a device: its number, then that of its tile; processes count down."""
    match = devices.get(process)
    if match is None or match["device"] is None:
        return (-process, 0, tile)
    return (int(match["device"]), int(match["tile"] or -1), tile)


def _operation(written: str) -> _Operation:
    match = _TILE.match(written)
    tile, text = (int(match[1]), written[match.end() :]) if match else (-1, written)
    memory = _MEMORY.fullmatch(text)
    if memory:
        sides = [_SIDES[side] for side in (memory[2], memory[3]) if side in _SIDES]
        size = int(memory[4]) if memory[4] else NO_BYTES
        if len(sides) == 2:
            kinds = {kind for _, kind in sides}
            slowest = next(kind for kind in _MEMORY_BY_SPEED if kind in kinds)
            name = f"[L0 memcpy {sides[0][0]}-to-{sides[1][0]}]"
            return _Operation(name, tile, kind=_Kind.MEMORY, size=size, host_memory=slowest)
        return _Operation(memory[1], tile, kind=_Kind.MEMORY, size=size)
    shape = _SHAPE.search(text)
    if shape:
        return _Operation(text[: shape.start()], tile, tuple(int(size) for size in shape.groups()))
    return _Operation(text, tile, kind=_Kind.MARK if _COMMAND.match(text) else _Kind.KERNEL)


def is_read(event: Event) -> bool:
    """Return whether an event is of a kind that is read."""
    if event.ph == "M":
        return event.name == "process_name"
    if event.ph == "s":
        return _FLOW.match(event.cat or "") is not None
    return (event.cat, event.ph) in _EVENT_KINDS


def known_arguments(event: Event) -> Arguments:
    """Return the arguments of an event that are read; empty where they are damaged."""
    try:
        return msgspec.json.decode(event.args, type=Arguments, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Arguments()


def _kernels(columns: IntColumns, rows: Ints, names: Sequence[_Operation], texts: np.ndarray) -> Kernels:
    shapes = np.array([names[row].shape for row in rows.tolist()], np.int64).reshape(-1, 6)
    taken = {key: values[rows] for key, values in columns.items()}
    return Kernels(
        **taken,
        category=kernel_classification.classes_of(taken["name"], texts),
        grid=np.ascontiguousarray(shapes[:, :3]),
        block=np.ascontiguousarray(shapes[:, 3:]),
    )
