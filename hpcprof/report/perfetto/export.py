"""Writes the timelines of chosen ranks and steps of a run as one trace.

Each rank is a process with tracks, arrows and counters, and a sequence of packets with texts of its own. Time
stamps are nanoseconds since 1970 if the profiles record when they started.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from hpcprof.analysis.steps.gpu_projection import ranges_on_gpu
from hpcprof.common.errors import HpcprofError
from hpcprof.common.units import counted
from hpcprof.profiles.columns.unique import numbered_rows, rows_by_key
from hpcprof.profiles.timeline import (
    HOST,
    NO_CORRELATION,
    Category,
    GpuSpans,
    Ints,
    Mask,
    NamedSpans,
    Ranges,
    Timeline,
)
from hpcprof.report.formatting import thread_names
from hpcprof.report.perfetto.encoding import (
    Encoded,
    fixed64,
    gathered,
    join,
    nested,
    nothing,
    stacked,
    texts,
    varints,
)
from hpcprof.report.trace_arrows import gradients, launches, mpi_requests, on_one_thread
from hpcprof.report.trace_events import Exported, compressed, first_event
from hpcprof.results.ask.windows import RankSteps, RunWindows
from hpcprof.results.collect.over_ranks import run_communication
from hpcprof.results.store.run_communication import Carrier, RankCommunication
from hpcprof.results.store.store import Store
from hpcprof.runs.directory import Run

CATEGORIES = (
    *("step", "kernel", "memory", "graph", "wait", "annotation", "api", "operator", "module", "range"),
    *("projection", "mpi", "mpi request"),
)
"""The categories of slices."""

NOTES = ("grid", "block", "bytes", "shapes", "types")
"""The annotations of slices: details beyond their names."""

Shift = Callable[[Ints], Ints]
"""Converts time stamps of a rank to the clock of the trace."""

_Rows = GpuSpans | NamedSpans


class Texts:
    """Texts that slices refer to by a number from 1, each once."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}

    def numbers(self, values: Sequence[str]) -> Ints:
        """Return the numbers of texts, shape (n,); new ones are added."""
        numbers = (self.number.setdefault(value, len(self.number) + 1) for value in values)
        return np.fromiter(numbers, np.int64, len(values))


class SliceColumns(msgspec.Struct):
    """The slices of a rank; each column gets a part per kind of event."""

    names: Texts = msgspec.field(default_factory=Texts)
    values: Texts = msgspec.field(default_factory=Texts)
    start: list[Ints] = msgspec.field(default_factory=list)
    end: list[Ints] = msgspec.field(default_factory=list)
    """Times in ns on the clock of the trace."""
    name: list[Ints] = msgspec.field(default_factory=list)
    category: list[Ints] = msgspec.field(default_factory=list)
    """Numbers of `names`, and of `CATEGORIES` from 1."""
    notes: list[Encoded] = msgspec.field(default_factory=list)
    """The annotations of each slice."""
    tracks: dict[str, list[Ints]] = msgspec.field(default_factory=dict)
    """The rows that each track shows, in the order of the tracks."""
    count: int = 0

    def add(
        self,
        category: str,
        start: Ints,
        end: Ints,
        name: Ints,
        notes: Encoded | None,
        tracks: Mapping[str, Ints],
    ) -> int:
        """Add slices, of which each track shows some rows; return the number of the first one."""
        first, count = self.count, len(start)
        self.start.append(start)
        self.end.append(np.maximum(start, end))
        self.name.append(name)
        self.category.append(np.full(count, CATEGORIES.index(category) + 1))
        self.notes.append(nothing(count) if notes is None else notes)
        for track, rows in tracks.items():
            self.tracks.setdefault(track, []).append(first + rows)
        self.count += count
        return first


class FirstSlices(NamedTuple):
    """The number of the first slice of each table.

    ``work`` is ``timeline.operations()``, and ``ranges`` are the ranges across threads.
    """

    work: int
    calls: int
    operators: int
    ranges: int
    mpi_calls: int
    requests: int


