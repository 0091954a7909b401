"""Slices of a rank: rows with a name, a time, a track and details."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.steps.gpu_projection import ranges_on_gpu
from hpcprof.profiles.columns.unique import numbered_rows, rows_by_key
from hpcprof.profiles.timeline import (
    NO_CORRELATION,
    GpuSpans,
    Ints,
    Kernels,
    NamedSpans,
    Ranges,
    Timeline,
)
from hpcprof.report.perfetto.encoding import Encoded, join, nested, nothing, varints
from hpcprof.report.trace_arrows import mpi_requests, on_one_thread

_ANNOTATION, _NAME_IID, _UNSIGNED, _TEXT_IID = 4, 1, 3, 17

CATEGORIES = (
    *("step", "kernel", "memory", "graph", "wait", "annotation", "api", "operator", "module", "range"),
    *("projection", "mpi", "mpi request"),
)
"""The categories of slices."""

NOTES = ("grid", "block", "bytes", "shapes", "types")
"""Details of slices beyond their names."""

Shift = Callable[[Ints], Ints]
"""Gives time stamps of a rank as those of the trace."""

_Rows = GpuSpans | NamedSpans


class Texts:
    """Texts that slices refer to by a number from 1, each once."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}

    def numbers(self, values: Sequence[str]) -> Ints:
        """Return the numbers of texts, shape (n,); new ones are added."""
        found = (self.number.setdefault(value, len(self.number) + 1) for value in values)
        return np.fromiter(found, np.int64, len(values))


@dataclass
class SliceColumns:
    """The slices of a rank; each column gets a part per kind of event."""

    names: Texts = field(default_factory=Texts)
    values: Texts = field(default_factory=Texts)
    start: list[Ints] = field(default_factory=list)
    end: list[Ints] = field(default_factory=list)
    """As in the trace."""
    name: list[Ints] = field(default_factory=list)
    category: list[Ints] = field(default_factory=list)
    """Numbers of `names`, and of `CATEGORIES` from 1."""
    notes: list[Encoded] = field(default_factory=list)
    """The annotations of each slice."""
    tracks: dict[str, list[Ints]] = field(default_factory=dict)
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


class Firsts(NamedTuple):
    """The numbers of the first slices of ``timeline.operations()``, the calls, the operators and ranges.

    ``ranges`` are those that `on_one_thread` leaves, and ``requests`` those of `mpi_requests`.
    """

    work: int
    calls: int
    operators: int
    ranges: int
    mpi_calls: int
    requests: int


def add_timeline(slices: SliceColumns, timeline: Timeline, shift: Shift, whole: bool) -> Firsts:
    """Add all events of a timeline; of a ``whole`` one also its ranges where their work is on the GPU."""
    names = slices.names.numbers([*timeline.strings.tolist(), "(no name)"])

    def add(category: str, table: _Rows, tracks: Mapping[str, Ints], notes: Encoded | None = None) -> int:
        # The number -1, for no name, selects the last one.
        return slices.add(category, shift(table.start), shift(table.end), names[table.name], notes, tracks)

    kernels, memory = timeline.kernels, timeline.memops
    # The tracks of a device and a stream have the same name in all tables, and so are one.
    work = add("kernel", kernels, _streams(kernels), _shapes(slices, kernels))
    add("memory", memory, _streams(memory), _note("bytes", memory.bytes, memory.bytes >= 0))
    add("graph", timeline.graphs, _streams(timeline.graphs))
    waits = timeline.gpu_marks.correlation != NO_CORRELATION
    for category, rows in (("wait", waits), ("annotation", ~waits)):
        marks = timeline.gpu_marks.take(rows)
        add(category, marks, _streams(marks, f" {category}s"))
    ranges = timeline.ranges
    own = on_one_thread(ranges)
    add("range", ranges.take(own), _threads(ranges.take(own)))
    add("module", timeline.modules, _threads(timeline.modules))
    operators = add("operator", timeline.operators, _threads(timeline.operators), _inputs(slices, timeline))
    calls = add("api", timeline.calls, _threads(timeline.calls))
    projected = ranges_on_gpu(timeline) if whole else Ranges.empty()
    rows = {"ranges on the GPU": np.arange(len(projected))} if len(projected) else {}
    add("projection", projected, rows)
    free = ranges.take(~own)
    tracks = {"ranges across threads": np.arange(len(free))} if len(free) else {}
    own_ranges = add("range", free, tracks)
    mpi_calls = add("mpi", timeline.mpi_calls, _threads(timeline.mpi_calls))
    requests = mpi_requests(timeline)
    tracks = {"MPI requests": np.arange(len(requests))} if len(requests) else {}
    begun = slices.add(
        *("mpi request", shift(requests.start), shift(requests.end)), names[requests.operation], None, tracks
    )
    return Firsts(work, calls, operators, own_ranges, mpi_calls, begun)


def _streams(table: GpuSpans, what: str = "") -> dict[str, Ints]:
    keys = rows_by_key(table.device, table.stream)
    return {f"GPU {device} stream {stream}{what}": rows for (device, stream), rows in keys}


def _threads(table: NamedSpans) -> dict[str, Ints]:
    return {f"thread {thread}": rows for (thread,), rows in rows_by_key(table.thread)}


def _shapes(slices: SliceColumns, kernels: Kernels) -> Encoded:
    return join(*(_text_note(n, _sizes(slices, getattr(kernels, n))) for n in ("grid", "block")))


def _sizes(slices: SliceColumns, sizes: Ints) -> Ints:
    """Return the numbers of the texts of sizes, shape (n, 3)."""
    if not len(sizes):
        return np.empty(0, np.int64)
    different, which = numbered_rows(*sizes.T)
    return slices.values.numbers([" x ".join(map(str, size)) for size in different.tolist()])[which]


def _inputs(slices: SliceColumns, timeline: Timeline) -> Encoded:
    table = timeline.operators
    # Most texts of a profile are names of something else.
    used = np.unique(np.concatenate([table.dims, table.types]))
    used = used[used >= 0]
    number = np.zeros(len(timeline.strings) + 1, np.int64)
    number[used] = slices.values.numbers(timeline.strings[used].tolist())
    return join(_text_note("shapes", number[table.dims]), _text_note("types", number[table.types]))


def _text_note(name: str, numbers: Ints) -> Encoded:
    """Encode an annotation whose value is a text; slices with the number 0 have none."""
    return _annotation(name, varints(_TEXT_IID, numbers), numbers > 0)


def _note(name: str, values: Ints, known: NDArray[np.bool_]) -> Encoded:
    return _annotation(name, varints(_UNSIGNED, np.where(known, values, 0)), known)


def _annotation(name: str, value: Encoded, present: NDArray[np.bool_]) -> Encoded:
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
