"""Timelines as JSON of the Trace Event Format, which ui.perfetto.dev and chrome://tracing open.

Each rank is a process. Its tracks are its GPU streams, the annotations on the GPU, and its threads, on which
ranges and operators enclose the API calls made inside them, and arrows lead from calls to the work that they
launch. Categories and arguments have the names of PyTorch's traces, so that programs which read those,
hpcprof included, also read these. New are ``cuda_graph``, the launch of a graph that was traced as a whole,
and ``mpi``: calls of MPI, its requests from their begin to their completion, and in the trace of all ranks
arrows from sends to receives. `hpcprof.report.perfetto` writes all ranks on aligned clocks in Perfetto's own
format.

Timestamps are microseconds with three decimals, that is whole nanoseconds, counted from the first event. A
program that reads them as doubles keeps every nanosecond of 13 days. ``baseTimeNanoseconds`` is the UTC time
of their zero.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import numpy as np

from hpcprof.common.atomic import replacing
from hpcprof.common.errors import DamagedInput, HpcprofError
from hpcprof.common.units import named_ranks
from hpcprof.profiles.columns.unique import rows_by_key
from hpcprof.profiles.event_columns import timeline_tables
from hpcprof.profiles.readers.kineto import MERGED
from hpcprof.profiles.timeline import (
    HOST,
    NO_BYTES,
    NO_CORRELATION,
    UNKNOWN_RANKS,
    Allocations,
    GpuMarks,
    GpuSpans,
    Ints,
    Kernels,
    MemoryOperations,
    MpiOperations,
    NamedSpans,
    Operations,
    Ranges,
    Timeline,
)
from hpcprof.report.formatting import thread_names
from hpcprof.report.trace_arrows import arrows, message_arrows, mpi_requests, on_one_thread
from hpcprof.results.collect.timelines import Timelines
from hpcprof.results.store.run_communication import RankCommunication, RunCommunication

# nsys numbers threads with 24 bits; the tracks above are not threads.
_FIRST_TRACK = 1 << 24
_GZIP_LEVEL = 5
_BATCH_EVENTS = 4096
_MARK_SUFFIXES = {"cuda_sync": " waits", "gpu_user_annotation": " annotations"}


class Exported(msgspec.Struct):
    """The files that an export wrote; ``notes`` are sentences on what was left out."""

    written: list[Path] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


def export_timelines(
    timelines: Timelines,
    folder: Path,
    progress: Callable[[Path], None],
    communication: RunCommunication | None = None,
) -> Exported:
    """Write a trace per rank and, where there are several ranks, one of all ranks on a common clock.

    Timelines that are damaged are left out, with a note. The folder is made where there is something to
    write. The clocks of ``communication`` put the ranks on a common one; without those of all ranks, the UTC
    times in the profiles place them.
    """
    exported = Exported(notes=list(timelines.skipped))
    zeros: dict[int, _Zero] = {}
    try:
        for rank in timelines.paths:
            path = folder / f"rank{rank:05}.trace.json.gz"
            progress(path)
            try:
                timeline = timelines.read(rank)
            except DamagedInput as error:
                exported.notes.append(str(error))
                continue
            folder.mkdir(parents=True, exist_ok=True)
            zeros[rank] = zero = _Zero(first_event(timeline), timeline.origin.start_utc_ns)
            properties = _properties(rank, timeline) | _base(zero.utc)
            with _trace(path, properties) as write:
                write(_events(timeline, rank, zero.first))
            exported.written.append(path)
        if len(zeros) > 1:
            progress(folder / MERGED)
            if communication is not None and zeros.keys() <= communication.clocks.clocks.keys():
                _export_aligned(timelines, zeros, folder / MERGED, communication, exported)
            else:
                _export_by_utc(timelines, zeros, folder / MERGED, exported)
            exported.written.append(folder / MERGED)
    except OSError as error:
        raise HpcprofError(f"cannot write to {folder}: {error.strerror}.") from None
    return exported


class _Zero(msgspec.Struct, frozen=True):
    """The first event of a rank on the clock of its profile, and the UTC time of that clock's zero."""

    first: int
    start_utc_ns: int | None

    @property
    def utc(self) -> int | None:
        return None if self.start_utc_ns is None else self.start_utc_ns + self.first


def _export_aligned(
    timelines: Timelines,
    zeros: Mapping[int, _Zero],
    path: Path,
    communication: RunCommunication,
    exported: Exported,
) -> None:
    """Write all ranks on the clock that they share."""
    clocks = communication.clocks
    base = min(clocks.stamp_on_common(rank, zero.first) for rank, zero in zeros.items())
    utc = None if clocks.start_utc_ns is None else clocks.start_utc_ns + base
    with _trace(path, _base(utc)) as write:
        for rank in zeros:
            messages = communication.of_rank(rank) if communication.mpi else None
            if messages is not None:
                messages = replace(messages, start=clocks.to_common(rank, messages.start))
            write(_events(clocks.on_common(rank, timelines.read(rank)), rank, base, messages))
    exported.notes += [f"{path.name}: {note}" for note in clocks.notes()]


