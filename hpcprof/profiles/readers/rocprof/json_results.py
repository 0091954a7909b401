"""The JSON results of rocprofv3 (``--output-format json``), of ROCm 6.2 and later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.columns.unique import map_unique, numbered_rows
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.declaration import rank_from_name
from hpcprof.profiles.readers.foreign_files import foreign_trace
from hpcprof.profiles.readers.rocprof import ROCPROFV3
from hpcprof.profiles.readers.rocprof.equal_records import equal_records
from hpcprof.profiles.readers.rocprof.records import (
    CALL,
    COPY,
    DISPATCH,
    GRID,
    NOT_RECORDED,
    WORKGROUP,
    Agent,
    CallCategory,
    Details,
    Records,
    architectures,
    call_category,
    copy_directions,
    gpu_of_copies,
    gpus_of,
    join_records,
    style_of,
    timeline,
)
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import (
    NO_NAME,
    Columns,
    Fact,
    IntColumns,
    Ints,
    Origin,
    Timeline,
    empty_columns,
)

KEY = "rocprofiler-sdk-tool"
_MAX_NUMBER = (1 << 63) - 1
_Natural = Annotated[int, msgspec.Meta(ge=0, le=_MAX_NUMBER)]
_CALLS = ("hip_api", "hsa_api", "marker_api", "rccl_api")
_MIN_RECORD_BYTES = len('{"start_timestamp":0,"end_timestamp":0}')
_GPU = 2
"""The type of an agent (rocprofiler_agent_type_t)."""


class _Handle(msgspec.Struct, gc=False):
    handle: _Natural = 0


class _Correlation(msgspec.Struct, gc=False):
    internal: _Natural = 0


class _Size(msgspec.Struct, gc=False):
    x: _Natural = 1
    y: _Natural = 1
    z: _Natural = 1


class _DispatchInfo(msgspec.Struct, gc=False):
    agent_id: _Handle
    queue_id: _Handle
    kernel_id: _Natural
    dispatch_id: int = -1
    workgroup_size: _Size = msgspec.field(default_factory=_Size)
    grid_size: _Size = msgspec.field(default_factory=_Size)


class _Row(msgspec.Struct, gc=False):
    start_timestamp: _Natural
    end_timestamp: _Natural
    correlation_id: _Correlation = msgspec.field(default_factory=_Correlation)


class _Dispatch(_Row, gc=False, kw_only=True):
    dispatch_info: _DispatchInfo
    stream_id: _Handle | None = None


class _Copy(_Row, gc=False):
    kind: _Natural = 0
    operation: _Natural = 0
    src_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    dst_agent_id: _Handle = msgspec.field(default_factory=_Handle)
    bytes: int = -1
    stream_id: _Handle | None = None


class _Call(_Row, gc=False):
    kind: _Natural = 0
    operation: _Natural = 0
    thread_id: _Natural = 0


SECTIONS: dict[str, type[_Row]] = {
    **dict.fromkeys(_CALLS, _Call),
    "kernel_dispatch": _Dispatch,
    "memory_copy": _Copy,
}
"""The records of each section that is read."""


class _Value(msgspec.Struct, gc=False):
    counter_id: _Handle = msgspec.field(default_factory=_Handle)
    value: float = 0.0


class _CountedDispatch(msgspec.Struct, gc=False):
    dispatch_data: _Dispatch
    records: list[_Value] = []


class _Counter(msgspec.Struct):
    id: _Handle = msgspec.field(default_factory=_Handle)
    name: str = ""


class _Callbacks(msgspec.Struct):
    counter_collection: msgspec.Raw = msgspec.Raw(b"[]")


class _AgentRecord(Details):
    id: _Handle = msgspec.field(default_factory=_Handle)
    type: int = 0
    name: str = ""
    product_name: str = ""
    logical_node_type_id: int | None = None


class _Symbol(msgspec.Struct, gc=False):
    kernel_id: int
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _Kind(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Message(msgspec.Struct):
    key: int
    value: str


class _Strings(msgspec.Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Message] = []


class Machine(msgspec.Struct):
    """The machine of a process."""

    hostname: str = ""
    system_name: str = ""
    release: str = ""


class _Metadata(msgspec.Struct):
    node: Machine = msgspec.field(default_factory=Machine)
    pid: _Natural = 0


class _Process(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    agents: list[_AgentRecord] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = []
    counters: list[_Counter] = []
    callback_records: _Callbacks = msgspec.field(default_factory=_Callbacks)
    buffer_records: dict[str, msgspec.Raw] = {}


class RocprofResults(msgspec.Struct):
    """The results of some processes."""

    processes: list[_Process] = msgspec.field(name=KEY)


_WITHOUT_CONTROLS = bytes(range(256)).translate(bytes.maketrans(bytes(range(32)), b" " * 32))


def read_results(path: Path, written: bytes) -> Timeline:
    """Build the timeline of JSON results."""
    processes = parse_results(path, written).processes
    strings = StringTable()
    read = [_ProcessReader(process, strings) for process in processes]
    agents = [agent for process in read for agent in process.agents.values()]
    return timeline(
        _origin(path, processes, agents), join_records(process.records() for process in read), strings
    )


def _decode_results(written: bytes) -> RocprofResults:
    """Decode results; control characters, which names may contain, become spaces."""
    try:
        return msgspec.json.decode(written, type=RocprofResults)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.json.decode(written.translate(_WITHOUT_CONTROLS), type=RocprofResults)


def parse_results(path: Path, written: bytes) -> RocprofResults:
    """Return the results in a file, whose sections are not decoded."""
    try:
        results = _decode_results(written)
    except msgspec.ValidationError as error:
        foreign = foreign_trace(path)
        reason = f"is {foreign}" if foreign else f"does not hold the results of rocprofv3: {error}"
        raise DamagedInput(f"{path} {reason}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedInput(f"{path} is damaged or truncated: {error}.") from None
    if not results.processes:
        raise DamagedInput(f"{path} has no process: rocprofv3 recorded nothing.")
    return results


def _origin(path: Path, processes: Sequence[_Process], agents: Sequence[Agent]) -> Origin:
    node = processes[0].metadata.node
    gpus = gpus_of(agents)
    system = f"{node.system_name} {node.release}".strip()
    return Origin(
        path=path,
        kind=ROCPROFV3.name,
        rank=rank_from_name(path),
        host=node.hostname or None,
        gpus=gpus,
        facts=(*((Fact("machine", "operating system", system),) if system else ()), *architectures(agents)),
    )


class _ProcessReader:
    def __init__(self, process: _Process, strings: StringTable) -> None:
        self._process, self._strings = process, strings
        self._kinds = process.strings.buffer_records
        self._lost: list[Loss] = []
        self.agents = {
            agent.id.handle: Agent(
                number=agent.id.handle,
                gpu=agent.type == _GPU,
                device=agent.id.handle if agent.logical_node_type_id is None else agent.logical_node_type_id,
                architecture=agent.name,
                name=agent.product_name or agent.name,
                details=agent,
            )
            for agent in process.agents
        }

    def records(self) -> Records:
        """Return the records, with what is left out."""
        records = Records(lost=self._lost)
        measured = self._measured_dispatches()
        counted = self._dispatch_columns(_Fields([record.dispatch_data for record in measured]))
        dispatches = self._rows("kernel_dispatch", _Dispatch, Subject.KERNEL)
        # With counters alone, rocprofv3 records the kernels there.
        records.dispatches = self._dispatch_columns(dispatches) if len(dispatches) else counted
        records.counters = self._counters(measured, counted)
        records.copies = self._copies()
        parts = [self._calls(name) for name in _CALLS]
        records.calls = {key: np.concatenate([part[key] for part in parts]) for key in CALL}
        return records

    def _rows(self, name: str, kind: type[_Row], subject: Subject) -> _Fields:
        """Return the records of a section; those that lack a field are left out and counted."""
        written = self._process.buffer_records.get(name)
        if not written:
            return _Fields([])
        if (equal := equal_records(written)) is not None:
            first, columns = equal
            with suppress(msgspec.ValidationError):
                return _Fields([msgspec.json.decode(first, type=kind)], columns)
        with suppress(msgspec.ValidationError):
            return _Fields(msgspec.json.decode(written, type=list[kind]))  # type: ignore[valid-type]
        try:
            each = msgspec.json.decode(written, type=list[msgspec.Raw])
        except msgspec.ValidationError:
            self._lost += losses(LossKind.ROW, subject, {name: 1})
            return _Fields([])
        rows, absent = _decoded_rows(each, kind)
        self._lost += losses(LossKind.ROW, subject, absent, len(each))
        return _Fields(rows)

    def _measured_dispatches(self) -> list[_CountedDispatch]:
        """Return the dispatches with counters; none if one of them is not as expected.

        Kernel replay repeats a dispatch for each group of counters, under the same number.
        """
        written = self._process.callback_records.counter_collection
        try:
            passes = msgspec.json.decode(written, type=list[_CountedDispatch])
        except msgspec.ValidationError:
            self._lost += losses(LossKind.ROW, Subject.COUNTER, {"counter_collection": 1})
            return []
        counted_dispatches: dict[int, _CountedDispatch] = {}
        for place, dispatch_record in enumerate(passes):
            number = dispatch_record.dispatch_data.dispatch_info.dispatch_id
            first = counted_dispatches.setdefault(-1 - place if number < 0 else number, dispatch_record)
            if first is not dispatch_record:
                counted = {record.counter_id.handle for record in first.records}
                first.records += [r for r in dispatch_record.records if r.counter_id.handle not in counted]
        return [*counted_dispatches.values()]

    def _counters(self, measured: Sequence[_CountedDispatch], dispatches: IntColumns) -> Columns:
        names = {counter.id.handle: counter.name for counter in self._process.counters}
        rows, counters = [], []
        values: list[float] = []
        for row, dispatch in enumerate(measured):
            sums: Counter[int] = Counter()
            for record in dispatch.records:
                sums[record.counter_id.handle] += record.value  # type: ignore[assignment]
            rows += [row] * len(sums)
            counters += [names.get(number) or str(number) for number in sums]
            values += sums.values()
        place = np.array(rows, np.int64)
        fields = {key: dispatches[key][place] for key in ("start", "end", "process", "device", "name")}
        return {**fields, "counter": self._strings.add_all(counters), "value": np.array(values, np.float64)}

    def _dispatch_columns(self, rows: _Fields) -> IntColumns:
        if not rows:
            return empty_columns(DISPATCH)
        names = {
            kernel_symbol.kernel_id: kernel_symbol.formatted_kernel_name or kernel_symbol.kernel_name
            for kernel_symbol in self._process.kernel_symbols
        }
        shapes = {name: rows.column(f"dispatch_info.{name[:-2]}.{name[-1]}") for name in (*WORKGROUP, *GRID)}
        return {
            **self._placed_columns(rows),
            "device": self._devices(rows.column("dispatch_info.agent_id.handle")),
            "queue": rows.column("dispatch_info.queue_id.handle"),
            "stream": rows.streams(),
            "name": self._name_ids(rows.column("dispatch_info.kernel_id"), names),
            **shapes,
        }

    def _copies(self) -> IntColumns:
        rows = self._rows("memory_copy", _Copy, Subject.COPY)
        if not rows:
            return empty_columns(COPY)
        destination, origin = (rows.column(f"{side}_agent_id.handle") for side in ("dst", "src"))
        gpus = [number for number, agent in self.agents.items() if agent.gpu]
        used, row = self._functions(rows)
        agent = gpu_of_copies(destination, origin, np.isin(destination, gpus), np.isin(origin, gpus))
        return {
            **self._placed_columns(rows),
            "device": self._devices(agent),
            "queue": np.full(len(rows), NOT_RECORDED),
            "stream": rows.streams(),
            **copy_directions((function for _, function in used), row, self._strings),
            "bytes": rows.column("bytes"),
        }

    def _calls(self, name: str) -> IntColumns:
        rows = self._rows(name, _Call, Subject.CALL)
        if not rows:
            return empty_columns(CALL)
        placed = self._placed_columns(rows)
        used, row = self._functions(rows)
        kind = np.array([int(call_category(category or name)) for category, _ in used], np.int64)[row]
        style = np.array([style_of(function) for _, function in used], np.int64)[row]
        text = self._strings.add_all(function or None for _, function in used)[row]
        messages = {marker_api.key: marker_api.value for marker_api in self._process.strings.marker_api}
        marked = np.flatnonzero(kind == CallCategory.MARKER)
        message = self._name_ids(placed["stack"][marked], messages)
        text[marked] = np.where(message == NO_NAME, text[marked], message)
        return {**placed, "thread": rows.column("thread_id"), "name": text, "kind": kind, "style": style}

    def _placed_columns(self, rows: _Fields) -> IntColumns:
        return {
            "start": rows.column("start_timestamp"),
            "end": rows.column("end_timestamp"),
            "process": np.full(len(rows), self._process.metadata.pid),
            "stack": rows.column("correlation_id.internal"),
        }

    def _functions(self, rows: _Fields) -> tuple[list[tuple[str, str]], Ints]:
        """Return the distinct categories and functions of records, and the number of each record's."""
        kind, function = rows.column("kind"), rows.column("operation")
        pairs, row = numbered_rows(kind, function)
        kinds = [
            (self._kinds[index] if index < len(self._kinds) else _Kind(), at) for index, at in pairs.tolist()
        ]
        return [
            (category.kind, category.operations[at] if at < len(category.operations) else "")
            for category, at in kinds
        ], row

    def _devices(self, agent: Ints) -> Ints:
        return map_unique(agent, lambda number: self.agents[number].device if number in self.agents else 0)

    def _name_ids(self, numbers: Ints, texts: Mapping[int, str]) -> Ints:
        return map_unique(numbers, lambda number: self._strings.add(texts.get(number) or None))


