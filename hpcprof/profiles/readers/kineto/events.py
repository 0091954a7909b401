"""The events of a PyTorch trace that a timeline holds, as columns."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from operator import attrgetter

import msgspec
import numpy as np

from hpcprof.common.units import counted, format_ns
from hpcprof.profiles.frames import BUILT_IN, Frame, is_own
from hpcprof.profiles.losses import COUNTERS, Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.kineto.arguments import (
    AllocatorArguments,
    ArgumentsDecoder,
    BatchDecoder,
    CallArguments,
    GpuArguments,
    Int64,
    KernelArguments,
    MemoryArguments,
    OperatorArguments,
    RangeArguments,
    ValueT,
    WaitArguments,
)
from hpcprof.profiles.readers.kineto.arrows import CATEGORIES as FORWARD_BACKWARD
from hpcprof.profiles.readers.kineto.arrows import COLUMNS as ARROWS
from hpcprof.profiles.readers.kineto.collectives import CALL, CollectiveRecord, GroupCall, collective_record
from hpcprof.profiles.readers.kineto.json_stream import Batch, Event
from hpcprof.profiles.readers.kineto.rank_identity import labelled_process
from hpcprof.profiles.readers.kineto.stamps import present, times
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import (
    HOST,
    NO_BYTES,
    NO_CORRELATION,
    NO_NAME,
    NO_STREAM,
    SHAPES,
    ApiCalls,
    IntColumns,
    Ints,
    Mask,
    Synchronizations,
    SyncKind,
)
from hpcprof.profiles.waiting_calls import QUERY, UNKNOWN, kinds_by_call

COLUMNS = ("start", "end", "kind", "correlation", "device", "stream", "source_stream", "source_correlation")
"""The columns of synchronizations that the events themselves tell."""

# libkineto's syncTypeString.
_KINDS = {
    "Event Sync": SyncKind.EVENT,
    "Stream Wait Event": SyncKind.STREAM_WAIT,
    "Stream Sync": SyncKind.STREAM,
    "Context Sync": SyncKind.DEVICE,
}


def waits(events: Sequence[Event], arguments: Sequence[WaitArguments]) -> tuple[IntColumns, Mask]:
    """Return the columns that waits have beyond annotations on the GPU, and a mask of the waits."""
    kinds = (_KINDS.get(e.name or "", UNKNOWN) if e.cat == "cuda_sync" else UNKNOWN for e in events)
    kind = np.fromiter(kinds, np.int64, len(events))
    columns = {
        "kind": kind,
        "source_stream": column(arguments, "wait_on_stream", NO_STREAM),
        "source_correlation": column(arguments, "wait_on_cuda_event_record_corr_id", NO_CORRELATION),
    }
    return columns, kind != UNKNOWN


def synchronizations(columns: IntColumns, calls: ApiCalls, strings: Sequence[str]) -> Synchronizations:
    """Build the synchronizations from `COLUMNS` and processes; the names of calls tell which are queries."""
    kind = kinds_by_call(columns["process"], columns["correlation"], calls, strings)
    table = Synchronizations(**{**columns, "kind": np.where(kind == UNKNOWN, columns["kind"], kind)})
    return table.take(kind != QUERY)


_INT64 = np.iinfo(np.int64)
_INTEGERS: BatchDecoder[int] = BatchDecoder(Int64)
_QUOTED_NUMBER = re.compile(rb'"[0-9]{1,19}"')


def column(arguments: Sequence[object], name: str, otherwise: int) -> Ints:
    """Return one argument of each event, ``otherwise`` where it has none."""
    values = list(map(attrgetter(name), arguments))
    if (whole := _complete(values)) is not None:
        return whole
    return np.array([otherwise if value is None else value for value in values], np.int64)


def integers(written: Sequence[msgspec.Raw]) -> tuple[Ints, Mask]:
    """Return the integers in a field of all events as they are written, and which are valid."""
    numbers = _INTEGERS(written)
    if (whole := _complete(numbers)) is not None:
        return whole, np.ones(len(whole), np.bool_)
    spelled = [
        _spelled_integer(bytes(text)) if v is None else v for v, text in zip(numbers, written, strict=True)
    ]
    return np.array([value or 0 for value in spelled], np.int64), present(spelled)


def with_fallback(values: Sequence[int | None], otherwise: Sequence[msgspec.Raw]) -> tuple[Ints, Mask]:
    """Return the values, with another field's in place of None, and a mask of the valid ones."""
    if (whole := _complete(values)) is not None:
        return whole, np.ones(len(whole), np.bool_)
    valid_first = present(values)
    first = np.array([value or 0 for value in values], np.int64)
    other, valid = integers(otherwise)
    return np.where(valid_first, first, other), valid_first | valid


