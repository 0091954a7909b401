"""The host's planes: what the program marked, calls of the GPU's runtime, and the operations of CPU devices.

The lines are threads: Python's, with the program's own ranges and its calls of jitted functions, and those of
XLA. XLA puts calls of the GPU's runtime on lines of their own, without the ranges of the same thread. On CPU
devices, operations are events of XLA's threads: they count as operators, and collectives as the host's.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from hpcprof.profiles.columns.intervals import outermost, styles_of_threads
from hpcprof.profiles.columns.ordering import by_time
from hpcprof.profiles.columns.unique import distinct, map_unique, numbered, numbered_rows, rows_by_key
from hpcprof.profiles.readers.communicators import of_one_process, ranks_in_short
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.readers.xplane.hlo import CONTAINERS, HloOperation, HloProgram
from hpcprof.profiles.readers.xplane.planes import NOT_GIVEN, Plane
from hpcprof.profiles.readers.xplane.tpu import enqueued_programs
from hpcprof.profiles.timeline import (
    NO_BYTES,
    NO_NAME,
    UNKNOWN_RANKS,
    ApiCalls,
    Collectives,
    IntColumns,
    Ints,
    Kernels,
    Mask,
    Operators,
    Ranges,
    Style,
    concatenate,
)
from hpcprof.profiles.waiting_calls import XLA_WAIT

_XLA_THREAD = re.compile(r"tf_|py_xla|Host Threads/|pjrt|xla", re.IGNORECASE)
_RUNTIME_THREAD = "Host Threads/"
_API = re.compile(r"(?:cu|cuda|hip)[A-Z]\w*")
_PYTHON_FUNCTION = re.compile(r"\$\S+ ")
"""The file and line that the name of a Python function begins with."""
_JITTED_FUNCTION = "PjitFunction("
_MODULE = ":XLA GPU module"
_STEP = "StepMarker"
# Ranges that JAX and XLA mark on the threads of Python; names of Python functions begin with a dollar sign.
_INTERNAL = re.compile(
    r"\$|end: |.*::|Wait for (?:donation|usage) holds|Handle inputs?\b|DevicePut|BatchedCopyTo"
    r"|batched_(?:copy|device)_|(?:Resolve constant globals|Build buffer allocations|ParseArguments"
    r"|shard_args|cpp_pjit_\w+|RecordUsage|ThenExecuteCallback(?::.*)?|Memory(?:Alloc|Dealloc)ation)$",
    re.DOTALL,
)
_MAX_THREAD = 1 << 31
_MAX_RUN_ID = (1 << 32) - 1
_UNKNOWN_OPERATION = HloOperation()


class HostTables(msgspec.Struct, frozen=True):
    """The tables of the host."""

    calls: ApiCalls
    ranges: Ranges
    operators: Operators
    collectives: Collectives
    host_collectives: Collectives


class _ProgramOperation(NamedTuple):
    """An operation by its name, and the program that has it."""

    name: str
    operation: HloOperation
    program: HloProgram | None


class _Executed(msgspec.Struct, frozen=True):
    """Executions of operations of programs, in the order of their starts; arrays have shape (n,).

    ``operation`` is a position in ``operations``, and ``device`` the number of the device or `NOT_GIVEN`.
    """

    columns: IntColumns
    operations: Sequence[_ProgramOperation]
    operation: Ints
    device: Ints

    def take(self, rows: Ints | Mask) -> "_Executed":
        columns = {key: values[rows] for key, values in self.columns.items()}
        return _Executed(columns, self.operations, self.operation[rows], self.device[rows])

    def mask_of(self, chosen: Sequence[bool]) -> Mask:
        """Return a mask of the executions that are of chosen operations."""
        return np.array([*chosen, False], bool)[self.operation]


def host_tables(
    planes: Sequence[Plane],
    strings: StringTable,
    programs: Mapping[int, HloProgram],
    process: int,
    kernels: Kernels,
    gpus: Sequence[Plane],
) -> HostTables:
    """Return the tables of the host, given the planes of the GPUs that worked.

    ``strings`` receives texts.
    """
    threads: dict[int, int] = {}
    parts = [_Threads(plane, strings, programs, process, kernels, gpus, threads).tables() for plane in planes]
    return HostTables(
        concatenate(ApiCalls, (part.calls for part in parts)),
        concatenate(Ranges, (part.ranges for part in parts)),
        concatenate(Operators, (part.operators for part in parts)),
        concatenate(Collectives, (part.collectives for part in parts)),
        concatenate(Collectives, (part.host_collectives for part in parts)),
    )


class _Threads:
    """Builds the tables of one plane of the host. ``threads`` has the numbers given to lines so far."""

    def __init__(
        self,
        plane: Plane,
        strings: StringTable,
        programs: Mapping[int, HloProgram],
        process: int,
        kernels: Kernels,
        gpus: Sequence[Plane],
        threads: dict[int, int],
    ) -> None:
        self._plane, self._strings, self._programs = plane, strings, programs
        self._process, self._kernels, self._gpus = process, kernels, len(gpus)
        for line in plane.lines:
            # Newer versions of XLA number threads by 64-bit hashes.
            thread = line.number if 0 < line.number < _MAX_THREAD else _MAX_THREAD + len(threads)
            threads.setdefault(line.number, thread)
        self._thread = np.array([threads[line.number] for line in plane.lines], np.int64)
        python = np.array([not _XLA_THREAD.match(line.name) for line in plane.lines], bool)
        self._in_python = python[plane.line]
        correlation = np.maximum(plane.numbers("correlation_id"), enqueued_programs(plane))
        self._correlation = correlation
        self._is_call = (correlation != NOT_GIVEN) | plane.matching(_API.fullmatch)
        self._op_texts, self._op = plane.texts("hlo_op")
        waits = self._waits_for_gpus() if gpus else np.empty(0, np.int64)
        self._is_call[waits] = True
        self._is_op = (self._op != NOT_GIVEN) & ~self._is_call & (not gpus)
        self._program = plane.numbers("program_id")
        for gpu in gpus:
            self._take_operations(gpu)
        self._join_threads()

    def tables(self) -> HostTables:
        """Return the tables."""
        calls = np.flatnonzero(self._is_call)
        launched, on_devices = self._launching_operations(), self._device_operations()
        collective = on_devices.mask_of([item.collective is not None for _, item, _ in on_devices.operations])
        operators = concatenate(
            Operators, (self._operators(launched), self._operators(on_devices.take(~collective)))
        )
        name = self._plane.metadata_name
        called = map_unique(
            self._plane.metadata_id[calls],
            lambda key: self._strings.add(_PYTHON_FUNCTION.sub("", name(key)) or None),
        )
        return HostTables(
            ApiCalls(**self._columns(calls), name=called, correlation=self._correlation[calls]),
            concatenate(Ranges, (self._ranges(), self._modules())),
            operators,
            self._collectives(launched),
            self._collectives(on_devices.take(collective)),
        )

    def _waits_for_gpus(self) -> Ints:
        """Return the events in which a thread waits for an array, without what they do inside."""
        plane = self._plane
        events = np.flatnonzero(
            plane.matching(lambda name: XLA_WAIT.fullmatch(_PYTHON_FUNCTION.sub("", name)))
        )
        groups = [events[rows] for _, rows in rows_by_key(plane.line[events])] if len(events) else [events]
        return np.concatenate([rows[outermost(plane.start[rows], plane.end[rows])] for rows in groups])

    def _columns(self, rows: Ints) -> IntColumns:
        plane = self._plane
        return {
            "start": plane.start[rows],
            "end": plane.end[rows],
            "process": np.full(len(rows), self._process),
            "thread": self._thread[plane.line[rows]],
        }

    def _take_operations(self, gpu: Plane) -> None:
        """Give calls without an operation the one that they launched, as newer versions of XLA record it."""
        texts, op = gpu.texts("hlo_op")
        correlation, program = gpu.numbers("correlation_id"), gpu.numbers("program_id")
        timed = np.flatnonzero((op != NOT_GIVEN) & (correlation != NOT_GIVEN))
        calls = np.flatnonzero((self._op == NOT_GIVEN) & (self._correlation != NOT_GIVEN))
        if not len(timed) or not len(calls):
            return
        timed = timed[np.unique(correlation[timed], return_index=True)[1]]
        at = np.minimum(np.searchsorted(correlation[timed], self._correlation[calls]), len(timed) - 1)
        is_same_launch = correlation[timed[at]] == self._correlation[calls]
        calls, launched = calls[is_same_launch], timed[at[is_same_launch]]
        position = {text: number for number, text in enumerate(self._op_texts)}
        number = np.array([position.setdefault(text, len(position)) for text in texts], np.int64)
        self._op_texts = [*position]
        self._op[calls], self._program[calls] = number[op[launched]], program[launched]

    def _join_threads(self) -> None:
        """Give the lines of the GPU's runtime the threads whose marks of operations contain their calls."""
        plane = self._plane
        runtime = {at for at, line in enumerate(plane.lines) if line.name.startswith(_RUNTIME_THREAD)}
        calls = np.flatnonzero(self._is_call & (self._op != NOT_GIVEN))
        texts = {text: number for number, text in enumerate(self._op_texts)}
        marks = np.flatnonzero(plane.matching(texts.__contains__) & ~self._is_call)
        marked = map_unique(plane.metadata_id[marks], lambda key: texts[plane.metadata_name(key)])
        votes: list[tuple[int, int, int]] = []
        for (line,), group in rows_by_key(plane.line[marks]) if len(marks) else ():
            rows = group[np.argsort(plane.start[marks[group]], kind="stable")]
            start, end, op = plane.start[marks[rows]], plane.end[marks[rows]], marked[rows]
            at = np.searchsorted(start, plane.start[calls], side="right") - 1
            inside = (at >= 0) & (plane.end[calls] <= end[at]) & (op[at] == self._op[calls])
            lines, count = np.unique(plane.line[calls[inside]], return_counts=True)
            for call_line, number in zip(lines.tolist(), count.tolist(), strict=True):
                votes.append((-number, call_line, line))
        # Each thread has one line of either kind.
        taken: set[int] = set()
        for _, call_line, mark_line in sorted(votes):
            if call_line in runtime and mark_line not in taken:
                runtime.remove(call_line)
                taken.add(mark_line)
                self._thread[call_line] = self._thread[mark_line]

    def _ranges(self) -> Ranges:
        """Return the program's own marks, its calls of jitted functions, and programs on the GPU."""
        plane = self._plane
        number = plane.numbers("step_num")
        step = (number != NOT_GIVEN) | plane.matching(_STEP.__eq__)
        module = plane.matching(lambda name: name.endswith(_MODULE))
        inner = plane.matching(_INTERNAL.match) | plane.has("_src")
        # Calls of jitted functions have two events, and contain what JAX does for them, as programs do.
        calls = module | plane.matching(lambda name: name.startswith(_JITTED_FUNCTION))
        jitted = np.flatnonzero(calls)
        for _, group in rows_by_key(plane.line[jitted]) if len(jitted) else ():
            rows = jitted[group]
            rows = rows[outermost(plane.start[rows], plane.end[rows])]
            on_line = np.flatnonzero(plane.line == plane.line[rows[0]])
            at = np.searchsorted(plane.start[rows], plane.start[on_line], side="right") - 1
            inner[on_line[(at >= 0) & (plane.end[on_line] <= plane.end[rows][at])]] = True
            inner[rows] = False
        group = self._in_python & ~self._is_call & ~self._is_op & ~inner
        rows = np.flatnonzero(group | step | module)
        texts = [
            f"{name}#step_num={count}#"
            if is_step
            else _module_name(name.removesuffix(_MODULE), run_id)
            if is_module
            else name
            for name, count, is_step, is_module, run_id in zip(
                map(plane.metadata_name, plane.metadata_id[rows].tolist()),
                np.where(number == NOT_GIVEN, np.cumsum(step) - 1, number)[rows].tolist(),
                step[rows].tolist(),
                module[rows].tolist(),
                self._run_ids_on_gpus(module)[rows].tolist(),
                strict=True,
            )
        ]
        columns = self._columns(rows)
        placed = (columns[key] for key in ("process", "thread", "start", "end"))
        name = self._strings.add_all(text or None for text in texts)
        return Ranges(**columns, name=name, style=styles_of_threads(*placed))

    def _modules(self) -> Ranges:
        """Return the executions of programs on CPU devices, each from its first operation to its last.

        They belong to the thread that calls most jitted functions: XLA's threads take turns. A program on the
        devices of several processes has its ``run_id`` in their name, the same on all of them: processes
        begin to record at different executions.
        """
        plane = self._plane
        texts, module = plane.texts("hlo_module")
        run = plane.numbers("run_id")
        rows = np.flatnonzero(self._is_op & (module != NOT_GIVEN) & plane.has("run_id"))
        keys, key = numbered_rows(module[rows], run[rows])
        start, end = plane.start[rows], plane.end[rows]
        first, last = np.full(len(keys), np.iinfo(np.int64).max), np.full(len(keys), np.iinfo(np.int64).min)
        np.minimum.at(first, key, start)
        np.maximum.at(last, key, end)
        jitted = plane.line[plane.matching(lambda name: name.startswith(_JITTED_FUNCTION))]
        line = int(np.bincount(jitted).argmax()) if len(jitted) else None
        order = np.argsort(first, kind="stable")
        columns = {
            "start": first[order],
            "end": last[order],
            "process": np.full(len(keys), self._process),
            "thread": np.full(len(keys), 0 if line is None else self._thread[line]),
        }
        ordinals = self._plane.numbers("device_ordinal")
        name = np.empty(len(keys), np.int64)
        for (number,), part in rows_by_key(keys[order, 0]) if len(keys) else ():
            run_ids = np.full(len(part), NOT_GIVEN)
            own_rows = rows[module[rows] == number]
            program = self._programs.get(int(self._program[own_rows[0]]))
            # The program also runs on devices of other processes.
            if program and len(program.devices) > len(distinct(ordinals[own_rows])):
                run_ids = _run_ids(keys[order[part], 1])
            name[part] = self._strings.add_all(_module_name(texts[number], item) for item in run_ids.tolist())
        return Ranges(**columns, name=name, style=np.full(len(keys), int(Style.START_END)))

    def _run_ids_on_gpus(self, module: Mask) -> Ints:
        """Return the ``run_id`` of programs that also run on GPUs of other processes, shape (events,).

        The call that contains the program's mark gives it; `NOT_GIVEN` for all other events.
        """
        plane = self._plane
        result = np.full(len(plane.start), NOT_GIVEN)
        run_id = plane.numbers("run_id")
        devices = plane.numbers("num_replicas") * plane.numbers("num_partitions")
        is_foreign = plane.has("num_addressable_devices") & (
            devices > plane.numbers("num_addressable_devices")
        )
        calls = np.flatnonzero(is_foreign & plane.has("run_id"))
        for (line,), group in rows_by_key(plane.line[calls]) if len(calls) else ():
            rows = calls[group[np.argsort(plane.start[calls[group]], kind="stable")]]
            marks = np.flatnonzero(module & (plane.line == line))
            at = np.searchsorted(plane.start[rows], plane.start[marks], side="right") - 1
            inside = (at >= 0) & (plane.end[marks] <= plane.end[rows][at])
            result[marks[inside]] = run_id[rows[at[inside]]] & _MAX_RUN_ID
            # The recording may have missed the beginning of the first call.
            if len(marks) > 1 and inside[1] and not inside[0]:
                result[marks[0]] = result[marks[1]] - 1
        return result

    def _launching_operations(self) -> _Executed:
        """Return the operations that launch work on GPUs: calls that follow each other on a thread."""
        rows = np.flatnonzero(self._is_call & (self._op != NOT_GIVEN))
        columns = self._columns(rows)
        order = np.lexsort((columns["start"], columns["thread"]))
        rows, columns = rows[order], {key: values[order] for key, values in columns.items()}
        key = np.stack((columns["thread"], self._op[rows], self._program[rows]))
        begins = np.append(True, np.any(key[:, 1:] != key[:, :-1], axis=0))[: len(rows)]
        first = np.flatnonzero(begins)
        if len(first):
            columns = {name: values[first] for name, values in columns.items()} | {
                "end": np.maximum.reduceat(columns["end"], first)
            }
        correlations, place = numbered(self._kernels.correlation)
        device_of = np.full(len(correlations), NOT_GIVEN)
        device_of[place] = self._kernels.device
        at = np.searchsorted(correlations, self._correlation[rows[first]])
        at = np.minimum(at, len(correlations) - 1)
        device = np.full(len(first), NOT_GIVEN)
        if len(correlations):
            device = np.where(correlations[at] == self._correlation[rows[first]], device_of[at], NOT_GIVEN)
        return self._executed_operations(rows[first], columns, device)

    def _device_operations(self) -> _Executed:
        """Return the operations that CPU devices execute, without those that only run others."""
        plane = self._plane
        rows = np.flatnonzero(self._is_op)
        rows = rows[np.lexsort((-plane.end[rows], plane.start[rows], plane.line[rows]))]
        line, start, end = plane.line[rows], plane.start[rows], plane.end[rows]
        runs_others = np.append((line[1:] == line[:-1]) & (start[1:] < end[:-1]), False)[: len(rows)]
        rows = rows[~runs_others]
        executed = self._executed_operations(rows, self._columns(rows), plane.numbers("device_ordinal")[rows])
        contains = executed.mask_of([item.opcode in CONTAINERS for _, item, _ in executed.operations])
        return executed.take(~contains)

    def _executed_operations(self, rows: Ints, columns: IntColumns, device: Ints) -> _Executed:
        """Look up the operations of executions, and sort these by start."""
        keys, number = numbered_rows(self._program[rows], self._op[rows])
        operations = []
        for program, op in keys.tolist():
            module, name = self._programs.get(program), self._op_texts[op]
            operation = module.operations.get(name, _UNKNOWN_OPERATION) if module else _UNKNOWN_OPERATION
            operations.append(_ProgramOperation(name, operation, module))
        order = by_time(columns["start"], columns["end"])
        return _Executed(columns, operations, number, device).take(order)

    def _operators(self, executed: _Executed) -> Operators:
        items = [
            (name, item if item is not _UNKNOWN_OPERATION else None) for name, item, _ in executed.operations
        ]
        texts = [
            (
                self._strings.add(name or None),
                self._strings.add(item.dims if item else None),
                self._strings.add(item.types if item else None),
                self._strings.add(json.dumps({"flops": item.flops, "bytes": item.bytes}) if item else None),
            )
            for name, item in items
        ]
        table = np.array([*texts, (NO_NAME,) * 4], np.int64)[executed.operation]
        return Operators(
            **executed.columns,
            **{key: np.ascontiguousarray(table[:, at]) for at, key in enumerate(("name", "dims", "types"))},
            values=np.ascontiguousarray(table[:, 3]),
        )

    def _collectives(self, executed: _Executed) -> Collectives:
        """Return the collectives among executions: once for each process, not for each of its devices."""
        communicates = executed.mask_of([item.collective is not None for _, item, _ in executed.operations])
        collectives = executed.take(communicates)
        local = {*self._plane.numbers("global_device_id").tolist()}
        if not self._gpus:
            local |= {*executed.device.tolist()}
        local.discard(NOT_GIVEN)
        pairs, pair = numbered_rows(collectives.operation, collectives.device)
        described, chosen, recorded = [], [], set[tuple[int, str | None]]()
        for number, device in pairs.tolist():
            program = collectives.operations[number].program
            # A program on as many devices as the process has uses these.
            alone = {*program.devices} if program and len(program.devices) == self._gpus else set()
            entry = _CollectiveDescription.of(
                collectives.operations[number], device, local or alone, self._process
            )
            described.append(entry)
            chosen.append(entry.local or (number, entry.communicator) not in recorded)
            recorded.add((number, entry.communicator))
        is_counted = np.array([*chosen, False], bool)[pair]
        collectives, pair = collectives.take(is_counted), pair[is_counted]
        values = np.array(
            [
                (self._strings.add(row.operation), self._strings.add(row.communicator), row.bytes, row.ranks)
                for row in described
            ],
            np.int64,
        ).reshape(-1, 4)[pair]
        operation, communicator, size, ranks = (np.ascontiguousarray(values[:, at]) for at in range(4))
        return Collectives(
            **collectives.columns, operation=operation, communicator=communicator, bytes=size, ranks=ranks
        )


