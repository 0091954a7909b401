"""The planes of TPU cores: XLA's operations as kernels and copies, and the executions of programs.

The line "XLA Ops" has what a core does one after another, also begins and ends of asynchronous operations;
"Async XLA Ops" has how long these are under way. Events have the text of their HLO as name,
``%fusion.3 = f32[8] fusion(…)``. An execution on the line "XLA Modules" and the host's call that enqueues it
(``DoEnqueueProgram``) share the low 28 bits of their ``run_id`` (xla/tsl/profiler/utils/preprocess_xplane).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from hpcprof.profiles import kernel_classification
from hpcprof.profiles.columns.unique import map_unique, object_array
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.readers.xplane.hlo import COLLECTIVES, CONTAINERS
from hpcprof.profiles.readers.xplane.planes import Metadata, Plane
from hpcprof.profiles.timeline import (
    NO_CORRELATION,
    Category,
    IntColumns,
    Ints,
    Kernels,
    Mask,
    MemoryOperations,
    Ranges,
    Style,
    concatenate,
)

_OPERATIONS, _ASYNCHRONOUS, _EXECUTIONS, _STEPS = "XLA Ops", "Async XLA Ops", "XLA Modules", "Steps"
_LINES = re.compile(
    f"{_OPERATIONS}|{_ASYNCHRONOUS}|{_EXECUTIONS}|{_STEPS}"
    "|XLA TraceMe|TC Overlay|Framework .*|TensorFlow .*|Source.*|_?counters_.*"
)
"""The lines that are read, and those that show the operations again by other names, or counters."""
_ENQUEUE = re.compile(r"DoEnqueue(?:Continuation)?Program")
_RUN_ID_BITS, _MAX_CORES = 28, 4096
_HLO = re.compile(r"%?(?P<name>\S+) = .*? (?P<opcode>[a-z][\w-]*)\(", re.DOTALL)
_HALF = re.compile(r"-(?:start|done)(?=\.|$)")
_MOVES = re.compile(r"copy-(?:start|done)|infeed|outfeed|host (?:send|recv)(?:-done)?")
_NUMBERS = re.compile(r"(?:\.\d+)+$|\(\d+\)$")
_THREAD = 1 << 40
"""The thread of ranges here, which is none of the host's."""


class TpuTables(NamedTuple):
    """The tables of the cores, and what is left out of them."""

    kernels: Kernels
    memory: MemoryOperations
    ranges: Ranges
    losses: tuple[Loss, ...]


class _Operation(NamedTuple):
    """An operation: its name, with XLA's category where the name does not have it, and what it does."""

    name: str
    contains: bool
    moves: bool
    communicates: bool
    ends: bool
    """True for the end of an asynchronous operation."""

    @classmethod
    def of(cls, event: Metadata) -> "_Operation":
        hlo = _HLO.match(event.name)
        name = event.display_name or (hlo["name"] if hlo else event.name)
        opcode = hlo["opcode"] if hlo else _NUMBERS.sub("", name)
        written = event.stats.get("hlo_category")
        category = written if isinstance(written, str) else opcode
        moves = _MOVES.fullmatch(category) is not None
        return cls(
            name if category in name else f"{name} [{category}]",
            opcode in CONTAINERS,
            moves,
            not moves and _HALF.sub("", opcode) in COLLECTIVES,
            opcode.endswith("-done"),
        )


def enqueued_programs(host: Plane) -> Ints:
    """Return the number of the execution that each event of the host enqueues, else `NO_CORRELATION`."""
    number = _execution(host.numbers("run_id"), host.numbers("device_ordinal"))
    return np.where(host.matching(_ENQUEUE.fullmatch) & host.has("run_id"), number, NO_CORRELATION)


def _execution(run_id: Ints, core: Ints) -> Ints:
    return (run_id & (1 << _RUN_ID_BITS) - 1) * _MAX_CORES + core % _MAX_CORES