def none_written(values: Sequence[msgspec.Raw | msgspec.UnsetType]) -> bool:
    """Return whether no event has an argument."""
    return {*map(type, values)} <= {msgspec.UnsetType}


def shapes(values: list[tuple[int, int, int]]) -> Ints:
    """Return shapes as a column, which takes numpy longer from tuples."""
    return np.fromiter(chain.from_iterable(values), np.int64, 3 * len(values)).reshape(-1, 3)


def _complete(values: Sequence[int | None]) -> Ints | None:
    """Return a column of values, or None if one is missing: trying costs less than checking first."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except TypeError:
        return None


def _spelled_integer(written: bytes) -> int | None:
    """Return the integer that a text spells: PyTorch up to 1.11 writes ``"tid": "25738"``."""
    number = int(written[1:-1]) if _QUOTED_NUMBER.fullmatch(written) else labelled_process(written)
    return number if number is None or number <= _INT64.max else None


Categories = tuple[str, ...]

ValidRows = dict[str, Mask]
"""Masks of the rows with a valid field, by the name of the field."""
Built = tuple[IntColumns, ValidRows]
"""Columns with one row per event, and which rows are valid: those that pass all checks."""

_ALLOCATION = "[memory]"
_CONVOLUTION = "conv"
"""Operators with this in their name keep their inputs other than tensors; others have too many values."""

_CALL: ArgumentsDecoder[CallArguments] = ArgumentsDecoder(CallArguments)
_ON_GPU: ArgumentsDecoder[GpuArguments] = ArgumentsDecoder(GpuArguments)
_MARK: ArgumentsDecoder[WaitArguments] = ArgumentsDecoder(WaitArguments)
_KERNEL: ArgumentsDecoder[KernelArguments] = ArgumentsDecoder(KernelArguments)
_RANGE: ArgumentsDecoder[RangeArguments] = ArgumentsDecoder(RangeArguments)
_MEMORY: ArgumentsDecoder[MemoryArguments] = ArgumentsDecoder(MemoryArguments)
_NO_ALLOCATION = AllocatorArguments(0, 0, 0, 0, 0)
_OPERATORS: BatchDecoder[OperatorArguments] = BatchDecoder(OperatorArguments)
_NO_INPUTS = OperatorArguments()
_ALLOCATOR: BatchDecoder[AllocatorArguments] = BatchDecoder(AllocatorArguments)


class TableRows:
    """The rows of one table, collected batch by batch."""

    def __init__(self, *fields: str) -> None:
        self.count = 0
        self._batches: dict[str, list[Ints]] = {
            name: [np.empty(SHAPES.get(name, (0,)), np.int64)] for name in fields
        }

    def add(self, columns: IntColumns, valid: Mask) -> None:
        """Append the valid rows."""
        self.count += int(np.count_nonzero(valid))
        for name, batches in self._batches.items():
            batches.append(columns[name] if valid.all() else columns[name][valid])

    def columns(self) -> IntColumns:
        """Return the whole columns, and release the rows, of which there must not be two copies."""
        return {name: np.concatenate(self._batches.pop(name)) for name in [*self._batches]}


# PyTorch up to 1.11 writes operators and annotations in one category, in capitals as all others.
_OLD_RANGES = "Operator"
_OPERATOR = re.compile(r"::|Backward\d*$|^[a-z]\w*_$")

_MODULE = "nn.Module: "
"""Modules are among the functions of Python, and their names begin so; here that is their category."""

_OWN_FUNCTION = "own function"
"""The category here of the functions of the user's own code; those of libraries are not read."""