def add_timeline(slices: SliceColumns, timeline: Timeline, shift: Shift, whole: bool) -> FirstSlices:
    """Add all events of a timeline; if it is ``whole``, also its ranges at the times of their GPU work."""
    names = slices.names.numbers([*timeline.strings.tolist(), "(no name)"])

    def add(category: str, table: _Rows, tracks: Mapping[str, Ints], notes: Encoded | None = None) -> int:
        # The number -1, for no name, selects the last one.
        return slices.add(category, shift(table.start), shift(table.end), names[table.name], notes, tracks)

    kernels, memory = timeline.kernels, timeline.memops
    shapes = join(*(_text_note(name, _sizes(slices, getattr(kernels, name))) for name in ("grid", "block")))
    # A stream has one track for all tables, because its track has the same name in all of them.
    work = add("kernel", kernels, _streams(kernels), shapes)
    sizes = varints(_UNSIGNED_FIELDS, np.maximum(memory.bytes, 0))
    add("memory", memory, _streams(memory), _annotation("bytes", sizes, memory.bytes >= 0))
    add("graph", timeline.graphs, _streams(timeline.graphs))
    waits = timeline.gpu_marks.correlation != NO_CORRELATION
    for category, rows in (("wait", waits), ("annotation", ~waits)):
        marks = timeline.gpu_marks.take(rows)
        add(category, marks, _streams(marks, f" {category}s"))
    ranges = timeline.ranges
    in_thread = on_one_thread(ranges)
    add("range", ranges.take(in_thread), _threads(ranges.take(in_thread)))
    add("module", timeline.modules, _threads(timeline.modules))
    operators = add("operator", timeline.operators, _threads(timeline.operators), _inputs(slices, timeline))
    calls = add("api", timeline.calls, _threads(timeline.calls))
    projected = ranges_on_gpu(timeline) if whole else Ranges.empty()
    rows = {"ranges on the GPU": np.arange(len(projected))} if len(projected) else {}
    add("projection", projected, rows)
    across = ranges.take(~in_thread)
    tracks = {"ranges across threads": np.arange(len(across))} if len(across) else {}
    ranges_across = add("range", across, tracks)
    mpi_calls = add("mpi", timeline.mpi_calls, _threads(timeline.mpi_calls))
    requests = mpi_requests(timeline)
    tracks = {"MPI requests": np.arange(len(requests))} if len(requests) else {}
    start, end = shift(requests.start), shift(requests.end)
    first_request = slices.add("mpi request", start, end, names[requests.operation], None, tracks)
    return FirstSlices(work, calls, operators, ranges_across, mpi_calls, first_request)


def _streams(table: GpuSpans, suffix: str = "") -> dict[str, Ints]:
    keys = rows_by_key(table.device, table.stream)
    return {f"GPU {device} stream {stream}{suffix}": rows for (device, stream), rows in keys}


def _threads(table: NamedSpans) -> dict[str, Ints]:
    parts = rows_by_key(table.thread)
    names = thread_names(thread for (thread,), _ in parts)
    return {names[thread]: rows for (thread,), rows in parts}


def _sizes(slices: SliceColumns, sizes: Ints) -> Ints:
    """Return the number of the text of each size, shape (n,); ``sizes`` have the shape (n, 3)."""
    if not len(sizes):
        return np.empty(0, np.int64)
    different, which = numbered_rows(*sizes.T)
    return slices.values.numbers([" x ".join(map(str, size)) for size in different.tolist()])[which]


def _inputs(slices: SliceColumns, timeline: Timeline) -> Encoded:
    table = timeline.operators
    # Only the texts of inputs get a number: most texts of a profile name something else.
    used = np.unique(np.concatenate([table.dims, table.types]))
    used = used[used >= 0]
    number = np.zeros(len(timeline.strings) + 1, np.int64)
    number[used] = slices.values.numbers(timeline.strings[used].tolist())
    return join(_text_note("shapes", number[table.dims]), _text_note("types", number[table.types]))