def tpu_tables(
    planes: Mapping[int, Plane], hosts: Sequence[Plane], strings: StringTable, process: int
) -> TpuTables:
    """Return the events of TPU cores, given their planes by number and those of the host.

    The executions and steps of the first core become ranges. ``strings`` receives the names.
    """
    enqueued: dict[int, tuple[int, int]] = {}
    for host in hosts:
        columns = (enqueued_programs(host), host.start, host.end)
        calls = zip(*(column[columns[0] != NO_CORRELATION].tolist() for column in columns), strict=True)
        enqueued |= {number: (start, end) for number, start, end in calls}
    marked = any(host.has("step_num").any() for host in hosts)
    cores = [_Core(core, plane, enqueued, strings, process) for core, plane in sorted(planes.items())]
    _launch_together(cores)
    ranges = [core.executions() for core in cores[:1]]
    ranges += [core.steps() for core in cores[:1] if not (marked and core.enqueued.all())]
    unread = sum((core.unread() for core in cores), Counter[str]())
    return TpuTables(
        concatenate(Kernels, (core.kernels() for core in cores)),
        concatenate(MemoryOperations, (core.memory() for core in cores)),
        concatenate(Ranges, ranges),
        tuple(losses(LossKind.CATEGORY, Subject.EVENT, dict(sorted(unread.items())))),
    )


class _Core:
    """Builds the tables of a core from its plane and the spans of the calls that enqueue executions."""

    def __init__(
        self,
        core: int,
        plane: Plane,
        enqueued: Mapping[int, tuple[int, int]],
        strings: StringTable,
        process: int,
    ) -> None:
        self._core, self._plane, self._strings, self._process = core, plane, strings, process
        self._operations = {key: _Operation.of(event) for key, event in plane.metadata.items()}
        rows = np.flatnonzero(self._is_on(_EXECUTIONS))
        self._executions = rows[np.argsort(plane.start[rows], kind="stable")]
        number = _execution(plane.numbers("run_id"), np.int64(core))[self._executions]
        self.enqueued = plane.has("run_id")[self._executions] & np.isin(number, [*enqueued])
        self.number = np.where(self.enqueued, number, NO_CORRELATION)
        run = zip(plane.start[self._executions].tolist(), plane.end[self._executions].tolist(), strict=True)
        spans = [enqueued.get(key, span) for key, span in zip(self.number.tolist(), run, strict=True)]
        self.span = np.array(spans, np.int64).reshape(-1, 2)
        keys = plane.metadata_id[self._executions].tolist()
        self.programs = object_array(_NUMBERS.sub("", plane.metadata_name(key)) for key in keys)
        self._work = self._is_on(_OPERATIONS, _ASYNCHRONOUS) & ~self._is_chosen("contains")
        # A collective has its name where it is under way, else where its end waits for it.
        self._whole = self._is_on(_ASYNCHRONOUS)
        if not np.any(self._whole & self._is_chosen("communicates")):
            self._whole |= self._is_chosen("communicates") & self._is_chosen("ends")
        self._stream = _lanes(plane, self._is_on(_ASYNCHRONOUS))

    def kernels(self) -> Kernels:
        """Return the operations that compute or communicate."""
        columns = self._columns(self._work & ~self._is_chosen("moves"))
        return Kernels(
            **columns, category=kernel_classification.classes_of(columns["name"], self._strings.array())
        )

    def memory(self) -> MemoryOperations:
        """Return the copies between memories, and the waits for them."""
        columns = self._columns(self._work & self._is_chosen("moves"))
        return MemoryOperations(**columns, category=np.full(len(columns["start"]), int(Category.MEM)))

    def executions(self) -> Ranges:
        """Return the executions of programs: when their calls enqueue them, else when they run."""
        return self._ranges(self._executions, "XlaModule:#hlo_module={}#", self.span)

    def steps(self) -> Ranges:
        """Return the steps that the core marks."""
        rows = np.flatnonzero(self._is_on(_STEPS))
        span = np.stack((self._plane.start, self._plane.end), axis=1)[rows]
        return self._ranges(rows, "TPU step#step_num={}#", span)

    def unread(self) -> Counter[str]:
        """Return the number of events on each line that is not read."""
        names = [line.name for line in self._plane.lines]
        counts = np.bincount(self._plane.line, minlength=len(names)).tolist()
        return Counter(
            {name: n for name, n in zip(names, counts, strict=True) if n and not _LINES.fullmatch(name)}
        )

    def _is_on(self, *names: str) -> Mask:
        return np.isin(
            self._plane.line, [at for at, line in enumerate(self._plane.lines) if line.name in names]
        )

    def _is_chosen(self, attribute: str) -> Mask:
        keys = [key for key, operation in self._operations.items() if getattr(operation, attribute)]
        return np.isin(self._plane.metadata_id, keys)

    def _columns(self, chosen: Mask) -> IntColumns:
        plane, rows = self._plane, np.flatnonzero(chosen)
        texts = {key: operation.name for key, operation in self._operations.items()}
        key = plane.metadata_id[rows]
        name = map_unique(key, lambda number: self._strings.add(texts.get(number) or None))
        whole = map_unique(
            key, lambda number: self._strings.add(_HALF.sub("", texts.get(number, "")) or None)
        )
        return {
            "start": plane.start[rows],
            "end": plane.end[rows],
            "device": np.full(len(rows), self._core),
            "stream": self._stream[rows],
            "name": np.where(self._whole[rows], whole, name),
            "correlation": self._execution_of(rows),
            "process": np.full(len(rows), self._process),
        }

    def _ranges(self, rows: Ints, form: str, span: Ints) -> Ranges:
        def name_of(key: int) -> int:
            return self._strings.add(form.format(_NUMBERS.sub("", self._plane.metadata_name(key))))

        count = len(rows)
        return Ranges(
            start=span[:, 0],
            end=span[:, 1],
            process=np.full(count, self._process),
            thread=np.full(count, _THREAD),
            name=map_unique(self._plane.metadata_id[rows], name_of),
            style=np.full(count, int(Style.START_END)),
        )

    def _execution_of(self, rows: Ints) -> Ints:
        """Return the number of the enqueued execution that each event begins in, else `NO_CORRELATION`."""
        plane, started = self._plane, self._plane.start[self._executions]
        at = np.searchsorted(started, plane.start[rows], side="right") - 1
        inside = at >= 0
        inside[inside] = plane.start[rows[inside]] < plane.end[self._executions][at[inside]]
        number = np.full(len(rows), NO_CORRELATION)
        number[inside] = self.number[at[inside]]
        return number


