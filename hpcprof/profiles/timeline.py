"""The columnar model that every analysis reads: one rank's activity, whichever profiler recorded it.

Times are int64 nanoseconds on the profile's own clock; ``Origin.start_utc_ns`` is that clock's zero
in UTC. Names are indices into one string table, ``Timeline.strings``; -1 means that the profiler recorded
no name. All columns of a table have the same length, and rows keep the profiler's order.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.host_memory import HostMemory
from hpcprof.profiles.losses import Loss

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Columns = dict[str, NDArray[Any]]
IntColumns = dict[str, Ints]
"""Columns of equal length by their names."""
NO_NAME = NO_PROCESS = NO_CORRELATION = NO_STREAM = -1
NO_BYTES = -1
NO_LINK = -1
UNKNOWN_RANKS = -1
NO_PEER = -1
OWN_END = 2
"""Marks a range that starts and ends by a handle on one thread, which ``nsys stats`` projects on no GPU."""
NO_TAG = NO_ROOT = NO_WAIT = -1

LATEST = 1 << 62
"""A later stamp is damage: no clock of a profiler reaches it, and nanoseconds since 1970 do so in 2116."""

BEFORE_ALL, AFTER_ALL = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
"""Moments before and after all others, for events that do not exist."""

LONGEST = 1 << 53
"""A longer duration is damage: nothing in a profile lasts 104 days, and sums of such durations overflow."""
HOST = -1
"""The device of memory on the host."""

TableT = TypeVar("TableT", bound="Table")


class Category(IntEnum):
    """The category of a GPU operation: it computes, communicates or moves memory.

    A fused kernel does the first two: its time is compute, and communication that compute hides wholly.
    """

    COMP = 0
    COMM = 1
    MEM = 2
    FUSED = 3


PARTS_OF_WORK = (Category.COMP, Category.COMM, Category.MEM)
"""The categories into which time is divided."""


class Style(IntEnum):
    """The style of a range: pushed and popped on one thread, or started and ended anywhere."""

    PUSH_POP = 0
    START_END = 1


class SyncKind(IntEnum):
    """The kind of a synchronization: what waits for what."""

    EVENT = 0
    """The host waits for an event."""
    STREAM_WAIT = 1
    """A stream waits for an event."""
    STREAM = 2
    """The host waits for a stream."""
    DEVICE = 3
    """The host waits for all streams."""


@dataclass(frozen=True)
class Table:
    """Columns of equal length; one with a default need not be given."""

    # The names of the columns in order, which dataclass sets: `fields` takes longer than a small table does.
    __match_args__: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        lengths = {}
        for name in self.__match_args__:
            column = getattr(self, name)
            if column is _NO_COLUMN:
                column = np.full((len(self), *SHAPES.get(name, (0,))[1:]), _DEFAULTS[name])
                object.__setattr__(self, name, column)
            lengths[name] = len(column)
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of {type(self).__name__} differ in length: {lengths}")

    def __len__(self) -> int:
        return len(getattr(self, self.__match_args__[0]))

    def take(self: TableT, rows: Mask | Ints | slice) -> TableT:
        """Return the rows that a mask, an index array or a slice selects."""
        return type(self)(*(getattr(self, name)[rows] for name in self.__match_args__))

    @classmethod
    def empty(cls: type[TableT]) -> TableT:
        """Return the table without rows."""
        return cls(*(np.empty(SHAPES.get(name, (0,)), np.int64) for name in cls.__match_args__))


FLOATS = ("value",)
"""The columns that are no whole numbers."""

# Columns with more than one value per row.
SHAPES = {"grid": (0, 3), "block": (0, 3)}

_DEFAULTS = {
    **dict.fromkeys(("grid", "block", "closed", "one_thread"), 1),
    **dict.fromkeys(("domain", "dims", "types", "values", "communicator"), NO_NAME),
    "bytes": NO_BYTES,
    "host_memory": int(HostMemory.UNKNOWN),
    "style": int(Style.PUSH_POP),
    "correlation": NO_CORRELATION,
    "link": NO_LINK,
    "ranks": UNKNOWN_RANKS,
    **dict.fromkeys(("peer", "comm_peer"), NO_PEER),
}
"""The values of columns that a profiler does not record."""
_NO_COLUMN: Ints = np.empty(0, np.int64)


def _default() -> Ints:
    return _NO_COLUMN


def empty_columns(names: Iterable[str]) -> IntColumns:
    """Return columns without rows."""
    return {name: np.empty(0, np.int64) for name in names}


def along_axes(sizes: Sequence[Ints]) -> Ints:
    """Return columns of sizes along x, y and z as one, shape (n, 3): int32, half the memory, if all fit."""
    fit = all(size.min(initial=0) >= 0 and size.max(initial=0) < 1 << 31 for size in sizes)
    shapes: Ints = np.stack(sizes, dtype=np.int32 if fit else np.int64, casting="same_kind").T
    return shapes


@dataclass(frozen=True)
class GpuSpans(Table):
    """Spans of time on streams of a GPU."""

    start: Ints
    end: Ints
    device: Ints
    stream: Ints
    name: Ints


@dataclass(frozen=True)
class GpuWork(GpuSpans):
    """Spans of work on a GPU; ``category`` holds `Category` values."""

    category: Ints


@dataclass(frozen=True)
class Operations(GpuWork):
    """Work on a GPU, one row per operation.

    ``correlation`` identifies the API call that launched the operation and is unique only within ``process``.
    It is `NO_CORRELATION`, and ``process`` is `NO_PROCESS`, if the profiler did not record it.
    """

    correlation: Ints
    process: Ints


@dataclass(frozen=True)
class Kernels(Operations):
    """GPU kernels; ``grid`` and ``block`` have shape (n, 3), and may be int32."""

    grid: Ints = field(default_factory=_default)
    block: Ints = field(default_factory=_default)


@dataclass(frozen=True)
class MemoryOperations(Operations):
    """Memory copies and sets; ``bytes`` is the size of each, ``host_memory`` holds `HostMemory` values."""

    bytes: Ints = field(default_factory=_default)
    host_memory: Ints = field(default_factory=_default)


@dataclass(frozen=True)
class KernelCounters(Table):
    """Hardware counters of kernels, one row per launch and counter.

    ``start``, ``end``, ``process``, ``device`` and ``name`` are those of the kernel; ``value`` is the sum
    over all units of the device that count.
    """

    start: Ints
    end: Ints
    process: Ints
    device: Ints
    name: Ints
    counter: Ints
    value: Floats


@dataclass(frozen=True)
class Spans(Table):
    """Spans of time on threads of the host."""

    start: Ints
    end: Ints
    process: Ints
    thread: Ints


@dataclass(frozen=True)
class NamedSpans(Spans):
    """Spans with names."""

    name: Ints


@dataclass(frozen=True)
class ApiCalls(NamedSpans):
    """CUDA runtime and driver calls on the host."""

    correlation: Ints


@dataclass(frozen=True)
class Ranges(NamedSpans):
    """Ranges that the program marked (NVTX, record_function).

    ``style`` holds `Style` values. ``domain`` is the name of the NVTX domain, which ``name`` then
    begins with (``NCCL:ncclAllReduce``), or `NO_NAME`. ``closed`` is 0 if the profile ends before the
    range does; its ``end`` is then the last time stamp of any range or mark in the profile.
    ``one_thread`` is 0 if another thread ended the range, and `OWN_END` if its end names its own thread.
    """

    domain: Ints = field(default_factory=_default)
    style: Ints = field(default_factory=_default)
    closed: Ints = field(default_factory=_default)
    one_thread: Ints = field(default_factory=_default)


@dataclass(frozen=True)
class Operators(NamedSpans):
    """Calls of PyTorch's operators on the host (``aten::mm``), also of those inside others, and of XLA's.

    ``dims`` and ``types`` are JSON lists of the shapes and types of the inputs as the profiler wrote them,
    ``[[4,32],[32,10]]`` and ``["float","float"]``, and ``values`` one of a convolution's other inputs, or a
    JSON object of the ``flops`` and ``bytes`` of a call where the profile tells them. An
    operator of the forward pass shares the number ``link`` with the one of its gradient, or has `NO_LINK`.
    """

    dims: Ints = field(default_factory=_default)
    types: Ints = field(default_factory=_default)
    link: Ints = field(default_factory=_default)
    values: Ints = field(default_factory=_default)


@dataclass(frozen=True)
class GpuMarks(GpuSpans):
    """Rows on the GPU other than work: annotations projected on it, and waits.

    ``correlation`` is that of the call that waits; annotations have `NO_CORRELATION`.
    """

    correlation: Ints


@dataclass(frozen=True)
class Allocations(Table):
    """Events of the program's allocator, one row per allocation or release (``bytes`` below 0).

    ``allocated`` and ``reserved`` are the bytes that it had handed out and held on the device after the
    event; ``device`` is `HOST` for the host's memory.
    """

    time: Ints
    device: Ints
    bytes: Ints
    allocated: Ints
    reserved: Ints


@dataclass(frozen=True)
class Collectives(Spans):
    """Calls of collective operations (NCCL's), on each thread in the order of the calls.

    ``start`` and ``end`` are those of the call on ``thread`` that launches the work: the call itself or, for
    all calls of a group, the one that ends the group. ``operation`` is one of
    `hpcprof.profiles.collective_operations`; ``communicator`` is a text that is the same on all of its ranks,
    or `NO_NAME`. ``bytes`` is the message as NCCL counts it, `NO_BYTES` if unknown: what one rank contributes
    to an all-gather or a gather and receives from a reduce-scatter or a scatter, what each rank receives from
    each other rank in an all-to-all, else the whole buffer. ``ranks`` is the size of the communicator or
    `UNKNOWN_RANKS`. The partner of a send or a receive is ``peer``, its rank in the program, or
    ``comm_peer``, its rank in the communicator, whichever the profiler recorded; the other is `NO_PEER`.
    """

    operation: Ints
    communicator: Ints = field(default_factory=_default)
    bytes: Ints = field(default_factory=_default)
    ranks: Ints = field(default_factory=_default)
    peer: Ints = field(default_factory=_default)
    comm_peer: Ints = field(default_factory=_default)


@dataclass(frozen=True)
class MpiCalls(NamedSpans):
    """Calls of MPI on the host, one row per call, also of one that waits for several requests.

    Calls of one thread do not overlap.
    """


@dataclass(frozen=True)
class OsCalls(NamedSpans):
    """Calls of the runtime of the operating system on the host; one may lie inside another."""


@dataclass(frozen=True)
class MpiOperations(Spans):
    """Messages and collectives of MPI, one row for each that the rank takes part in.

    The call that begins the operation takes ``begin_ns`` from ``start``. The call in which it ends takes
    ``wait_ns`` until ``end``: the same call for a blocking operation, the wait or test of its request for
    another. Where the profile has none, ``end`` is the first call's, and ``wait_ns`` is `NO_WAIT`. All are on
    ``thread``, the first call's. ``operation`` is one of
    `hpcprof.profiles.collective_operations`; a call that sends and receives has a row for each.
    ``communicator`` is a text that is the same on all of its ranks, or `NO_NAME`, and ``ranks`` its size or
    `UNKNOWN_RANKS`. The partner of a message is ``peer``, its rank in the program, or ``comm_peer``, its rank
    in the communicator, whichever is known, else `NO_PEER`; a receive from any source has the rank that sent.
    ``root`` is a rank in the communicator or `NO_ROOT`, and ``tag`` the tag of a message or `NO_TAG`.
    ``bytes`` is the size of a message, or what this rank gives to a collective, ``received_bytes`` what it
    gets from one; `NO_BYTES` if unknown.
    """

    operation: Ints
    communicator: Ints
    ranks: Ints
    peer: Ints
    comm_peer: Ints
    root: Ints
    tag: Ints
    bytes: Ints
    received_bytes: Ints
    begin_ns: Ints
    wait_ns: Ints


@dataclass(frozen=True)
class Synchronizations(Table):
    """Waits of the host or of a stream; queries, which do not wait, are not among them.

    ``start`` and ``end`` are times on the host: a stream that waits does so later. ``kind`` holds `SyncKind`
    values, and ``correlation`` identifies the API call. ``stream`` is the one that waits for an event or that
    the host waits for, else `NO_STREAM`. ``source_stream`` and ``source_correlation`` are the stream of the
    event and the call that recorded it; they are `NO_STREAM` and `NO_CORRELATION` without an event, or if the
    profile has no record of it, as for one from before the capture.
    """

    start: Ints
    end: Ints
    process: Ints
    kind: Ints
    correlation: Ints
    device: Ints
    stream: Ints
    source_stream: Ints
    source_correlation: Ints


@dataclass(frozen=True)
class Functions(Spans):
    """Places of threads in the user's code, from stacks: calls, which may be nested, or samples.

    Only the innermost function of the user's own code counts, not those of libraries that it calls, but for
    long ones in C (`hpcprof.profiles.frames`). ``file`` is `NO_NAME`, and ``line`` is -1, if it is unknown.
    """

    function: Ints
    file: Ints
    line: Ints


@dataclass(frozen=True)
class CpuCounters(Spans):
    """Growth of counters of the CPU on a thread between two readings, one row for each counter.

    ``counter`` is a text: `INSTRUCTIONS` or `CYCLES`.
    """

    counter: Ints
    grown: Ints


INSTRUCTIONS, CYCLES = "instructions", "cycles"


@dataclass(frozen=True)
class DeviceSamples(Table):
    """Samples of metrics of devices that are of no process: GPUs and NICs.

    ``source`` is the device (``gpu0``, ``nic:mlx5_0``), ``metric`` the profiler's name and ``unit`` its unit,
    an empty text if there is none. ``start`` and ``end`` are equal for a sample of a moment.
    """

    start: Ints
    end: Ints
    source: Ints
    metric: Ints
    unit: Ints
    value: Floats


@dataclass(frozen=True)
class Gpu:
    """One GPU of the node; what the profile does not record is None.

    ``device`` is its number in the profile. The peaks are those of the data sheet: the clock in Hz, the
    memory's bandwidth in bytes per second.
    """

    device: int
    name: str
    uuid: str | None = None
    compute_capability: str | None = None
    sm_count: int | None = None
    clock_hz: int | None = None
    memory_bytes: int | None = None
    memory_bytes_per_s: int | None = None


@dataclass(frozen=True)
class Fact:
    """One more fact in a profile.

    ``kind`` is environment, option (of the capture), version (of software) or machine.
    """

    kind: str
    name: str
    value: str


_NAMES_OF_GPUS: tuple[str, ...] = ("",)
"""Stands for the names of all GPUs of a profile."""


@dataclass(frozen=True)
class Origin:
    """The origin of a timeline, and the settings of its recording.

    ``kind`` is the name of the reader. ``rank`` is that in the profile, else in its file name, None if
    neither has one. ``start_utc_ns`` is the UTC time of the clock's zero in nanoseconds since 1970, None if
    unknown. ``losses`` are what the reader left out. ``ordered_streams`` says that the
    operations of one stream of a process run one after another, as on CUDA's streams and unlike on queues.
    ``captured`` has the first and the last of each span of steps that the job was told to capture, empty if
    it was to capture all. ``device_names`` are those of ``gpus`` if they are not given.
    """

    path: Path
    kind: str
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    device_names: tuple[str, ...] = _NAMES_OF_GPUS
    profiler_version: str | None = None
    start_utc_ns: int | None = None
    gpus: tuple[Gpu, ...] = ()
    facts: tuple[Fact, ...] = ()
    losses: tuple[Loss, ...] = ()
    ordered_streams: bool = False
    captured: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.device_names is _NAMES_OF_GPUS:
            object.__setattr__(self, "device_names", tuple(gpu.name for gpu in self.gpus))


@dataclass(frozen=True)
class StepRange:
    """The range that is the step of a run, by its name without a counter; empty for no step.

    ``named`` says that a user chose it.
    """

    name: str
    named: bool = False


@dataclass(frozen=True, eq=False)
class Timeline:
    """One rank's profile as columns; timelines are compared by identity.

    ``graphs`` holds the launches of CUDA graphs that the profiler traced as a whole, one row per launch:
    the kernels inside them are not in the profile. They count as compute. ``host_collectives`` are those
    that the host itself carries out (gloo, MPI, oneCCL); ``start`` and ``end`` are when it begins each one
    and when the result is there. ``modules`` are the calls of PyTorch's modules. ``functions`` come from
    stacks, where the profiler recorded any. ``unended_kernels`` are those whose end is unknown or impossible:
    they begin steps, and count nowhere else. ``step_range`` is what was chosen for the run; None leaves the
    choice to the timeline alone.
    """

    origin: Origin
    strings: NDArray[np.object_]
    kernels: Kernels
    memops: MemoryOperations
    calls: ApiCalls
    ranges: Ranges
    graphs: Operations = field(default_factory=Operations.empty)
    gpu_marks: GpuMarks = field(default_factory=GpuMarks.empty)
    allocations: Allocations = field(default_factory=Allocations.empty)
    collectives: Collectives = field(default_factory=Collectives.empty)
    operators: Operators = field(default_factory=Operators.empty)
    synchronizations: Synchronizations = field(default_factory=Synchronizations.empty)
    host_collectives: Collectives = field(default_factory=Collectives.empty)
    modules: Ranges = field(default_factory=Ranges.empty)
    functions: Functions = field(default_factory=Functions.empty)
    mpi_calls: MpiCalls = field(default_factory=MpiCalls.empty)
    mpi_operations: MpiOperations = field(default_factory=MpiOperations.empty)
    counters: KernelCounters = field(default_factory=KernelCounters.empty)
    cpu_counters: CpuCounters = field(default_factory=CpuCounters.empty)
    os_calls: OsCalls = field(default_factory=OsCalls.empty)
    device_samples: DeviceSamples = field(default_factory=DeviceSamples.empty)
    unended_kernels: Kernels = field(default_factory=Kernels.empty)
    step_range: StepRange | None = None

    def names(self, ids: Ints) -> list[str | None]:
        """Return the strings of ``ids``, of shape (n,), as n texts; None for `NO_NAME`."""
        texts = [*self.strings.tolist(), None]  # `NO_NAME` is -1 and so selects the last element.
        return [texts[i] for i in ids.tolist()]

    def with_losses(self, losses: Iterable[Loss]) -> "Timeline":
        """Return the timeline with further losses of its origin."""
        return replace(self, origin=replace(self.origin, losses=(*self.origin.losses, *losses)))

    @property
    def operation_count(self) -> int:
        """The number of rows of `operations`."""
        return len(self.kernels) + len(self.memops) + len(self.graphs)

    def operations(self) -> Operations:
        """Return all work on the GPU as one table: kernels, memory operations, graphs."""
        return self.columns_of_operations(Operations)

    def columns_of_operations(self, kind: type[TableT]) -> TableT:
        """Return the rows of `operations` with only the columns of ``kind``, which takes less memory."""
        return concatenate(kind, (self.kernels, self.memops, self.graphs))

    def of_operations(self, *names: str) -> Iterator[Ints]:
        """Yield columns of `operations`, each of shape (operation_count,), one at a time to save memory."""
        for name in names:
            yield np.concatenate([getattr(t, name) for t in (self.kernels, self.memops, self.graphs)])


def has_plausible_times(start: Ints, end: Ints) -> Mask:
    """Return a mask of the rows that have possible stamps and do not end before they start, shape (n,)."""
    low = min(int(column.min(initial=0)) for column in (start, end))
    high = max(int(column.max(initial=0)) for column in (start, end))
    forward = end >= start
    if low > -LATEST and high < LATEST and high - low < LONGEST:
        return forward
    # The difference overflows only if a stamp is impossible.
    return forward & plausible_stamps(start) & plausible_stamps(end) & (end - start < LONGEST)


def plausible_stamps(stamps: Ints) -> Mask:
    """Return a mask of the possible time stamps, shape (n,)."""
    return (stamps > -LATEST) & (stamps < LATEST)


def concatenate(kind: type[TableT], tables: Iterable[Table]) -> TableT:
    """Join tables row by row, keeping only the columns of ``kind``; without tables it has no rows."""
    parts = list(tables) or [kind.empty()]
    return kind(*(np.concatenate([getattr(t, name) for t in parts]) for name in kind.__match_args__))