def _text_note(name: str, numbers: Ints) -> Encoded:
    """Encode an annotation whose value is a text; slices with the number 0 have none."""
    return _annotation(name, varints(_TEXT_IID, numbers), numbers > 0)


def _annotation(name: str, value: Encoded, present: Mask) -> Encoded:
    key = varints(_NAME_IID, np.full(len(value.length), NOTES.index(name) + 1))
    return nested(_ANNOTATION, join(key, value), present)


def in_lanes(start: Ints, end: Ints) -> Iterator[Ints]:
    """Yield lanes in which slices lie beside or inside each other, and never cross.

    Each lane is the order in which its slices begin and end: the row of one that begins, and the row plus the
    number of all slices where it ends.
    """
    count, until = len(start), end.tolist()
    order = np.lexsort((-end, start))
    lanes: list[list[int]] = []
    open_slices: list[list[int]] = []
    for row, begin in zip(order.tolist(), start[order].tolist(), strict=True):
        for lane, inside in zip(lanes, open_slices, strict=True):
            while inside and until[inside[-1]] <= begin:
                lane.append(count + inside.pop())
            if not inside or until[inside[-1]] >= until[row]:
                break
        else:
            lane, inside = [], []
            lanes.append(lane)
            open_slices.append(inside)
        lane.append(row)
        inside.append(row)
    for lane, inside in zip(lanes, open_slices, strict=True):
        lane += [count + row for row in reversed(inside)]
        yield np.array(lane, np.int64)


# Fields of Trace, TracePacket and what is in it, as Perfetto's schemas number them.
_PACKET = 1
_TIME, _SEQUENCE, _FLAGS, _EVENT, _INTERNED_FIELDS, _CLOCKS, _TRACK = 8, 10, 13, 11, 12, 6, 60
_IS_FIRST, _NEEDS_TEXTS = 1, 2
_TYPE, _TRACK_ID, _NAME, _CATEGORY, _COUNT, _FLOW, _LAST_FLOW = 9, 11, 10, 3, 30, 47, 48
_BEGIN, _END, _COUNTER = 1, 2, 4
_REALTIME, _BOOTTIME = 1, 6
_IN_ORDER, _NUMBER, _BYTES = 3, 2, 3
_ANNOTATION, _NAME_IID, _UNSIGNED_FIELDS, _TEXT_IID = 4, 1, 3, 17

_IDS_PER_RANK = 1 << 32
"""Ids of tracks and arrows within a rank are below this."""
_SHARED_IDS = np.uint64(1 << 63)
"""Ids of arrows between ranks are above this."""
_BATCH_OF_EVENTS = 1 << 16
"""The events that are encoded at a time."""


def clock_packet(utc_ns: int) -> bytes:
    """Return the packet that says that time stamps are UTC times."""
    clocks = [
        nested(1, join(varints(1, np.array([clock])), varints(2, np.array([utc_ns]))))
        for clock in (_BOOTTIME, _REALTIME)
    ]
    return _packet(nested(_CLOCKS, join(*clocks, varints(2, np.array([_BOOTTIME])))))


