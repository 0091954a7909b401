"""Reader of PyTorch profiler traces (``*.json``, ``*.json.gz``)."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcprof.common.errors import DamagedInput
from hpcprof.common.units import counted, visible
from hpcprof.profiles import kernel_classification
from hpcprof.profiles.columns.unique import distinct, map_unique, numbered, position_in_group
from hpcprof.profiles.gzip_file import open_packed, reading_packed
from hpcprof.profiles.host_memory import host_memory_of_name
from hpcprof.profiles.losses import Loss, LossKind, Subject
from hpcprof.profiles.readers.declaration import rank_from_name
from hpcprof.profiles.readers.foreign_files import foreign_trace
from hpcprof.profiles.readers.kineto import ASCEND_TRACE, MERGED, TORCH
from hpcprof.profiles.readers.kineto.arrows import linked_operators
from hpcprof.profiles.readers.kineto.collectives import (
    batched_records,
    collectives,
    host_collectives,
    only_group,
    records_by_operators,
    works,
)
from hpcprof.profiles.readers.kineto.events import TraceEvents, frame_of, synchronizations
from hpcprof.profiles.readers.kineto.json_stream import Batch, NotATrace, TraceStream
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import (
    NO_CORRELATION,
    NO_PROCESS,
    Allocations,
    ApiCalls,
    Category,
    Fact,
    Functions,
    Gpu,
    GpuMarks,
    IntColumns,
    Ints,
    Kernels,
    MemoryOperations,
    Operations,
    Operators,
    Origin,
    Ranges,
    Style,
    Timeline,
)

_HARMLESS = re.compile(
    # Requests for a recording: this one was made.
    r"\bconfig\b|dyno|IPC|Fabric|logger factory|current trace request|Not starting tracing|round up"
    # Callbacks, samples of counters and occupancies: none of them is read.
    r"|callback|PM sampling|occupancy|gpuGetDevice|Invalid deviceId"
    # Texts, links and ids that Kineto replaces, or that are not read.
    r"|Non JSON|flow type|ExternalCorrelation|external Ids|pid 0 detected"
    # Times and missing operations: all are checked and counted.
    r"|GPU op timestamp|trace is empty|No trace buffers"
    # Buffers and paths that have another default.
    r"|[Pp]er-thread activity buffer|relative path"
)
"""libkineto's warnings without a lost event, by subject."""

_VERSIONS = {
    "cuda_driver_version": "CUDA driver",
    "cuda_runtime_version": "CUDA runtime",
    "cupti_version": "CUPTI",
    "nccl_version": "NCCL",
}


def read(path: Path) -> Timeline:
    """Read a trace that the PyTorch profiler exported.

    Times are exact to the nanosecond. Ranges are the annotations on the host (``record_function``); those
    that the end of the recording cut off are not closed. The work of process groups on the host (gloo), which
    any thread may end, has the style start/end, the others push/pop. Operators are PyTorch's own.
    Graphs traced as a whole are only in traces that hpcprof exported. Events that lack a field are left out
    and counted in ``Origin.losses``.
    """
    return read_trace(path)


