"""The records of rocprofv3 in any of its formats, and the timeline that they make.

A *stack id* is the number that a dispatch or a copy shares with the call that launched it, which rocprofv3
also names the internal correlation id. It is unique within a process.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import IntEnum

import msgspec
import numpy as np

from hpcprof.profiles import kernel_classification
from hpcprof.profiles.collective_operations import operation
from hpcprof.profiles.columns.intervals import styles_of_threads
from hpcprof.profiles.columns.unique import numbered, numbered_rows
from hpcprof.profiles.gpu_peaks import memory_bytes_per_s
from hpcprof.profiles.host_memory import HostMemory
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.nccl_groups import launching_calls
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import (
    NO_CORRELATION,
    NO_NAME,
    NO_STREAM,
    ApiCalls,
    Category,
    Collectives,
    Columns,
    Fact,
    Gpu,
    IntColumns,
    Ints,
    KernelCounters,
    Kernels,
    Mask,
    MemoryOperations,
    Origin,
    Ranges,
    Style,
    Timeline,
    empty_columns,
)

_AXES = ("x", "y", "z")
WORKGROUP = tuple(f"workgroup_size_{axis}" for axis in _AXES)
GRID = tuple(f"grid_size_{axis}" for axis in _AXES)
"""The work-items of a dispatch, not its workgroups."""

OPERATION = ("start", "end", "process", "device", "queue", "stream", "name", "stack")
DISPATCH = (*OPERATION, *WORKGROUP, *GRID)
COPY = (*OPERATION, "bytes", "host_memory")
CALL = ("start", "end", "process", "thread", "name", "stack", "kind", "style")
COUNTER = ("start", "end", "process", "device", "name", "counter", "value")

NOT_RECORDED = -1
_DIRECTION = re.compile(r"(?:MEMORY_COPY_)?(HOST|DEVICE)_TO_(HOST|DEVICE)")
_RANGE = re.compile(r"ThreadRange|RangePush|RangePop|(ProcessRange|RangeStart|RangeStop)")
_HIP_QUEUE = 1 << 31
"""Larger numbers of queues and streams are addresses."""


class CallCategory(IntEnum):
    """The kind of a call on the host, by its category."""

    API = 0
    RCCL = 1
    MARKER = 2
    IGNORED = 3
    """Calls that control the profiler or name threads and streams."""
    UNKNOWN = 4


_CATEGORY_PATTERNS = (
    (re.compile(r"marker_?(control|name)", re.IGNORECASE), CallCategory.IGNORED),
    (re.compile(r"marker|roctx", re.IGNORECASE), CallCategory.MARKER),
    (re.compile(r"rccl", re.IGNORECASE), CallCategory.RCCL),
    (re.compile(r"hip|hsa", re.IGNORECASE), CallCategory.API),
)


def call_category(category: str | None) -> CallCategory:
    """Return the kind of the calls of a category, such as ``HIP_RUNTIME_API``."""
    text = category or ""
    return next((kind for pattern, kind in _CATEGORY_PATTERNS if pattern.search(text)), CallCategory.UNKNOWN)


def style_of(function: str) -> int:
    """Return the `Style` of the range that a function of ROCTx begins or ends; else `NOT_RECORDED`."""
    match = _RANGE.search(function)
    if not match:
        return NOT_RECORDED
    return int(Style.START_END if match[1] else Style.PUSH_POP)


def copy_directions(directions: Iterable[str], row: Ints, strings: StringTable) -> IntColumns:
    """Return the columns ``name`` and ``host_memory`` of copies, with names as in other profiles.

    ``row`` has the place of each copy's direction among ``directions``, such as ``HOST_TO_DEVICE``.
    """
    copies = [_copy_name(direction) for direction in directions]
    return {
        "name": strings.add_all(name or None for name, _ in copies)[row],
        "host_memory": np.array([int(memory) for _, memory in copies], np.int64)[row],
    }


def _copy_name(direction: str) -> tuple[str, HostMemory]:
    match = _DIRECTION.fullmatch(direction)
    if match is None:
        return direction, HostMemory.UNKNOWN
    # rocprofv3 does not tell pageable memory from pinned.
    memory = HostMemory.UNKNOWN if "HOST" in match.groups() else HostMemory.NONE
    return f"[HIP memcpy {match[1].title()}-to-{match[2].title()}]", memory


def gpu_of_copies(destination: Ints, origin: Ints, to_gpu: Mask, from_gpu: Mask) -> Ints:
    """Return the agent that counts as the GPU of each copy: the origin if it alone is a GPU."""
    return np.where(to_gpu | ~from_gpu, destination, origin)


class Records(msgspec.Struct):
    """The records of one or several processes, as columns."""

    dispatches: IntColumns = msgspec.field(default_factory=lambda: empty_columns(DISPATCH))
    copies: IntColumns = msgspec.field(default_factory=lambda: empty_columns(COPY))
    calls: IntColumns = msgspec.field(default_factory=lambda: empty_columns(CALL))
    counters: Columns = msgspec.field(default_factory=lambda: {name: np.empty(0) for name in COUNTER})
    """The columns `DISPATCH`, `COPY`, `CALL` and `COUNTER`. ``name`` is a number in the string table;
    ``stack``, ``queue`` and ``stream`` are `NOT_RECORDED` if unknown.
    """
    lost: list[Loss] = msgspec.field(default_factory=list)
    """The losses: what is left out of them."""


def join_records(parts: Iterable[Records]) -> Records:
    """Return the records of all parts."""
    whole = Records()
    for part in parts:
        for name in ("dispatches", "copies", "calls", "counters"):
            before, more = getattr(whole, name), getattr(part, name)
            setattr(whole, name, {key: np.concatenate((before[key], more[key])) for key in before})
        whole.lost += part.lost
    return whole


def timeline(origin: Origin, records: Records, strings: StringTable) -> Timeline:
    """Build the timeline of records; what is left out joins the losses of ``origin``."""
    lost = list(records.lost)
    dispatches, copies, calls = records.dispatches, records.copies, records.calls
    calls = _without_marks(calls, lost)
    unnamed = {"name": np.count_nonzero(dispatches["name"] == NO_NAME)}
    lost += losses(LossKind.FIELD, Subject.KERNEL, unnamed, len(dispatches["name"]))
    stream, copy_streams, ordered = _streams(dispatches, copies)
    launching = np.concatenate((dispatches["stack"], copies["stack"]))
    rccl = calls["kind"] == CallCategory.RCCL
    # Without the HIP API, kernels of RCCL are launched by its own functions.
    api = (calls["kind"] == CallCategory.API) | (rccl & np.isin(calls["stack"], launching))
    collectives = _collectives({key: values[rccl] for key, values in calls.items()}, strings)
    ranges = _ranges(calls, strings)
    counters = _counters(records.counters, lost)
    texts, block = strings.array(), _shape(dispatches, WORKGROUP)
    return Timeline(
        origin=replace(origin, losses=(*origin.losses, *lost), ordered_streams=ordered),
        strings=texts,
        kernels=Kernels(
            **_operations(dispatches, stream),
            category=kernel_classification.classes_of(dispatches["name"], texts),
            # Grids are counted in workgroups, as elsewhere.
            grid=-(-_shape(dispatches, GRID) // np.maximum(block, 1)),
            block=block,
        ),
        memops=MemoryOperations(
            **_operations(copies, copy_streams),
            category=np.full(len(copy_streams), int(Category.MEM)),
            bytes=copies["bytes"],
            host_memory=copies["host_memory"],
        ),
        calls=ApiCalls(
            **{key: calls[key][api] for key in ("start", "end", "process", "thread", "name")},
            correlation=_correlation(calls["stack"][api]),
        ),
        ranges=ranges,
        collectives=collectives,
        counters=counters,
    )


def _without_marks(calls: IntColumns, lost: list[Loss]) -> IntColumns:
    """Leave out marks, which have no duration, and count ranges that have none.

    rocprofv3 has stored the end of a range as its start too (ROCm/rocm-systems#2793). Such a range differs
    from a mark by its function, or by other ranges of its name that take time.
    """
    marker, lasts = calls["kind"] == CallCategory.MARKER, calls["end"] != calls["start"]
    if (lasts | ~marker).all():
        return calls
    lasting = calls["name"][marker & lasts]
    is_range = marker & ((calls["style"] != NOT_RECORDED) | np.isin(calls["name"], lasting))
    unplaced = {"duration": np.count_nonzero(is_range & ~lasts)}
    lost += losses(LossKind.ROW, Subject.RANGE, unplaced, int(np.count_nonzero(is_range)))
    return {key: values[lasts | ~marker] for key, values in calls.items()}


def _counters(columns: Columns, lost: list[Loss]) -> KernelCounters:
    whole = {key: np.asarray(values, np.int64) for key, values in columns.items() if key != "value"}
    value = np.asarray(columns["value"], np.float64)
    is_finite = np.isfinite(value)
    lost += losses(LossKind.ROW, Subject.COUNTER, {"value": np.count_nonzero(~is_finite)}, len(is_finite))
    return KernelCounters(**{key: values[is_finite] for key, values in whole.items()}, value=value[is_finite])


def _streams(dispatches: IntColumns, copies: IntColumns) -> tuple[Ints, Ints, bool]:
    """Return the streams of dispatches and copies, and True if they are streams, so work is in order.

    Queues take their place if all work has the stream 0: rocprofv3 does not know the streams of HIP's calls.
    """
    both = np.concatenate((dispatches["stream"], copies["stream"]))
    ordered = both.max(initial=NOT_RECORDED) > 0
    if not ordered:
        queues = np.concatenate((dispatches["queue"], copies["queue"]))
        both = np.where(queues != NOT_RECORDED, queues, both)
    if both.max(initial=0) >= _HIP_QUEUE:
        used, number = numbered(both)
        both = number - int(used[0] == NOT_RECORDED)
    both = np.where(both == NOT_RECORDED, NO_STREAM, both)
    return both[: len(dispatches["stream"])], both[len(dispatches["stream"]) :], bool(ordered)


def _correlation(stack: Ints) -> Ints:
    return np.where(stack > 0, stack, NO_CORRELATION)


def _operations(columns: IntColumns, stream: Ints) -> IntColumns:
    fields = {key: columns[key] for key in ("start", "end", "process", "device", "name")}
    return {**fields, "stream": stream, "correlation": _correlation(columns["stack"])}


def _shape(columns: IntColumns, names: Sequence[str]) -> Ints:
    shape: Ints = np.ascontiguousarray(np.stack([columns[name] for name in names]).T)
    return shape


def _ranges(calls: IntColumns, strings: StringTable) -> Ranges:
    """Return the ranges of ROCTx, and the functions of RCCL as ranges of its own domain."""
    rows = np.flatnonzero(np.isin(calls["kind"], (CallCategory.MARKER, CallCategory.RCCL)))
    start, end, process, thread, name, kind, style = (
        calls[key][rows] for key in ("start", "end", "process", "thread", "name", "kind", "style")
    )
    rccl = kind == CallCategory.RCCL
    style[rccl] = int(Style.PUSH_POP)
    unknown = style == NOT_RECORDED
    style[unknown] = styles_of_threads(*(column[unknown] for column in (process, thread, start, end)))
    texts = strings.array()
    used, row = numbered(name[rccl])
    name[rccl] = strings.add_all(f"RCCL:{texts[number]}" for number in used.tolist())[row]
    return Ranges(
        start=start,
        end=end,
        process=process,
        thread=thread,
        name=name,
        domain=np.where(rccl, strings.add("RCCL") if rccl.any() else NO_NAME, NO_NAME),
        style=style,
    )


def _collectives(calls: IntColumns, strings: StringTable) -> Collectives:
    """Return the collectives that RCCL was called for; rocprofv3 records neither sizes nor communicators."""
    order = np.lexsort((calls["start"], calls["thread"], calls["process"]))
    calls = {key: values[order] for key, values in calls.items()}
    texts = strings.array()
    used, name = numbered(calls["name"])
    names = [str(texts[number]) for number in used.tolist()]
    _, thread = numbered_rows(calls["process"], calls["thread"])
    launch = launching_calls(names, name, thread)
    operations = strings.add_all(map(operation, names))[name]
    rows = np.flatnonzero(operations != NO_NAME)
    return Collectives(
        start=calls["start"][launch][rows],
        end=calls["end"][launch][rows],
        process=calls["process"][rows],
        thread=calls["thread"][rows],
        operation=operations[rows],
    )


class Bank(msgspec.Struct):
    """Memory of an agent."""

    size_in_bytes: int = 0


class Details(msgspec.Struct):
    """The properties of an agent that matter here; clocks are in MHz."""

    cu_count: int = 0
    max_engine_clk_fcompute: int = 0
    mem_banks: list[Bank] = []


KEPT_DETAILS = Details.__struct_fields__
"""The names of these properties."""


class Agent(msgspec.Struct, frozen=True):
    """A processor; ``number`` identifies it in the profile, ``device`` among the GPUs of the node."""

    number: int
    gpu: bool
    device: int
    architecture: str
    name: str
    details: Details


def gpus_of(agents: Iterable[Agent]) -> tuple[Gpu, ...]:
    """Return the GPUs in the order of their devices."""
    gpus = {agent.device: agent for agent in agents if agent.gpu}
    return tuple(_gpu(gpus[device]) for device in sorted(gpus))


def _gpu(agent: Agent) -> Gpu:
    memory = sum(bank.size_in_bytes for bank in agent.details.mem_banks)
    return Gpu(
        device=agent.device,
        name=agent.name,
        sm_count=_positive_number(agent.details.cu_count),
        clock_hz=_positive_number(agent.details.max_engine_clk_fcompute * 1_000_000),
        memory_bytes=_positive_number(memory),
        memory_bytes_per_s=memory_bytes_per_s(agent.name),
    )


def _positive_number(value: int) -> int | None:
    return value if 0 < value < 1 << 62 else None


def architectures(agents: Iterable[Agent]) -> Iterator[Fact]:
    """Yield the architectures of the GPUs, such as gfx942."""
    names = sorted({agent.architecture for agent in agents if agent.gpu and agent.architecture})
    if names:
        yield Fact("machine", "GPU architecture", ", ".join(names))