def rank_packets(
    rank: int,
    timeline: Timeline,
    steps: RankSteps,
    matched: RankCommunication,
    shift: Shift,
    whole: bool = True,
) -> Iterator[bytes]:
    """Yield the packets of a rank; ``shift`` converts its time stamps to the clock of the trace.

    In a ``whole`` timeline, ranges are also drawn where their work is on the GPU.
    """
    slices = SliceColumns()
    numbers = slices.names.numbers([f"step {number}" for number in steps.number.tolist()])
    rows = {"steps": np.arange(len(numbers))} if len(numbers) else {}
    slices.add("step", shift(steps.start), shift(steps.end), numbers, None, rows)
    firsts = add_timeline(slices, timeline, shift, whole)
    counters = {name: (shift(time), value) for name, time, value in _counters(timeline)}
    tracks = _Tracks(rank)
    lanes = [
        (tracks.add(name, lane), rows[order % len(rows)] + (order >= len(rows)) * slices.count)
        for name, parts in slices.tracks.items()
        for rows in [np.concatenate(parts)]
        for lane, order in enumerate(
            in_lanes(np.concatenate(slices.start)[rows], np.concatenate(slices.end)[rows])
        )
    ]
    counter_tracks = [(tracks.add(name, 0, counter=True), *values) for name, values in counters.items()]
    yield _texts_packet(rank, slices)
    yield from tracks.packets()
    yield from _events(rank, slices, lanes, _flows(rank, timeline, slices.count, firsts, matched))
    for track, time, value in counter_tracks:
        kind = _constant(_TYPE, _COUNTER, len(time))
        event = join(kind, _constant(_TRACK_ID, track, len(time)), varints(_COUNT, value))
        yield _event_packets(rank, time, event)