def read_trace(path: Path, translate: Callable[[Batch], Batch] | None = None) -> Timeline:
    """Read a trace as `read` does; ``translate`` turns a batch of events into those of Kineto."""
    events, properties = _load(path, translate)
    calls = ApiCalls(**events.calls.columns())
    tables = (events.kernels, events.memory, events.graphs, events.gpu_marks, events.waits)
    on_gpu = [table.columns() for table in tables]
    by_external_ids = events.linked_by_external_ids - events.correlated
    if Subject.CALL in by_external_ids:
        calls = replace(calls, correlation=_numbers_of_single_calls(calls))
        by_external_ids.clear()
    # Correlations of calls and external ids of their work are not the same numbers.
    for subject, columns in zip((Subject.KERNEL, Subject.MEMORY, Subject.GRAPH), on_gpu, strict=False):
        if subject in by_external_ids:
            columns["correlation"] = np.full_like(columns["correlation"], NO_CORRELATION)
    # Events on the GPU have no process. A trace has one process, unless a tool merged several traces.
    processes = np.unique(calls.process)
    for columns in on_gpu:
        columns["process"] = _owners(columns["correlation"], calls, processes)
    records = events.collectives
    if len(processes) > 1:
        for columns in on_gpu:
            for name in {"correlation", "source_correlation"} & columns.keys():
                columns[name] = _ids_by_process(columns[name], columns["process"], processes)
        calls = replace(calls, correlation=_ids_by_process(calls.correlation, calls.process, processes))
        numbers = on_gpu[0]["correlation"][events.communicating].tolist()
        records = [
            record._replace(correlation=number) for record, number in zip(records, numbers, strict=True)
        ]
    kernels, memory, graphs, marks, waits = on_gpu
    del marks["process"]  # only their correlation needed it
    category = kernel_classification.classes_of(kernels["name"], events.strings.array())
    communicating = category == Category.COMM
    ranges, operators = events.ranges.columns(), events.operators.columns()
    if records or events.group_calls:
        batches = batched_records(records, events.group_calls, kernels, communicating, calls, events.strings)
    else:
        batches = records_by_operators(operators, kernels, communicating, calls, events.strings)
    communicated = collectives([*records, *batches], calls, events.strings)
    operators["link"] = linked_operators(operators, events.arrows.columns())
    distributed = _mapping_or_empty(properties.get("distributedInfo"))
    on_host = host_collectives(ranges, operators, only_group(distributed), events.strings)
    functions = _functions(events.functions.columns(), events.strings)
    work, unread = works(ranges["name"], {} if communicating.any() else distributed, events.strings)
    ranges = {name: column for name, column in ranges.items() if name not in ("dims", "types")}
    strings = events.strings.array()
    called = distinct(calls.name).tolist()
    return Timeline(
        origin=replace(
            _origin(path, properties, (*events.losses, *unread, *_warnings(properties))),
            # For HIP and SYCL, Kineto records queues.
            ordered_streams=not any(str(strings[call]).startswith(("hip", "ur", "ze")) for call in called),
        ),
        kernels=Kernels(**kernels, category=category),
        memops=MemoryOperations(
            **memory,
            category=np.full(len(memory["start"]), int(Category.MEM)),
            host_memory=map_unique(memory["name"], lambda name: host_memory_of_name(strings[name])),
        ),
        calls=calls,
        collectives=communicated,
        ranges=Ranges(
            **ranges,
            style=np.where(work, Style.START_END, Style.PUSH_POP).astype(np.int64),
            one_thread=(~work).astype(np.int64),
        ),
        graphs=Operations(**graphs, category=np.full(len(graphs["start"]), int(Category.COMP))),
        gpu_marks=GpuMarks(**marks),
        allocations=Allocations(**events.allocations.columns()),
        operators=Operators(**operators),
        host_collectives=on_host,
        modules=Ranges(**events.modules.columns()),
        functions=functions,
        synchronizations=synchronizations(waits, calls, strings.tolist()),
        strings=strings,
    )


def _numbers_of_single_calls(calls: ApiCalls) -> Ints:
    """Return the numbers of calls, without those that several calls of a process have.

    Such an id is the number of an operator, whose kernels any of its calls may have launched.
    """
    _, row, count = np.unique(
        np.stack((calls.process, calls.correlation)), axis=1, return_inverse=True, return_counts=True
    )
    return np.where(count[row.ravel()] > 1, NO_CORRELATION, calls.correlation)