class _Fields:
    """The records of a section, whose fields become columns.

    ``rows`` holds the first of records with equal fields, and ``columns`` the values of all.
    """

    def __init__(self, rows: Sequence[_Row], columns: Mapping[str, Ints] | None = None) -> None:
        self._columns = columns or {}
        count = len(next(iter(self._columns.values()), rows))
        self._objects_by_path: dict[str, Sequence[Any]] = {
            "": rows if len(rows) == count else [*rows] * count
        }

    def __len__(self) -> int:
        return len(self._objects_by_path[""])

    def column(self, path: str) -> Ints:
        """Return the values of a field, given the names on the way to it."""
        if path in self._columns:
            return self._columns[path]
        outer, _, name = path.rpartition(".")
        return np.fromiter(map(attrgetter(name), self._objects(outer)), np.int64, len(self))

    def streams(self) -> Ints:
        """Return the streams, which ROCm before 6.4 does not record."""
        if "stream_id.handle" in self._columns:
            return self._columns["stream_id.handle"]
        streams = (NOT_RECORDED if stream is None else stream.handle for stream in self._objects("stream_id"))
        return np.fromiter(streams, np.int64, len(self))

    def _objects(self, path: str) -> Sequence[Any]:
        if path not in self._objects_by_path:
            outer, _, name = path.rpartition(".")
            self._objects_by_path[path] = [*map(attrgetter(name), self._objects(outer))]
        return self._objects_by_path[path]


def _decoded_rows(written: Sequence[msgspec.Raw], kind: type[_Row]) -> tuple[list[_Row], Counter[str]]:
    """Return the valid records, and count the others by the first field that is missing or odd."""
    decoder, rows, absent = msgspec.json.Decoder(kind), [], Counter[str]()
    for record in written:
        text = memoryview(record)
        if len(text) < _MIN_RECORD_BYTES:
            absent["fields"] += 1
            continue
        try:
            rows.append(decoder.decode(text))
        except msgspec.DecodeError as error:
            sentence = str(error)
            path = sentence.partition("`$.")[2].rstrip("`") or sentence.partition("`")[2].partition("`")[0]
            absent[path or "fields"] += 1
    return rows, absent