class _CollectiveDescription(msgspec.Struct, frozen=True):
    """A collective of a device; ``local`` if all of its devices belong to one process."""

    operation: str | None
    communicator: str | None
    bytes: int
    ranks: int
    local: bool = False

    @classmethod
    def of(
        cls, executed: _ProgramOperation, device: int, local_ids: set[int], process: int
    ) -> "_CollectiveDescription":
        """Describe a collective, given the devices of the process as far as they are known."""
        _, operation, program = executed
        name = operation.collective
        devices = program.devices if program else ()
        groups = [
            [devices[number] if number < len(devices) else number for number in group]
            for group in operation.groups
            if group
        ] or ([[*devices]] if devices else [])
        group = next((peers for peers in groups if device in peers and device in local_ids), None)
        if group is None and len(groups) == 1:
            group = groups[0]
        if group is None:
            return cls(name, None, NO_BYTES, UNKNOWN_RANKS)
        inside = sorted(local_ids & {*group})
        text = ranks_in_short(np.array(sorted(group))).replace("ranks", "devices", 1)
        input_bytes = sum(shape.bytes for shape in operation.inputs)
        size = (
            input_bytes // len(group) if name in ("ReduceScatter", "AlltoAll", "AlltoAllV") else input_bytes
        )
        if len(inside) == len(group):
            return cls(name, of_one_process(text, process), size or NO_BYTES, len(group), True)
        return cls(name, text, size or NO_BYTES, len(group) // max(len(inside), 1))


def _module_name(program: str, run_id: int) -> str:
    numbered_as = "" if run_id == NOT_GIVEN else f",run_id={run_id}"
    return f"XlaModule:#hlo_module={program}{numbered_as}#"


def _run_ids(run_id: Ints) -> Ints:
    """Return the numbers of a program's executions, in their order, without signs.

    JAX counts the first one, which compiles the program, apart from the others.
    """
    number = run_id & _MAX_RUN_ID
    if len(number) > 1 and not 0 < number[1] - number[0] < len(number):
        number[0] = max(number[1] - 1, 0)
    return number