def _owners(correlation: Ints, calls: ApiCalls, processes: Ints) -> Ints:
    """Return the process of each operation on the GPU, given the processes of the calls.

    Processes of a merged trace number their calls alike. An operation and its call have the same
    number and the same place among the rows of that number in the file.
    """
    if len(processes) < 2:
        return np.full(len(correlation), processes[0] if len(processes) else 0)
    numbers, row = numbered(correlation)
    place, count = position_in_group(row), np.bincount(row, minlength=len(numbers))
    pairs, first = np.unique(np.stack((calls.correlation, calls.process)), axis=1, return_index=True)
    by_place = np.lexsort((first, pairs[0]))
    calling, caller = pairs[0][by_place], pairs[1][by_place]
    begin = np.searchsorted(calling, numbers)
    calls_of = np.searchsorted(calling, numbers, side="right") - begin
    has_calls = calls_of[row] > 0
    share = np.where(has_calls, place * np.maximum(calls_of[row], 1) // np.maximum(count[row], 1), 0)
    at = np.minimum(begin[row] + share, len(caller) - 1)
    return np.where(has_calls & (calling[at] == correlation), caller[at], NO_PROCESS)


def _ids_by_process(correlation: Ints, owner: Ints, processes: Ints) -> Ints:
    number = correlation * len(processes) + np.searchsorted(processes, owner)
    return np.where(correlation == NO_CORRELATION, NO_CORRELATION, number)


def _functions(columns: IntColumns, strings: StringTable) -> Functions:
    used, row = numbered(columns.pop("name"))
    frames = [frame for text in strings.array()[used].tolist() if (frame := frame_of(text))]
    return Functions(
        **columns,
        function=strings.add_all(frame.function for frame in frames)[row],
        file=strings.add_all(frame.file for frame in frames)[row],
        line=np.array([frame.line for frame in frames], np.int64)[row],
    )


def _load(path: Path, translate: Callable[[Batch], Batch] | None) -> tuple[TraceEvents, dict[str, Any]]:
    events = TraceEvents()
    with open_packed(path) as file, damage_as_sentence(path):
        if path.name == MERGED:
            raise NotATrace("holds the traces of all ranks, for viewers: give those of the ranks.")
        stream = TraceStream(file)
        has_phases = False
        for batch in stream.batches():
            has_phases = has_phases or any(event is not None and event.ph for event in batch)
            events.add(translate(batch) if translate else batch)
        if not events.count and "schemaVersion" not in stream.properties:
            raise NotATrace("has no events, so nothing was recorded.")
        if events.foreign and "schemaVersion" not in stream.properties:
            if not has_phases:
                raise NotATrace(f"is no trace: none of its {counted(events.count, 'value')} is an event.")
            raise NotATrace(
                "is a Chrome trace, but not one of the PyTorch profiler: "
                f"none of its {counted(events.count, 'event')} has a category that PyTorch writes."
            )
    return events, stream.properties


@contextmanager
def damage_as_sentence(path: Path) -> Iterator[None]:
    """Turn errors while a trace is read into `DamagedInput`."""
    try:
        with reading_packed(path):
            yield
    except NotATrace as error:
        foreign = "" if path.name.endswith(ASCEND_TRACE) else foreign_trace(path)
        raise DamagedInput(f"{path} is {foreign}." if foreign else f"{path} {error}") from None


def _origin(path: Path, trace: dict[str, Any], losses: tuple[Loss, ...]) -> Origin:
    distributed = _mapping_or_empty(trace.get("distributedInfo"))
    rank = _natural_number(distributed.get("rank"))
    devices = trace.get("deviceProperties")
    maker = "AMD" if "hip_runtime_version" in trace or "roctracer_version" in trace else ""
    gpus = tuple(_gpus(devices if isinstance(devices, list) else [], maker))
    versions = [(name, {**trace, **distributed}.get(key)) for key, name in _VERSIONS.items()]
    return Origin(
        path=path,
        kind=TORCH.name,
        rank=rank_from_name(path) if rank is None else rank,
        world_size=_natural_number(distributed.get("world_size")),
        start_utc_ns=_natural_number(trace.get("baseTimeNanoseconds")),
        gpus=gpus,
        facts=tuple(
            Fact("version", name, str(version))
            for name, version in versions
            if isinstance(version, (str, int))
        ),
        losses=losses,
    )


def _warnings(trace: Mapping[str, Any]) -> Iterator[Loss]:
    """Yield the warnings and errors that libkineto's logger adds to a trace, except harmless ones."""
    for key in ("WARNING", "ERROR"):
        texts = trace.get(key)
        for text in texts if isinstance(texts, list) else ():
            if isinstance(text, str) and not _HARMLESS.search(text):
                yield Loss(LossKind.DIAGNOSTIC, Subject.CAPTURE, 1, None, visible(" ".join(text.split())))


def _mapping_or_empty(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _natural_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _gpus(devices: Iterable[Any], maker: str) -> Iterator[Gpu]:
    for position, device in enumerate(devices):
        if isinstance(device, dict) and isinstance(device.get("name"), str):
            number = _natural_number(device.get("id"))
            major, minor = (_natural_number(device.get(key)) for key in ("computeMajor", "computeMinor"))
            yield Gpu(
                device=position if number is None else number,
                name=device["name"] or (maker and f"{maker} GPU with {device.get('numSms')} units"),
                compute_capability=None if major is None or minor is None else f"{major}.{minor}",
                sm_count=_natural_number(device.get("numSms")),
                memory_bytes=_natural_number(device.get("totalGlobalMem")),
            )