_FUNCTION = re.compile(r"(?P<file>.+)\((?P<line>\d{1,9})\): (?P<function>.+)")
"""The name of a function of Python."""

_C_FUNCTION = re.compile(r"<built-in (?:function|method) (?P<function>[^ >]+).*>", re.DOTALL)
_LONG_DIGITS = 3
"""Functions in C are read if their µs have this many digits: the short ones of PyTorch are countless."""

_PYTHON = "python_function"
"""The category of functions of Python, of which a timeline holds some."""

_IGNORED_CATEGORIES = {
    _PYTHON,
    *("external_correlation", "collective_comm", "Trace"),
    *("ac2g", "async", "async_cpu_to_gpu", "async_gpu"),
    "cuda_event",
}
"""The categories of libkineto (ActivityType.h) and of arrows between events that a timeline leaves out."""

_OTHER_DEVICE = re.compile(
    r"cuda_profiler_range"
    r"|(?!cpu_|cuda_|gpu_)[a-z]\w*_(runtime|driver|op|memcpy|memset|sync|ccp_events|insight|counters"
    r"|workloadd|scope_profiler|user_annotation)"
)
"""The categories of devices that are not read, and of counters of kernels: ``mtia_runtime``, ``hpu_op``…"""

_Kind = tuple[Categories, TableRows, Callable[[list[Event]], Built], Subject]
"""The categories of one kind of events, their table, what builds its columns, and their name."""