def _export_by_utc(timelines: Timelines, zeros: Mapping[int, _Zero], path: Path, exported: Exported) -> None:
    stamps = [zero.utc for zero in zeros.values() if zero.utc is not None]
    base = min(stamps) if len(stamps) == len(zeros) else None
    if base is None:
        unknown = [rank for rank, zero in zeros.items() if zero.utc is None]
        exported.notes.append(
            f"{path.name}: the profiles of {named_ranks(unknown)} do not record when they started, so every "
            "rank starts at 0 and times of different ranks cannot be compared."
        )
    with _trace(path, _base(base)) as write:
        for rank, zero in zeros.items():
            shift = 0 if base is None or zero.utc is None else zero.utc - base
            write(_events(timelines.read(rank), rank, zero.first - shift))


@contextmanager
def compressed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that is compressed by gzip; it appears once it is complete.

    Without a time and a file name, the same content always gives the same bytes.
    """
    with (
        replacing(path) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0) as packed,
    ):
        yield cast("IO[bytes]", packed)


@contextmanager
def _trace(path: Path, properties: Mapping[str, object]) -> Iterator[Callable[[Iterable[str]], None]]:
    """Open a trace and yield a function that adds events to it."""
    with compressed(path) as packed:
        packed.write(json.dumps({"schemaVersion": 1, "displayTimeUnit": "ns", **properties})[:-1].encode())
        packed.write(b', "traceEvents": [')
        separator = "\n"

        def write(events: Iterable[str]) -> None:
            nonlocal separator
            remaining = iter(events)
            while batch := list(islice(remaining, _BATCH_EVENTS)):
                packed.write((separator + ",\n".join(batch)).encode())
                separator = ",\n"

        yield write
        packed.write(b"\n]}\n")


def _properties(rank: int, timeline: Timeline) -> dict[str, object]:
    world: dict[str, Any] = {"rank": rank}
    if timeline.origin.world_size is not None:
        world["world_size"] = timeline.origin.world_size
    world |= _group_of_host(timeline)
    gpus = [{"id": gpu.device, "name": gpu.name} for gpu in timeline.origin.gpus]
    return {"distributedInfo": world, "deviceProperties": gpus}


def _group_of_host(timeline: Timeline) -> dict[str, object]:
    """Return the process group of the collectives of the host, if they all have the same."""
    table = timeline.host_collectives
    groups = {*zip(timeline.names(table.communicator), table.ranks.tolist(), strict=True)}
    if len(groups) != 1 or (None, UNKNOWN_RANKS) in groups:
        return {}
    ((name, ranks),) = groups
    return {"pg_count": 1, "pg_config": [{"pg_name": name, "backend_config": "gloo", "pg_size": ranks}]}


def _base(utc: int | None) -> dict[str, object]:
    return {} if utc is None else {"baseTimeNanoseconds": utc}


def first_event(timeline: Timeline) -> int:
    """Return the begin of the first event of a timeline in ns, on its own clock; 0 without events."""
    tables = [getattr(timeline, name) for name in timeline_tables()]
    stamps = [table.time if isinstance(table, Allocations) else table.start for table in tables]
    return min((int(column.min()) for column in stamps if len(column)), default=0)


def _events(
    timeline: Timeline, rank: int, zero: int, messages: RankCommunication | None = None
) -> Iterator[str]:
    """Yield the events of a rank, one JSON object each, with times relative to ``zero``.

    ``messages`` are those of MPI that have another end in the trace, with starts on its clock.
    """
    # The index -1 means no name.
    names = [json.dumps(name) for name in [*timeline.strings.tolist(), "(no name)"]]
    tracks = _Tracks(rank)
    kernels, memory, graphs = timeline.kernels, timeline.memops, timeline.graphs
    # Kernels and copies of one stream run one after another, so they share its track.
    track = tracks.of_streams(timeline.operations())
    yield from _complete("kernel", kernels, names, rank, zero, track, _kernel_arguments(kernels))
    memory_tracks, graph_tracks = np.split(track[len(kernels) :], [len(memory)])
    yield from _complete("gpu_memcpy", memory, names, rank, zero, memory_tracks, _memory_arguments(memory))
    yield from _complete("cuda_graph", graphs, names, rank, zero, graph_tracks, _arguments(graphs))
    waits = timeline.gpu_marks.correlation != NO_CORRELATION
    for category, rows in (("cuda_sync", waits), ("gpu_user_annotation", ~waits)):
        marks = timeline.gpu_marks.take(rows)
        mark_tracks = tracks.of_streams(marks, _MARK_SUFFIXES[category])
        yield from _complete(category, marks, names, rank, zero, mark_tracks, _arguments(marks))
    calls, ranges = timeline.calls, timeline.ranges
    call_arguments = (
        f',"args":{{"correlation":{number}}}' if number != NO_CORRELATION else ""
        for number in calls.correlation.tolist()
    )
    yield from _complete("cuda_runtime", calls, names, rank, zero, calls.thread, call_arguments)
    operators = timeline.operators
    yield from _complete("cpu_op", operators, names, rank, zero, operators.thread, _inputs(timeline))
    called = timeline.modules
    yield from _complete("python_function", called, names, rank, zero, called.thread)
    on_thread = on_one_thread(ranges)
    pushed, free = ranges.take(on_thread), ranges.take(~on_thread)
    yield from _complete("user_annotation", pushed, names, rank, zero, pushed.thread)
    free_tracks = tracks.of_spans("ranges across threads", free)
    yield from _complete("user_annotation", free, names, rank, zero, free_tracks, _messages(timeline, free))
    mpi, requests = timeline.mpi_calls, mpi_requests(timeline)
    yield from _complete("mpi", mpi, names, rank, zero, mpi.thread)
    request_tracks = tracks.of_spans("MPI requests", requests)
    yield from _complete("mpi", requests, names, rank, zero, request_tracks)
    yield from _allocation_events(timeline.allocations, rank, zero, tracks)
    yield from arrows(timeline, rank, zero, track)
    if messages is not None:
        yield from message_arrows(messages, rank, zero, mpi, requests, request_tracks)
    threads = (calls.thread, pushed.thread, operators.thread, mpi.thread)
    yield from tracks.metadata(np.unique(np.concatenate(threads)))


def _complete(
    category: str,
    table: GpuSpans | NamedSpans | MpiOperations,
    names: list[str],
    rank: int,
    zero: int,
    track: Ints,
    arguments: Iterable[str] = repeat(""),
) -> Iterator[str]:
    """Yield complete events; one that ends before it starts gets a duration of 0."""
    start = table.start - zero
    length = np.maximum(table.end - table.start, 0)
    name = table.operation if isinstance(table, MpiOperations) else table.name
    columns = (name.tolist(), track.tolist(), start.tolist(), length.tolist(), arguments)
    for number, tid, ts, dur, args in zip(*columns, strict=False):
        yield (
            f'{{"ph":"X","cat":"{category}","name":{names[number]},"pid":{rank},"tid":{tid},'
            f'"ts":{ts // 1000}.{ts % 1000:03d},"dur":{dur // 1000}.{dur % 1000:03d}{args}}}'
        )


def _kernel_arguments(kernels: Kernels) -> Iterator[str]:
    columns = (kernels.grid.tolist(), kernels.block.tolist(), _operation_arguments(kernels))
    for grid, block, common in zip(*columns, strict=True):
        yield f',"args":{{{common},"grid":{grid},"block":{block}}}'


def _memory_arguments(memory: MemoryOperations) -> Iterator[str]:
    for size, common in zip(memory.bytes.tolist(), _operation_arguments(memory), strict=True):
        yield f',"args":{{{common},"bytes":{size}}}' if size >= 0 else f',"args":{{{common}}}'


def _arguments(table: Operations | GpuMarks) -> Iterator[str]:
    for common in _operation_arguments(table):
        yield f',"args":{{{common}}}'


def _operation_arguments(table: Operations | GpuMarks) -> Iterator[str]:
    columns = (table.device.tolist(), table.stream.tolist(), table.correlation.tolist())
    for device, stream, correlation in zip(*columns, strict=True):
        suffix = f',"correlation":{correlation}' if correlation != NO_CORRELATION else ""
        yield f'"device":{device},"stream":{stream}{suffix}'


def _inputs(timeline: Timeline) -> Iterator[str]:
    """Yield the shapes and types of the inputs of each operator, which are JSON already."""
    table, texts = timeline.operators, [*timeline.strings.tolist(), None]
    columns = (table.dims.tolist(), table.types.tolist(), table.values.tolist())
    for dims, types, values in zip(*columns, strict=True):
        inputs = {"Input Dims": texts[dims], "Input type": texts[types], "Concrete Inputs": texts[values]}
        written = ",".join(f'"{name}":{text}' for name, text in inputs.items() if text is not None)
        yield f',"args":{{{written}}}' if written else ""


def _messages(timeline: Timeline, ranges: Ranges) -> Iterator[str]:
    """Yield the inputs of the ranges that are collectives of the host: as many bytes as they have."""
    table = timeline.host_collectives
    alltoall = np.array([name == "AlltoAll" for name in timeline.names(table.operation)], bool)
    size = np.where(alltoall & (table.ranks > 0), table.bytes * table.ranks, table.bytes)
    places = zip(table.thread.tolist(), table.start.tolist(), table.end.tolist(), strict=True)
    sizes = dict(zip(places, size.tolist(), strict=True))
    for place in zip(ranges.thread.tolist(), ranges.start.tolist(), ranges.end.tolist(), strict=True):
        length = sizes.get(place, NO_BYTES)
        yield f',"args":{{"Input Dims":[[{length}]],"Input type":["unsigned char"]}}' if length > 0 else ""


def _allocation_events(table: Allocations, rank: int, zero: int, tracks: "_Tracks") -> Iterator[str]:
    """Yield the allocations as instant events on a track of their own."""
    track = tracks.of_allocator(table)
    columns = (table.time - zero, table.device, table.bytes, table.allocated, table.reserved)
    for ts, device, size, allocated, reserved in zip(*(column.tolist() for column in columns), strict=True):
        # PyTorch's numbers of device types (c10::DeviceType).
        kind = 0 if device == HOST else 1
        yield (
            f'{{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]","pid":{rank},"tid":{track},'
            f'"ts":{ts // 1000}.{ts % 1000:03d},"args":{{"Bytes":{size},"Total Allocated":{allocated},'
            f'"Total Reserved":{reserved},"Device Id":{device},"Device Type":{kind}}}}}'
        )


class _Tracks:
    """The tracks of a rank other than its threads, numbered as they are needed."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._names: list[str] = []

    def of_streams(self, operations: Operations | GpuMarks, suffix: str = "") -> Ints:
        """Return the track of each operation: that of its stream, or an extra one where two overlap.

        ``suffix`` is appended to the name of the stream on tracks that do not show its work.
        """
        track = np.empty(len(operations), np.int64)
        for (device, stream), rows in rows_by_key(operations.device, operations.stream):
            lanes = lane(operations.start[rows], operations.end[rows])
            track[rows] = self._new(f"GPU {device} stream {stream}{suffix}", lanes)
        return track

    def of_spans(self, name: str, spans: Ranges | MpiOperations) -> Ints:
        """Return a track for each span that does not belong to one thread."""
        return self._new(name, lane(spans.start, spans.end))

    def of_allocator(self, allocations: Allocations) -> int:
        """Return the track of the allocator, which gets a name only if it has events."""
        lanes = np.zeros(min(1, len(allocations)), np.int64)
        return _FIRST_TRACK + len(self._names) if not len(lanes) else int(self._new("allocator", lanes)[0])

    def _new(self, name: str, lanes: Ints) -> Ints:
        first = _FIRST_TRACK + len(self._names)
        count = int(lanes.max(initial=-1)) + 1
        self._names += [f"{name} ({i + 1})" if i else name for i in range(count)]
        return first + lanes

    def metadata(self, threads: Ints) -> Iterator[str]:
        """Yield the events that name the rank and its tracks, threads first and then streams."""
        yield _track_name("process_name", self._rank, 0, {"name": f"rank {self._rank}"})
        yield _track_name("process_sort_index", self._rank, 0, {"sort_index": self._rank})
        tracks = [*thread_names(threads.tolist()).items()]
        tracks += [(_FIRST_TRACK + i, name) for i, name in enumerate(self._names)]
        for position, (tid, name) in enumerate(tracks):
            yield _track_name("thread_name", self._rank, tid, {"name": name})
            yield _track_name("thread_sort_index", self._rank, tid, {"sort_index": position})


def _track_name(kind: str, rank: int, tid: int, values: dict[str, object]) -> str:
    return json.dumps({"ph": "M", "name": kind, "pid": rank, "tid": tid, "args": values})


def lane(start: Ints, end: Ints) -> Ints:
    """Return a lane for each interval, such that no two intervals of a lane overlap; most are in lane 0.

    Each pass keeps the intervals that start after all earlier ones of the pass have ended, and leaves the
    others to the next lane. There is one pass per lane, each O(n log n).
    """
    result = np.zeros(len(start), np.int64)
    rows = np.lexsort((end, start))
    while True:
        reach = np.maximum.accumulate(end[rows])
        late = np.concatenate(([False], start[rows][1:] < reach[:-1])) if len(rows) else np.zeros(0, bool)
        rows = rows[late]
        if not len(rows):
            return result
        result[rows] += 1
