"""The tracks of one rank in a timeline: its ranges, GPU streams, communication and API calls.

A track is a row of slices. Those of a thread are nested; work of one stream that overlaps has several levels
too. Communication has tracks of its own, so that it can be seen beside the compute that it should overlap.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.steps.gpu_projection import ranges_on_gpu
from hpcprof.analysis.steps.streams import NO_CALL, launch_calls
from hpcprof.common.units import format_bytes
from hpcprof.node.telemetry import METRICS
from hpcprof.profiles.columns.unique import name_matches, numbered_rows, rows_by_key
from hpcprof.profiles.readers.telemetry import NodeTelemetry, growth
from hpcprof.profiles.timeline import (
    NO_NAME,
    Category,
    Collectives,
    Floats,
    GpuSpans,
    GpuWork,
    Ints,
    MpiOperations,
    NamedSpans,
    Operators,
    Ranges,
    Table,
    Timeline,
    concatenate,
)
from hpcprof.profiles.waiting_calls import host_waits
from hpcprof.report.formatting import thread_names
from hpcprof.report.trace_arrows import mpi_requests, on_one_thread
from hpcprof.results.store.run_communication import Carrier, RankCommunication

NONE = -1
"""Stands for no launch, no collective and no name."""

ON_GPU = "Ranges on the GPU"
"""The track of ranges where their work is on the GPU."""

MPI_CALLS = "MPI calls"
"""The tracks of the calls of MPI, one for each thread."""

_MAX_LEVELS = 64
"""A track has no more levels; whatever overlaps even more is drawn on the last one."""


class TrackKind(Enum):
    """The kind of a track, in the order of the tracks of a rank."""

    RANGES = "ranges"
    COMMUNICATION = "communication"
    STREAM = "stream"
    CALLS = "calls"
    NODE = "node"

    @property
    def place(self) -> int:
        """The place of tracks of this kind among those of a rank."""
        return list(TrackKind).index(self)


class SliceKind(IntEnum):
    """The kind of a slice, which decides its colour.

    The kind of merged slices is `MERGED` plus the kind that takes most of their time.
    """

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    RANGE = 3
    CALL = 4
    WAIT = 5
    MPI = 6
    MPI_REQUEST = 7
    SAMPLE = 8
    MERGED = 16


@dataclass(frozen=True)
class TrackSlices(Table):
    """The slices of a track by start; of those that start together the longer one comes first.

    ``start`` and ``end`` are on the clock of the profile, ``depth`` counts from 0 at the top, ``name`` is one
    of the timeline's strings or `NONE`, and ``kind`` holds `SliceKind` values. A call and the work that it
    launched share the number ``launch``, which is unique in the rank, or have `NONE`. ``info`` is one of
    `RankTracks.infos` or `NONE`.
    """

    start: Ints
    end: Ints
    depth: Ints
    name: Ints
    kind: Ints
    launch: Ints
    info: Ints


@dataclass(frozen=True)
class Track:
    """One row of a timeline; ``label`` says what it shows, such as ``GPU work, stream 7``."""

    kind: TrackKind
    label: str
    slices: TrackSlices


@dataclass(frozen=True)
class RankTracks:
    """The tracks of a rank, and the texts about single slices to which ``TrackSlices.info`` points."""

    tracks: list[Track]
    infos: list[str]


def rank_tracks(timeline: Timeline, projects: bool = False) -> RankTracks:
    """Return the tracks of a rank: ranges by thread, communication and other work by stream, calls by thread.

    The timeline is all of a profile, or what of it overlaps a window. If it ``projects``, ranges are also
    drawn where their work is on the GPU; a window may lack some of that work.
    """
    shapes, infos = _infos(timeline)
    tracks = [
        *_range_tracks(timeline),
        *_mpi_tracks(timeline),
        *(_projected_tracks(timeline) if projects else ()),
        *_gpu_tracks(timeline, shapes),
        *_call_tracks(timeline),
    ]
    return RankTracks(_in_order(tracks), infos)


def joined(parts: Sequence[RankTracks]) -> RankTracks:
    """Join what a rank did in several windows; an event that lies in more than one of them counts once.

    All parts are of timelines with the same strings.
    """
    if len(parts) == 1:
        return parts[0]
    slices: dict[tuple[TrackKind, str], list[TrackSlices]] = {}
    infos: list[str] = []
    launches = 0
    for part in parts:
        for track in part.tracks:
            shifted = track.slices
            moved = replace(
                shifted,
                launch=np.where(shifted.launch == NONE, NONE, shifted.launch + launches),
                info=np.where(shifted.info == NONE, NONE, shifted.info + len(infos)),
            )
            slices.setdefault((track.kind, track.label), []).append(moved)
        infos += part.infos
        launches += max((int(track.slices.launch.max()) + 1 for track in part.tracks), default=0)
    tracks = [Track(*key, _distinct_slices(concatenate(TrackSlices, group))) for key, group in slices.items()]
    return RankTracks(_in_order(tracks), infos)


def _distinct_slices(slices: TrackSlices) -> TrackSlices:
    """Return slices without those that have the same extent and name as an earlier one of another window."""
    rows = np.column_stack((slices.start, slices.end, slices.name, slices.depth))
    _, first = np.unique(rows, axis=0, return_index=True)
    unique_slices = slices.take(np.sort(first))
    unique_slices = replace(unique_slices, depth=_depth(unique_slices.start, unique_slices.end))
    return unique_slices.take(_by_start(unique_slices.start, unique_slices.end))


def _in_order(tracks: Sequence[Track]) -> list[Track]:
    return sorted(tracks, key=lambda track: track.kind.place)


def merge_short(slices: TrackSlices, shortest: int | Ints) -> TrackSlices:
    """Merge neighbours on a level that are all shorter, and closer together, than a length in ns.

    The length may be another one for each slice, shape (n,).

    A merged slice runs from the start of its first to the end of its last one. Its kind is `MERGED` plus the
    one that takes most of the time, its name is that of the first one, and it has no launch.
    """
    order = np.lexsort((slices.start, slices.depth))
    part = slices.take(order)
    limit = np.broadcast_to(shortest, part.start.shape)[order]
    short = part.end - part.start < limit
    apart = part.start[1:] - part.end[:-1] >= limit[1:]
    begins = np.append(True, ~short[1:] | ~short[:-1] | apart | (np.diff(part.depth) != 0))[: len(part)]
    first = np.flatnonzero(begins)
    count = np.diff(np.append(first, len(part)))
    last = first + count - 1
    merged = part.take(first)
    several = count > 1
    merged = replace(
        merged,
        end=np.where(several, part.end[last], merged.end),
        kind=np.where(several, int(SliceKind.MERGED) | _prevailing_kinds(part, first, count), merged.kind),
        launch=np.where(several, NONE, merged.launch),
        info=np.where(several, NONE, merged.info),
    )
    return merged.take(_by_start(merged.start, merged.end))


def _prevailing_kinds(slices: TrackSlices, first: Ints, count: Ints) -> Ints:
    """Return the kind that takes most time in each group of ``count`` slices from ``first`` on."""
    group = np.repeat(np.arange(len(first)), count)
    time = np.zeros((len(first), int(SliceKind.MERGED)), np.int64)
    # Slices of a damaged profile may take no time.
    np.add.at(time, (group, slices.kind % int(SliceKind.MERGED)), np.maximum(slices.end - slices.start, 1))
    kinds: Ints = time.argmax(axis=1)
    return kinds


def _range_tracks(timeline: Timeline) -> Iterator[Track]:
    """Yield the ranges, operators and modules of each thread, then those that belong to no single thread."""
    ranges = timeline.ranges
    on_thread = on_one_thread(ranges)
    tables: list[Ranges | Operators] = [ranges.take(on_thread), timeline.operators, timeline.modules]
    spans = concatenate(NamedSpans, tables)
    for label, rows in _threads(spans.process, spans.thread):
        yield _track(TrackKind.RANGES, f"Ranges, {label}", spans.take(rows), SliceKind.RANGE)
    free = ranges.take(~on_thread)
    if len(free):
        yield _track(TrackKind.RANGES, "Ranges across threads", free, SliceKind.RANGE)
    host = timeline.host_collectives
    if len(host):
        yield _track(TrackKind.COMMUNICATION, "Communication on the host", host, SliceKind.COMMUNICATION)


def _mpi_tracks(timeline: Timeline) -> Iterator[Track]:
    """Yield the calls of MPI by thread, and the requests from their begin to their completion."""
    calls, pending = timeline.mpi_calls, mpi_requests(timeline)
    for label, rows in _threads(calls.process, calls.thread):
        yield _track(TrackKind.COMMUNICATION, f"{MPI_CALLS}, {label}", calls.take(rows), SliceKind.MPI)
    if len(pending):
        yield _track(TrackKind.COMMUNICATION, "MPI requests", pending, SliceKind.MPI_REQUEST)


def _projected_tracks(timeline: Timeline) -> Iterator[Track]:
    """Yield the ranges where the work is on the GPU that any thread launched in them."""
    projected = ranges_on_gpu(timeline)
    if len(projected):
        yield _track(TrackKind.RANGES, ON_GPU, projected, SliceKind.RANGE)


def _call_tracks(timeline: Timeline) -> Iterator[Track]:
    calls = timeline.calls
    kind = np.where(name_matches(timeline, calls.name, host_waits), int(SliceKind.WAIT), int(SliceKind.CALL))
    for label, rows in _threads(calls.process, calls.thread):
        part = concatenate(NamedSpans, [calls.take(rows)])
        yield _track(TrackKind.CALLS, f"API calls, {label}", part, kind[rows], launch=rows)


def _gpu_tracks(timeline: Timeline, shapes: Ints) -> Iterator[Track]:
    """Yield two tracks for each stream that has both: its communication and its other work."""
    work = timeline.columns_of_operations(GpuWork)
    # The values of `Category` are those of the first slices.
    launch = launch_calls(timeline)
    launch = np.where(launch == NO_CALL, NONE, launch)
    communicates = work.category == Category.COMM
    several = len(np.unique(work.device)) > 1
    for (device, stream, comm), rows in rows_by_key(work.device, work.stream, communicates.astype(np.int64)):
        place = f"GPU {device} stream {stream}" if several else f"stream {stream}"
        kind, label = (
            (TrackKind.COMMUNICATION, f"Communication, {place}")
            if comm
            else (TrackKind.STREAM, f"GPU work, {place}")
        )
        yield _track(
            kind, label, work.take(rows), work.category[rows], launch=launch[rows], info=shapes[rows]
        )


def _track(
    kind: TrackKind,
    label: str,
    table: GpuSpans | NamedSpans | Collectives | MpiOperations,
    slice_kind: SliceKind | Ints,
    launch: Ints | None = None,
    info: Ints | None = None,
) -> Track:
    none = np.full(len(table), NONE)
    name = table.operation if isinstance(table, (Collectives, MpiOperations)) else table.name
    end = np.maximum(table.end, table.start)  # A damaged profile may have events that end before they start.
    slices = TrackSlices(
        start=table.start,
        end=end,
        depth=_depth(table.start, end),
        name=np.where(name == NO_NAME, NONE, name),
        kind=np.broadcast_to(np.asarray(slice_kind, np.int64), none.shape),
        launch=none if launch is None else launch,
        info=none if info is None else info,
    )
    return Track(kind, label, slices.take(_by_start(slices.start, slices.end)))


def _threads(process: Ints, thread: Ints) -> list[tuple[str, Ints]]:
    """Return the rows of each thread with its label, which names the process if there are several."""
    parts = rows_by_key(process, thread)
    several = len({key[0] for key, _ in parts}) > 1
    names = thread_names(key[1] for key, _ in parts)
    return [(f"process {key[0]} {names[key[1]]}" if several else names[key[1]], rows) for key, rows in parts]


def _by_start(start: Ints, end: Ints) -> NDArray[np.intp]:
    return np.lexsort((-end, start))


def _depth(start: Ints, end: Ints) -> Ints:
    """Return a level for each slice such that those of a level do not overlap; nested ones go down.

    Each pass keeps what begins after all earlier ones have ended; the others go to the next level.
    """
    depth = np.zeros(len(start), np.int64)
    rows = _by_start(start, end)
    for _ in range(_MAX_LEVELS - 1):
        reach = np.maximum.accumulate(end[rows])
        rows = rows[1:][start[rows][1:] < reach[:-1]]
        if not len(rows):
            break
        depth[rows] += 1
    return depth


def _infos(timeline: Timeline) -> tuple[Ints, list[str]]:
    """Return the texts on the work of the GPU, and for each operation the number of its text."""
    kernels, memory = timeline.kernels, timeline.memops
    launches, kernel_shape = numbered_rows(*kernels.grid.T, *kernels.block.T)
    texts = [f"grid ({x}, {y}, {z}), block ({i}, {j}, {k})" for x, y, z, i, j, k in launches.tolist()]
    sizes, size_number = np.unique(memory.bytes, return_inverse=True)
    texts += [f"{size:,} bytes ({format_bytes(size)})" for size in sizes.tolist()]
    memory_size = np.where(memory.bytes < 0, NONE, size_number.reshape(-1) + len(launches))
    return np.concatenate((kernel_shape, memory_size, np.full(len(timeline.graphs), NONE))), texts


_CARRIER_KINDS = {
    Carrier.WORK: SliceKind.COMMUNICATION,
    Carrier.MPI_CALL: SliceKind.MPI,
    Carrier.MPI_REQUEST: SliceKind.MPI_REQUEST,
}
"""The kind of the slices that show what carries out communication."""


class SliceLinks(msgspec.Struct, frozen=True):
    """Links of slices to those of other ranks."""

    collective: Ints
    """For each slice the number of its collective, or `NONE`."""
    message_rows: list[int]
    messages: list[int]
    """The slices that carry out messages, once for each, and the numbers of these from 1: below 0 for one
    that is received.
    """
    texts: dict[int, str]
    """The work that a slice carries out, by its row."""


def links_of(slices: TrackSlices, communication: RankCommunication) -> SliceLinks:
    """Find the slices of a track that carry out communication; both have their starts on one clock."""
    collective = np.full(len(slices), NONE)
    slice_links = SliceLinks(collective, [], [], {})
    place: dict[tuple[int, int], int] = {}
    is_sent = np.zeros(len(communication.start), bool)
    for carrier, kind in _CARRIER_KINDS.items():
        rows = np.flatnonzero(slices.kind == kind)
        place |= {
            (int(carrier), start): row
            for row, start in zip(rows.tolist(), slices.start[rows].tolist(), strict=True)
        }
        is_sent |= (communication.carrier == carrier) & np.isin(communication.start, slices.start[rows])
    for row_number in np.flatnonzero(is_sent).tolist():
        row = place[int(communication.carrier[row_number]), int(communication.start[row_number])]
        number = int(communication.number[row_number])
        if direction := int(communication.way[row_number]):
            slice_links.message_rows.append(row)
            slice_links.messages.append(direction * (number + 1))
        else:
            collective[row] = number
        text = communication.texts[row_number]
        slice_links.texts[row] = f"{slice_links.texts[row]}; {text}" if row in slice_links.texts else text
    return slice_links


_MAX_SAMPLES = 2000
"""Maximum number of samples that a track shows; beyond it, samples are skipped evenly."""


class _Metric(msgspec.Struct, frozen=True):
    """A metric with a track; if it is `seldom` above 0, a track without such a value is left out."""

    name: str
    label: str
    unit: str
    factor: float = 1.0
    seldom: bool = False


_GPU_METRICS = (_Metric("sm_mhz", "GPU clock", "MHz"), _Metric("power_w", "GPU power", "W"))
_RANK_METRICS = (_Metric("cpu_s", "CPU", "cores"), _Metric("blocked_pct", "File waits", "%", seldom=True))
_NODE_METRICS = (
    _Metric("busy_s", "Node CPU", "cores"),
    _Metric("memory_pressure_s", "Memory waits", "%", 100.0, seldom=True),
)


class NodeTrack(msgspec.Struct, frozen=True):
    """The samples of a metric: the times that they cover, in seconds since 1970, and their values."""

    label: str
    unit: str
    begin: Floats
    end: Floats
    values: Floats

    def texts(self) -> list[str]:
        """Return each value with its unit, in three digits or more."""
        return [
            f"{value:,.0f} {self.unit}" if value >= 100 else f"{value:.3g} {self.unit}"
            for value in self.values.tolist()
        ]


def node_tracks(
    nodes: Sequence[NodeTelemetry], ranks: Sequence[int], begin: float, end: float
) -> dict[int, list[NodeTrack]]:
    """Return the tracks of each rank between two moments; the first rank of a node also has the node's.

    A slice is the time since the sample before, as high as its value is beside the highest one in sight.
    """
    tracks = {}
    for node in nodes:
        for place, rank in enumerate(number for number in ranks if number in node.ranks):
            gpus = [f"gpu{gpu}" for gpu in range(len(node.gpus)) if node.rank_of_gpu(gpu) == rank]
            devices = [*((gpu, _GPU_METRICS) for gpu in gpus), (f"rank{rank}", _RANK_METRICS)]
            devices += [("node", _NODE_METRICS)] if place == 0 else []
            tracks[rank] = [
                track
                for device, metrics in devices
                for metric in metrics
                for track in _tracks(node, device, metric, begin, end)
            ]
    return tracks


def _tracks(
    node: NodeTelemetry, device: str, metric: _Metric, begin: float, end: float
) -> Iterator[NodeTrack]:
    series = node.series.get((device, metric.name))
    if series is None or len(series.times) < 2:
        return
    if METRICS[metric.name][0] == "counter":
        starts, ends, amounts = growth(series)
        values = amounts / (ends - starts)
    else:
        starts, ends, values = series.times[:-1], series.times[1:], series.values[1:]
    inside = np.flatnonzero((ends > begin) & (starts < end))
    inside = inside[:: -(-len(inside) // _MAX_SAMPLES) or 1]
    samples = metric.factor * values[inside]
    if len(inside) and not (metric.seldom and not samples.any()):
        yield NodeTrack(metric.label, metric.unit, starts[inside], ends[inside], samples)