_CALL_CATEGORIES = ("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "Runtime")
_MEMORY_CATEGORIES = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
_HOST = ("name", "start", "end", "process", "thread")
_GPU = ("name", "start", "end", "device", "stream", "correlation")


class TraceEvents:
    """The events of a trace by kind, collected batch by batch; names are numbers in ``strings``."""

    def __init__(self) -> None:
        self.strings = StringTable()
        self.kernels = TableRows(*_GPU, "grid", "block")
        self.memory = TableRows(*_GPU, "bytes")
        self.graphs = TableRows(*_GPU)
        self.calls = TableRows(*_HOST, "correlation")
        self.ranges = TableRows(*_HOST, "closed", "dims", "types")
        self.gpu_marks = TableRows(*_GPU)
        self.waits = TableRows(*COLUMNS)
        self.allocations = TableRows("time", "device", "bytes", "allocated", "reserved")
        self.operators = TableRows(*_HOST, "dims", "types", "values")
        self.arrows = TableRows(*ARROWS)
        self.modules = TableRows(*_HOST)
        self.functions = TableRows(*_HOST)
        self.collectives: list[CollectiveRecord] = []
        self.communicating: list[int] = []
        """The row of each record's kernel."""
        self.group_calls: list[GroupCall] = []
        self.linked_by_external_ids: set[Subject] = set()
        self.correlated: set[Subject] = set()
        self._lost: Counter[tuple[LossKind, Subject, str]] = Counter()
        self._seen: Counter[Subject] = Counter()
        self._other: Counter[str] = Counter()
        self._overhead = np.zeros(2, np.int64)
        self.count = 0
        self._kinds: tuple[_Kind, ...] = (
            (("kernel", "Kernel"), self.kernels, self._kernels, Subject.KERNEL),
            (_MEMORY_CATEGORIES, self.memory, self._memory, Subject.MEMORY),
            (("cuda_graph",), self.graphs, self._graphs, Subject.GRAPH),
            (_CALL_CATEGORIES, self.calls, self._calls, Subject.CALL),
            (("user_annotation",), self.ranges, self._ranges, Subject.RANGE),
            (("cpu_op",), self.operators, self._operators, Subject.OPERATOR),
            (("gpu_user_annotation", "cuda_sync"), self.gpu_marks, self._marks, Subject.MARK),
            (("cpu_instant_event",), self.allocations, _allocations, Subject.ALLOCATION),
            (FORWARD_BACKWARD, self.arrows, _arrows, Subject.ARROW),
            ((_MODULE,), self.modules, self._on_host, Subject.MODULE),
            ((_OWN_FUNCTION,), self.functions, self._on_host, Subject.FUNCTION),
        )

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The events and fields that were left out."""
        lost = [
            Loss(kind, subject, count, self._seen.get(subject), detail)
            for (kind, subject, detail), count in sorted(self._lost.items())
        ]
        count, taken = self._overhead.tolist()
        if count:
            detail = f"{counted(count, 'event')} of its own overhead, {format_ns(taken)} in all"
            lost.append(Loss(LossKind.NOTE, Subject.CAPTURE, detail=detail))
        counters = COUNTERS.partition(" ")[0]
        devices = sorted(self._devices().items())
        unread = {COUNTERS if name == counters else name: count for name, count in devices}
        return (*lost, *losses(LossKind.CATEGORY, Subject.EVENT, unread))

    @property
    def foreign(self) -> bool:
        """True if there are events, and none has a category that PyTorch writes."""
        on_devices = self.count - sum(self._other.values()) + sum(self._devices().values())
        return self.count > 0 and not on_devices

    def _devices(self) -> dict[str, int]:
        return {name: n for name, n in self._other.items() if _OTHER_DEVICE.fullmatch(name)}

    def add(self, batch: Batch) -> None:
        """Add the events of a batch to their tables; other categories are ignored."""
        by_kind: list[list[Event]] = [[] for _ in self._kinds]
        by_category: dict[str | None, list[Event]] = {
            category: events
            for (categories, *_), events in zip(self._kinds, by_kind, strict=True)
            for category in categories
        }
        self.count += len(batch)
        self._sort(batch, by_category)
        for (_, table, build, subject), events in zip(self._kinds, by_kind, strict=True):
            if events:
                columns, checks = build(events)
                valid = _passed_checks(checks)
                table.add(columns, valid)
                self._seen[subject] += len(valid)
                if not valid.all():
                    self._count(subject, checks)

    def _sort(self, batch: Batch, by_category: dict[str | None, list[Event]]) -> None:
        for event in batch:
            if event is None:
                self._lost[LossKind.ROW, Subject.EVENT, "form"] += 1
            elif (events := by_category.get(event.cat)) is not None:
                events.append(event)
            elif event.cat == _OLD_RANGES:
                marks = event.name and not _OPERATOR.search(event.name)
                by_category["user_annotation" if marks else "cpu_op"].append(event)
            elif is_module(event):
                by_category[_MODULE].append(event)
            elif event.cat == _PYTHON and _takes_time(event):
                by_category[_OWN_FUNCTION].append(event)
            elif event.cat in ("overhead", "Overhead"):
                self._overhead += (1, int(times([event.dur])[0][0]))
            elif event.cat not in _IGNORED_CATEGORIES:
                self._other[event.cat or ""] += 1

    def _count(self, subject: Subject, checks: ValidRows) -> None:
        """Count the rows that are left out, each with the first field that is not valid."""
        is_valid = np.ones(len(next(iter(checks.values()))), bool)
        for name, valid in checks.items():
            if lost := int(np.count_nonzero(is_valid & ~valid)):
                self._lost[LossKind.ROW, subject, name] += lost
            is_valid &= valid

    def _add_times(self, events: list[Event]) -> Built:
        name = self.strings.add_all([event.name for event in events])
        complete = np.array([event.ph == "X" for event in events], np.bool_)
        start, started = times([event.ts for event in events])
        duration, lasts = times([event.dur for event in events])
        # A sum that does not fit 64 bits wraps around, and ends before its start.
        checks = {"ph": complete, "name": name != NO_NAME, "ts": started, "dur": lasts}
        return {"name": name, "start": start, "end": start + duration}, checks

    def _on_host(self, events: list[Event]) -> Built:
        columns, checks = self._add_times(events)
        process, in_process = integers([event.pid for event in events])
        thread, on_thread = integers([event.tid for event in events])
        columns |= {"process": process, "thread": thread}
        return columns, checks | {"pid": in_process, "tid": on_thread}

    def _ranges(self, events: list[Event]) -> Built:
        columns, checks = self._on_host(events)
        arguments = self._arguments(_RANGE, events, Subject.RANGE)
        closed = np.array([a.finished for a in arguments], np.int64)
        return columns | {"closed": closed, **self._inputs(arguments)}, checks

    def _operators(self, events: list[Event]) -> Built:
        columns, checks = self._on_host(events)
        arguments = [a or _NO_INPUTS for a in _OPERATORS([event.args for event in events])]
        values = [a.values for a in arguments]
        if not none_written(values):
            values = [
                value if e.name and _CONVOLUTION in e.name else msgspec.UNSET
                for value, e in zip(values, events, strict=True)
            ]
        self._keep_group_calls(events, columns, checks)
        return columns | {**self._inputs(arguments), "values": self._decode_texts(values)}, checks

    def _keep_group_calls(self, events: list[Event], columns: IntColumns, checks: ValidRows) -> None:
        for row in np.flatnonzero(
            _passed_checks(checks) & (columns["name"] == self.strings.add(CALL))
        ).tolist():
            if record := collective_record(bytes(events[row].args)):
                start, end, process, thread = (int(columns[name][row]) for name in _HOST[1:])
                self.group_calls.append(GroupCall(process, thread, start, end, record))

    def _inputs(self, arguments: Sequence[OperatorArguments]) -> IntColumns:
        written = {"dims": [a.dims for a in arguments], "types": [a.types for a in arguments]}
        return {name: self._decode_texts(values) for name, values in written.items()}

    def _decode_texts(self, values: Sequence[msgspec.Raw | msgspec.UnsetType]) -> Ints:
        """Return the numbers of texts, without the spaces of lists; few differ, so each is decoded once."""
        if none_written(values):
            return np.full(len(values), NO_NAME)
        texts = [None if value is msgspec.UNSET else bytes(value) for value in values]
        number = {text: NO_NAME if text is None else self._number(text) for text in dict.fromkeys(texts)}
        return np.fromiter(map(number.__getitem__, texts), np.int64, len(texts))

    def _number(self, text: bytes) -> int:
        return self.strings.add(text.replace(b", ", b",").decode("utf-8", "replace"))

    def _calls(self, events: list[Event]) -> Built:
        columns, checks = self._on_host(events)
        arguments = self._arguments(_CALL, events, Subject.CALL)
        correlation = self._links(arguments, Subject.CALL)
        # Calls of Level Zero have the number of the call of the runtime that they are in, which launches.
        inner = np.array([event.cat == "xpu_driver" for event in events], bool)
        return columns | {"correlation": np.where(inner, NO_CORRELATION, correlation)}, checks

    def _kernels(self, events: list[Event]) -> Built:
        """Build the kernels, and keep the record of those that communicate."""
        arguments = self._arguments(_KERNEL, events, Subject.KERNEL)
        columns, checks = self._on_gpu(events, arguments, self._links(arguments, Subject.KERNEL))
        for number, row in enumerate(np.flatnonzero(_passed_checks(checks)).tolist(), self.kernels.count):
            if record := collective_record(bytes(events[row].args), int(columns["correlation"][row])):
                self.collectives.append(record._replace(start=int(columns["start"][row])))
                self.communicating.append(number)
        columns |= {
            "grid": shapes([a.grid for a in arguments]),
            "block": shapes([a.block for a in arguments]),
        }
        return columns, checks

    def _memory(self, events: list[Event]) -> Built:
        arguments = self._arguments(_MEMORY, events, Subject.MEMORY)
        columns, checks = self._on_gpu(events, arguments, self._links(arguments, Subject.MEMORY))
        return columns | {"bytes": column(arguments, "bytes", NO_BYTES)}, checks

    def _graphs(self, events: list[Event]) -> Built:
        arguments = self._arguments(_ON_GPU, events, Subject.GRAPH)
        return self._on_gpu(events, arguments, self._links(arguments, Subject.GRAPH))

    def _marks(self, events: list[Event]) -> Built:
        """Build the annotations and waits, and keep the waits in a table of their own too."""
        arguments = self._arguments(_MARK, events, Subject.MARK)
        columns, checks = self._on_gpu(events, arguments, column(arguments, "correlation", NO_CORRELATION))
        wait_columns, waiting = waits(events, arguments)
        self.waits.add(columns | wait_columns, waiting & _passed_checks(checks))
        return columns, checks

    def _on_gpu(self, events: list[Event], arguments: Sequence[GpuArguments], links: Ints) -> Built:
        """Build GPU work and annotations; without arguments, the device is the pid and the stream the tid."""
        columns, checks = self._add_times(events)
        device, on_device = with_fallback([a.device for a in arguments], [event.pid for event in events])
        stream, on_stream = with_fallback([a.stream for a in arguments], [event.tid for event in events])
        columns |= {"device": device, "stream": stream, "correlation": links}
        return columns, checks | {"device": on_device, "stream": on_stream}

    def _links(self, arguments: Sequence[CallArguments], subject: Subject) -> Ints:
        """Return the numbers that link calls with their work; older Kineto on ROCm has external ids alone."""
        numbers = column(arguments, "correlation", NO_CORRELATION)
        self.correlated.update({subject} if (numbers != NO_CORRELATION).any() else ())
        if not self.correlated:
            numbers = column(arguments, "external_id", NO_CORRELATION)
            self.linked_by_external_ids.update({subject} if (numbers != NO_CORRELATION).any() else ())
        return numbers

    def _arguments(
        self, decode: ArgumentsDecoder[ValueT], events: list[Event], subject: Subject
    ) -> Sequence[ValueT]:
        arguments, damaged = decode([event.args for event in events])
        for name, count in damaged.items():
            self._lost[LossKind.FIELD, subject, name] += count
        return arguments


def is_module(event: Event) -> bool:
    """Return whether an event is a call of a module."""
    return event.cat == _PYTHON and (event.name or "").startswith(_MODULE)


@cache
def frame_of(name: str) -> Frame | None:
    """Return the frame that the name of a function tells; None for a name of another form."""
    if match := _C_FUNCTION.fullmatch(name):
        return Frame(match["function"], BUILT_IN)
    match = _FUNCTION.fullmatch(name)
    return Frame(match["function"], match["file"], int(match["line"])) if match else None


def _takes_time(event: Event) -> bool:
    """Return whether an event of Python is a function of the user's own, or a long one in C."""
    frame = frame_of(event.name or "")
    if frame is None or frame.file != BUILT_IN:
        return frame is not None and is_own(frame)
    return len(bytes(event.dur).partition(b".")[0]) >= _LONG_DIGITS


def _passed_checks(checks: ValidRows) -> Mask:
    passed: Mask = np.logical_and.reduce([*checks.values()])
    return passed


def _allocations(events: list[Event]) -> Built:
    events = [event for event in events if event.name == _ALLOCATION]
    time, timed = times([event.ts for event in events])
    arguments = _ALLOCATOR([event.args for event in events])
    allocations = [a or _NO_ALLOCATION for a in arguments]
    columns = {
        "time": time,
        "device": np.array([HOST if a.device_type == 0 else a.device for a in allocations], np.int64),
        "bytes": np.array([a.bytes for a in allocations], np.int64),
        "allocated": np.array([a.allocated for a in allocations], np.int64),
        "reserved": np.array([a.reserved for a in allocations], np.int64),
    }
    return columns, {"ts": timed, "args": present(arguments)}


def _arrows(events: list[Event]) -> Built:
    columns: IntColumns = {"ends": np.array([event.ph == "f" for event in events], np.int64)}
    columns["time"], timed = times([event.ts for event in events])
    checks = {"ph": np.array([event.ph in ("s", "f") for event in events], bool), "ts": timed}
    for part, name in (("id", "id"), ("process", "pid"), ("thread", "tid")):
        columns[part], checks[name] = integers([getattr(event, name) for event in events])
    return columns, checks