def _launch_together(cores: Sequence[_Core]) -> None:
    """Let the earliest call that enqueues an execution of a program launch it on all cores.

    Threads of the host enqueue for one core each, many executions ahead of it.
    """
    for program in {name for core in cores for name in core.programs}:
        rows = [np.flatnonzero(core.programs == program) for core in cores]
        if len({len(each) for each in rows}) > 1:
            continue
        number = np.stack([core.number[each] for core, each in zip(cores, rows, strict=True)])
        span = np.stack([core.span[each] for core, each in zip(cores, rows, strict=True)])
        earliest = span[..., 0].argmin(axis=0), np.arange(number.shape[1])
        for core, each in zip(cores, rows, strict=True) if np.all(number != NO_CORRELATION) else ():
            core.number[each], core.span[each] = number[earliest], span[earliest]


def _lanes(plane: Plane, asynchronous: Mask) -> Ints:
    """Return the stream of each event: 0, or the first free one for those that may overlap others."""
    stream, free = np.zeros(len(asynchronous), np.int64), list[tuple[int, int]]()
    rows = np.flatnonzero(asynchronous)
    rows = rows[np.argsort(plane.start[rows], kind="stable")]
    for row, start, end in zip(
        rows.tolist(), plane.start[rows].tolist(), plane.end[rows].tolist(), strict=True
    ):
        lane = heappop(free)[1] if free and free[0][0] <= start else len(free) + 1
        heappush(free, (end, lane))
        stream[row] = lane
    return stream