class _Tracks:
    """The tracks of a rank, in the order in which they are added."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._id = (rank + 1) * _IDS_PER_RANK
        self._encoded: list[Encoded] = []

    def add(self, name: str, lane: int, *, counter: bool = False) -> int:
        """Add a track, or the lane of one in which slices would cross, and return its id."""
        place = len(self._encoded) + 1
        unit = _BYTES if name.startswith(("allocated", "reserved")) else _NUMBER
        parts = [
            varints(1, np.array([self._id + place])),
            texts(2, [f"{name} ({lane + 1})" if lane else name]),
            varints(5, np.array([self._id])),
            varints(12, np.array([place])),
        ]
        if counter:
            parts.append(nested(8, varints(3, np.array([unit]))))
        self._encoded.append(join(*parts))
        return self._id + place

    def packets(self) -> Iterator[bytes]:
        """Yield the packets that describe the process and its tracks."""
        rank = np.array([self._rank])
        # Viewers treat process 0 as the idle one.
        process = join(varints(1, rank + 1), texts(6, [f"rank {self._rank}"]), varints(3, rank))
        main = join(varints(1, np.array([self._id])), nested(3, process), varints(11, np.array([_IN_ORDER])))
        for track in (main, *self._encoded):
            yield _packet(nested(_TRACK, track))


def _texts_packet(rank: int, slices: SliceColumns) -> bytes:
    interned = join(
        _intern_texts(1, CATEGORIES),
        _intern_texts(2, list(slices.names.number)),
        _intern_texts(3, NOTES),
        _intern_texts(29, list(slices.values.number)),
    )
    first = join(varints(_SEQUENCE, np.array([rank + 1])), varints(_FLAGS, np.array([_IS_FIRST])))
    return _packet(join(first, nested(_INTERNED_FIELDS, interned)))


def _flows(
    rank: int, timeline: Timeline, count: int, firsts: FirstSlices, matched: RankCommunication
) -> tuple[Encoded, Encoded]:
    """Return the arrows that go on from each slice, and those that end at it."""
    call, operation = launches(timeline)
    forward, backward = gradients(timeline)
    begin = np.concatenate([firsts.calls + call, firsts.operators + forward])
    end = np.concatenate([firsts.work + operation, firsts.operators + backward])
    number = ((rank + 1) * _IDS_PER_RANK + np.arange(len(begin))).astype(np.uint64)
    carriers = {
        Carrier.WORK: _communication(timeline, firsts),
        Carrier.MPI_CALL: _numbered_slices(firsts.mpi_calls, timeline.mpi_calls.start),
        Carrier.MPI_REQUEST: _numbered_slices(firsts.requests, mpi_requests(timeline).start),
    }
    shared, slices = [np.empty(0, np.uint64)], [begin]
    for carrier, (rows, start) in carriers.items():
        order = np.argsort(start, kind="stable")
        rows, start = rows[order], start[order]
        is_match = (matched.carrier == carrier) & np.isin(matched.start, start)
        slices.append(rows[np.searchsorted(start, matched.start[is_match])])
        shared.append(_SHARED_IDS + matched.number[is_match].astype(np.uint64))
    onward = stacked(fixed64(_FLOW, number), fixed64(_FLOW, np.concatenate(shared)))
    return gathered(onward, np.concatenate(slices), count), gathered(fixed64(_LAST_FLOW, number), end, count)


def _numbered_slices(first: int, start: Ints) -> tuple[Ints, Ints]:
    """Return the numbers of the slices of a table, from ``first`` on, and their starts in ns."""
    return first + np.arange(len(start)), start


def _communication(timeline: Timeline, firsts: FirstSlices) -> tuple[Ints, Ints]:
    """Return the slices that carry out collectives and their starts: kernels, else ranges of the host."""
    kernels = timeline.kernels
    rows = np.flatnonzero(kernels.category == Category.COMM)
    if len(rows):
        return firsts.work + rows, kernels.start[rows]
    start = timeline.ranges.start[~on_one_thread(timeline.ranges)]
    rows = np.flatnonzero(np.isin(start, timeline.host_collectives.start))
    return firsts.ranges + rows, start[rows]


def _events(
    rank: int, slices: SliceColumns, lanes: list[tuple[int, Ints]], flows: tuple[Encoded, Encoded]
) -> Iterator[bytes]:
    """Yield the packets in which slices begin and end, track by track."""
    count = slices.count
    start, end, name, category = (
        np.concatenate(column) for column in (slices.start, slices.end, slices.name, slices.category)
    )
    # Ends have neither arrows nor notes: they take the last piece, which is empty.
    pieces = [stacked(piece, nothing(1)) for piece in (*flows, stacked(*slices.notes))]
    for track, order in lanes:
        for first in range(0, len(order), _BATCH_OF_EVENTS):
            part = order[first : first + _BATCH_OF_EVENTS]
            ends = part >= count
            row = part % count
            kind = varints(_TYPE, np.where(ends, _END, _BEGIN))
            fixed = (varints(_NAME, name[row], ~ends), varints(_CATEGORY, category[row], ~ends))
            further_pieces = (piece.take(np.where(ends, count, part)) for piece in pieces)
            event = join(kind, _constant(_TRACK_ID, track, len(part)), *fixed, *further_pieces)
            yield _event_packets(rank, np.where(ends, end[row], start[row]), event)


def _counters(timeline: Timeline) -> Iterator[tuple[str, Ints, Ints]]:
    """Yield the name, the times and the values of each counter."""
    table = timeline.allocations
    for (device,), rows in rows_by_key(table.device):
        where = "on the host" if device == HOST else f"on GPU {device}"
        rows = rows[np.argsort(table.time[rows], kind="stable")]
        for kind in ("allocated", "reserved"):
            yield f"{kind} {where}", table.time[rows], np.maximum(getattr(table, kind)[rows], 0)
    call, operation = launches(timeline)
    if not len(call):
        return
    begun = next(timeline.of_operations("start"))[operation]
    time = np.concatenate([np.minimum(timeline.calls.start[call], begun), begun])
    order = np.argsort(time, kind="stable")
    waiting = np.cumsum(np.repeat([1, -1], len(call))[order])
    last = np.append(np.diff(time[order]) > 0, True)
    yield "launched operations that wait", time[order][last], waiting[last]


def _event_packets(rank: int, time: Ints, event: Encoded) -> bytes:
    count = len(time)
    fixed = (_constant(_SEQUENCE, rank + 1, count), _constant(_FLAGS, _NEEDS_TEXTS, count))
    return _packet(join(varints(_TIME, time), *fixed, nested(_EVENT, event)))


def _constant(field: int, value: int, count: int) -> Encoded:
    record = varints(field, np.array([value], np.uint64))
    return Encoded(np.tile(record.data, count), np.repeat(record.length, count))


def _intern_texts(field: int, values: Sequence[str]) -> Encoded:
    """Encode texts that others refer to by their numbers, as one piece."""
    numbered = join(varints(1, np.arange(1, len(values) + 1)), texts(2, values))
    data = nested(field, numbered).data
    return Encoded(data, np.array([len(data)]))


def _packet(content: Encoded) -> bytes:
    return nested(_PACKET, content).data.tobytes()


TRACE = "all_ranks.pftrace.gz"
"""The name of the trace; a collect of the folder ignores it."""


def export_trace(
    run: Run,
    store: Store,
    folder: Path,
    progress: Callable[[Path], None],
    *,
    ranks: Sequence[int],
    steps: tuple[int, int] | None,
) -> Exported:
    """Write one trace of some ranks of a collected run, on the clock that their communication aligns.

    Ranks are read one after the other. Those that cannot be read are left out, with a note. The folder is
    made where it is missing. ``steps`` are the first and the last step, by default of the capture.
    """
    path, notes = folder / TRACE, list[str]()
    progress(path)
    source = _Source(run, store, ranks, steps)
    source.find_begin()
    timelines = source.timelines(notes)
    first = next(timelines, None)
    if first is None:
        more = f" So it is with {counted(len(notes) - 1, 'other rank')}." if len(notes) > 1 else ""
        raise HpcprofError(f"nothing written: {notes[0]}{more}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with compressed(path) as packed:
            if source.clocks.start_utc_ns is not None:
                packed.write(clock_packet(source.clocks.start_utc_ns))
            for rank, timeline in chain([first], timelines):
                packed.writelines(source.packets(rank, timeline))
    except OSError as error:
        raise HpcprofError(f"cannot write to {folder}: {error.strerror}.") from None
    return Exported([path], [*notes, *source.clocks.notes()])


class _Source:
    """The sources of a trace of some ranks and steps of a run."""

    def __init__(self, run: Run, store: Store, ranks: Sequence[int], steps: tuple[int, int] | None) -> None:
        self._windows, self._ranks, self._chosen = RunWindows(run, store), ranks, steps
        self._communication = run_communication(run, store)
        self.clocks = self._communication.clocks
        self._begin = self.clocks.start_utc_ns or 0

    def find_begin(self) -> None:
        """Have the trace begin at 0 where no UTC times are known, because no time stamp may be negative."""
        if self.clocks.start_utc_ns is None:
            firsts = [
                self.clocks.stamp_on_common(rank, min([first_event(timeline), *marks.start.tolist()]))
                for rank, timeline in self.timelines([])
                for marks in [self._steps(rank)]
            ]
            self._begin = -min(firsts, default=0)

    def timelines(self, notes: list[str]) -> Iterator[tuple[int, Timeline]]:
        """Yield the timelines that can be read; ``notes`` gets a sentence about each other one."""
        for rank in self._ranks:
            try:
                if self._chosen is None:
                    timeline = self._windows.read(rank)
                else:
                    timeline = self._windows.read_steps(rank, *self._chosen)
            except HpcprofError as error:
                notes.append(str(error))
                continue
            yield rank, timeline

    def packets(self, rank: int, timeline: Timeline) -> Iterator[bytes]:
        """Yield the packets of a rank."""
        marks, matched = self._steps(rank), self._communication.of_rank(rank)
        in_trace = partial(self._in_trace, rank)
        return rank_packets(rank, timeline, marks, matched, in_trace, whole=self._chosen is None)

    def _steps(self, rank: int) -> RankSteps:
        marks = self._windows.steps(rank)
        if self._chosen is None:
            return marks
        first, last = self._chosen
        return marks.take((marks.number >= first) & (marks.number <= last))

    def _in_trace(self, rank: int, stamps: Ints) -> Ints:
        return self.clocks.to_common(rank, stamps) + self._begin
