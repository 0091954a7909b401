"""Collectives of a PyTorch trace: of NCCL, from the arguments of kernels and calls, and those of the host.

The kernel of a batch (``batch_isend_irecv``) has no arguments, because PyTorch launches it after all calls of
the batch have returned; only the calls have them (https://github.com/pytorch/pytorch/issues/194693). Those of
oneCCL (XCCL) have none either: the call that launches them has.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np

from hpcprof.common.decode import lenient_json_list
from hpcprof.profiles.collective_operations import ONE_PART_MESSAGES, carries, operation
from hpcprof.profiles.columns.unique import distinct
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.kineto.arguments import element_bytes, number, parsed_object
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import (
    NO_BYTES,
    NO_CORRELATION,
    NO_PEER,
    UNKNOWN_RANKS,
    ApiCalls,
    Collectives,
    IntColumns,
    Ints,
    Mask,
    concatenate,
)

CALL = "record_param_comms"
"""The operator that PyTorch records for each call of a process group, and for each wait."""

_COLLECTIVE = b'"Collective name"'


class CollectiveRecord(NamedTuple):
    """The record of a collective in the arguments of its kernel, or of its call."""

    name: str
    correlation: int = NO_CORRELATION
    elements_in: int = 0
    elements_out: int = 0
    dtype: str | None = None
    ranks: int = UNKNOWN_RANKS
    group: str | None = None
    equal_split: bool = False
    peer: int = NO_PEER
    start: int = 0
    """The start of a kernel, which orders the kernels of a CUDA graph."""


def collective_record(written: bytes, correlation: int = NO_CORRELATION) -> CollectiveRecord | None:
    """Return the record in the arguments of a kernel or a call, None if there is none."""
    arguments = (parsed_object(written) or {}) if _COLLECTIVE in written else {}
    name = arguments.get("Collective name")
    if not isinstance(name, str):
        return None
    dtype, group = arguments.get("dtype"), arguments.get("Process Group Name")
    return CollectiveRecord(
        name=name,
        correlation=correlation,
        elements_in=max(0, _natural_number(arguments.get("In msg nelems"))),  # Bytes must fit 63 bits.
        elements_out=max(0, _natural_number(arguments.get("Out msg nelems"))),
        dtype=dtype if isinstance(dtype, str) else None,
        ranks=_natural_number(arguments.get("Group size")) or UNKNOWN_RANKS,
        group=group if isinstance(group, str) else None,
        equal_split=arguments.get("In split size", "[]") == "[]",
        peer=_natural_number(arguments.get("Dst Rank", arguments.get("Src Rank")), 1 << 31),
    )


def _natural_number(value: object, below: int = 1 << 56) -> int:
    """Return a natural number, for anything else -1, which is `NO_PEER` and `UNKNOWN_RANKS`."""
    value = number(value)  # PyTorch 2.13's tool for annotations of CUDA graphs writes texts.
    return value if type(value) is int and 0 <= value < below else -1


class GroupCall(NamedTuple):
    """A call of a process group on the host, or a wait for one."""

    process: int
    thread: int
    start: int
    end: int
    record: CollectiveRecord


class _Launch(NamedTuple):
    """The launch of a communication kernel; the operation is None if the kernel's name has none."""

    start: int
    correlation: int
    has_record: bool
    operation: str | None


def records_by_operators(
    operators: IntColumns, kernels: IntColumns, communicating: Mask, calls: ApiCalls, strings: StringTable
) -> list[CollectiveRecord]:
    """Return the records of kernels by the operators (``c10d::``) that launch them; none if one has none.

    Before PyTorch 2.2, calls name no collective, and all that NCCL does by messages has one kernel.
    """
    if not communicating.any():
        return []
    numbers = distinct(operators["name"])
    texts = zip(numbers.tolist(), strings.array()[numbers], strict=True)
    names = {number: text for number, text in texts if text.startswith("c10d::") and operation(text)}
    rows = np.flatnonzero(np.isin(operators["name"], [*names]))
    columns = (operators[name][rows].tolist() for name in ("process", "thread", "start", "end", "name"))
    group_calls = [
        GroupCall(process, thread, start, end, CollectiveRecord(names[name]))
        for process, thread, start, end, name in zip(*columns, strict=True)
    ]
    records = batched_records([], group_calls, kernels, communicating, calls, strings)
    launched = [record.correlation for record in records]
    return records if np.isin(kernels["correlation"][communicating], launched).all() else []


def batched_records(
    records: Sequence[CollectiveRecord],
    group_calls: Sequence[GroupCall],
    kernels: IntColumns,
    communicating: Mask,
    calls: ApiCalls,
    strings: StringTable,
) -> list[CollectiveRecord]:
    """Return the records of kernels without one, each with the correlation of its launch.

    A kernel that alone is launched during a call carries out that call. Another carries out a batch: the
    calls of its thread since its previous communication, if nothing was launched during these calls: sends
    and receives, or one collective, of one process group. ``records`` are the given records of kernels,
    ``kernels`` the columns of all kernels, and ``communicating`` is true for the kernels that communicate.
    ``strings`` holds their names.
    """
    if not group_calls:
        return []
    correlation = {record.correlation for record in records}
    rows = np.flatnonzero(communicating & (kernels["correlation"] != NO_CORRELATION))
    kernel_names = strings.array()[kernels["name"][rows]]
    kernel_name = dict(zip(kernels["correlation"][rows].tolist(), kernel_names, strict=True))
    if not kernel_name.keys() - correlation:
        return []
    threads: dict[tuple[int, int], tuple[list[GroupCall], list[_Launch]]] = {}
    for call in sorted(group_calls):
        threads.setdefault((call.process, call.thread), ([], []))[0].append(call)
    launching = np.flatnonzero(np.isin(calls.correlation, [*kernel_name]))
    for row in launching[np.argsort(calls.start[launching], kind="stable")].tolist():
        number, thread = int(calls.correlation[row]), (int(calls.process[row]), int(calls.thread[row]))
        launch = _Launch(int(calls.start[row]), number, number in correlation, operation(kernel_name[number]))
        threads.setdefault(thread, ([], []))[1].append(launch)
    return [record for thread in threads.values() for record in _thread_records(*thread)]


def _thread_records(
    group_calls: Sequence[GroupCall], launches: Sequence[_Launch]
) -> Iterator[CollectiveRecord]:
    starts = [call.start for call in group_calls]
    calls_before = [bisect_right(starts, launch.start) for launch in launches]
    is_during_call = [
        last > 0
        and launch.start < group_calls[last - 1].end
        and operation(group_calls[last - 1].record.name) is not None
        for launch, last in zip(launches, calls_before, strict=True)
    ]
    launches_in_call = Counter(
        last for last, is_during in zip(calls_before, is_during_call, strict=True) if is_during
    )
    first = 0
    for launch, last, is_during in zip(launches, calls_before, is_during_call, strict=True):
        if not launch.has_record and is_during:
            yield from _last_batch(
                [group_calls[last - 1].record] if launches_in_call[last] == 1 else [], launch
            )
        elif not launch.has_record:
            batch = [call.record for call in group_calls[first:last] if call.end <= launch.start]
            yield from _last_batch(batch, launch)
        first = last


def _last_batch(batch: Sequence[CollectiveRecord], launch: _Launch) -> Iterator[CollectiveRecord]:
    """Return the last calls before a launch that its kernel can carry out and that are of one group."""
    group = batch[-1].group if batch else None

    def is_of_batch(record: CollectiveRecord) -> bool:
        name = operation(record.name)
        return name is not None and carries(launch.operation, name) and record.group == group

    members = list(takewhile(is_of_batch, reversed(batch)))
    return (record._replace(correlation=launch.correlation) for record in reversed(members))


def collectives(records: Sequence[CollectiveRecord], calls: ApiCalls, strings: StringTable) -> Collectives:
    """Return the collectives whose launch call is recorded, in the order of those calls and their kernels.

    A process group's name is the same on all its ranks, and two groups never share one.
    """
    launches = dict(zip(calls.correlation.tolist(), range(len(calls)), strict=True))
    launches.pop(NO_CORRELATION, None)
    matched = [
        (launches[record.correlation], name, record)
        for record in records
        if record.correlation in launches and (name := operation(record.name)) is not None
    ]
    matched.sort(key=lambda row: (calls.start[row[0]], row[2].start))
    call = np.array([row for row, _, _ in matched], np.int64)
    return Collectives(
        start=calls.start[call],
        end=calls.end[call],
        process=calls.process[call],
        thread=calls.thread[call],
        operation=strings.add_all(name for _, name, _ in matched),
        communicator=strings.add_all(record.group for _, _, record in matched),
        bytes=np.array([_message(name, record) for _, name, record in matched], np.int64),
        ranks=np.array([record.ranks for _, _, record in matched], np.int64),
        peer=np.array([record.peer for _, _, record in matched], np.int64),
    )


def _message(op: str, record: CollectiveRecord) -> int:
    """Return the message as NCCL counts it; `NO_BYTES` if ranks exchange messages of different sizes."""
    width = element_bytes(record.dtype)
    elements = record.elements_out if op in ("ReduceScatter", "Scatter") else record.elements_in
    if op == "AlltoAll":
        is_equal = record.equal_split and record.ranks > 0 and elements % record.ranks == 0
        elements = elements // record.ranks if is_equal else 0
    if not width or not elements or (op in ONE_PART_MESSAGES and not record.equal_split):
        return NO_BYTES
    return elements * width


_WORK = re.compile(r"(?:gloo|mpi|ucc):(\w+)")
_CALL = re.compile(r"(?:oneccl_bindings_for_pytorch|torch_ccl)::(\w+)")
_WAIT = re.compile(r"(?:oneccl_bindings_for_pytorch|torch_ccl)::wait::(?:\w+::)?(\w+)")
_KNOWN_BACKENDS = frozenset({"gloo", "mpi", "ucc", "nccl", "ccl", "xccl", "fake", "undefined"})
# As in "cpu:gloo,cuda:nccl".
_BACKEND = re.compile(r"\b(?:gloo|mpi|ucc|ccl)\b")


class ProcessGroup(msgspec.Struct, frozen=True):
    """The process group of all collectives; if there are several, it has no name and no size."""

    name: str | None = None
    ranks: int = UNKNOWN_RANKS


def only_group(distributed: Mapping[str, Any]) -> ProcessGroup:
    """Return the one process group whose collectives the host carries out, given ``distributedInfo``.

    The events do not name their group.
    """
    groups = distributed.get("pg_config")
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        return ProcessGroup()
    groups_of_backend = [group for group in groups if _BACKEND.search(str(group.get("backend_config")))]
    if len(groups_of_backend) != 1 or distributed.get("pg_count", len(groups)) != len(groups):
        return ProcessGroup()
    name, size = groups_of_backend[0].get("pg_name"), groups_of_backend[0].get("pg_size")
    if not isinstance(name, str):
        return ProcessGroup()
    return ProcessGroup(name, size if isinstance(size, int) and 0 < size < 1 << 31 else UNKNOWN_RANKS)


def works(name: Ints, distributed: Mapping[str, Any], strings: StringTable) -> tuple[Mask, list[Loss]]:
    """Return a mask of the works of process groups (any thread may end them), and losses of their backends.

    ``distributed`` is the trace's ``distributedInfo``, which names the backends of all groups. Devices of a
    backend that is not read (``hccl``) carry out its work.
    """
    groups = distributed.get("pg_config")
    configured = [distributed, *(groups if isinstance(groups, list) else ())]
    texts = (
        str(group.get(key))
        for group in configured
        if isinstance(group, dict)
        for key in ("backend", "backend_config")
    )
    backends = {part.rpartition(":")[2] for text in texts for part in text.split(",")} - _KNOWN_BACKENDS
    work, lost = np.isin(name, [*_operations(name, _WORK, strings)]), {}
    for backend in sorted(backends):
        unread = np.isin(name, [*_operations(name, re.compile(re.escape(backend) + r":(\w+)"), strings)])
        work, lost[backend] = work | unread, np.count_nonzero(unread)
    return work, losses(LossKind.CATEGORY, Subject.COLLECTIVE, lost)


def host_collectives(
    ranges: IntColumns, operators: IntColumns, group: ProcessGroup, strings: StringTable
) -> Collectives:
    """Return the collectives that the host carries out (gloo, MPI, oneCCL), in the order of their starts.

    The work of gloo and MPI is an annotation with the shapes of its tensors. Recent versions record it on the
    thread that does the work, earlier ones on that of the call until another thread ends it. oneCCL has an
    operator for the call, and one for the wait.

    ``ranges`` and ``operators`` are their columns with the shapes and types of the inputs; ``strings`` holds
    their texts, and receives the names of operations and the group.
    """
    works = _collectives(ranges, ranges["end"], _WORK, group, strings)
    # PyTorch before 1.12 writes works as operators.
    early = _collectives(operators, operators["end"], _WORK, group, strings)
    calls = _collectives(operators, _ends_of_waits(operators, strings), _CALL, group, strings)
    collectives = concatenate(Collectives, (works, early, calls))
    return collectives.take(np.argsort(collectives.start, kind="stable"))


def _operations(name: Ints, pattern: re.Pattern[str], strings: StringTable) -> dict[int, str]:
    texts = strings.array()
    match = {number: pattern.fullmatch(texts[number]) for number in distinct(name).tolist()}
    return {number: op for number, text in match.items() if text and (op := operation(text[1]))}


def _collectives(
    columns: IntColumns, end: Ints, pattern: re.Pattern[str], group: ProcessGroup, strings: StringTable
) -> Collectives:
    named = _operations(columns["name"], pattern, strings)
    rows = np.flatnonzero(np.isin(columns["name"], [*named]))
    texts = [*strings.array().tolist(), None]
    kinds = list(zip(*(columns[name][rows].tolist() for name in ("name", "dims", "types")), strict=True))
    size = {
        kind: _message_of_work(named[kind[0]], texts[kind[1]], texts[kind[2]], group.ranks)
        for kind in {*kinds}
    }
    return Collectives(
        start=columns["start"][rows],
        end=end[rows],
        process=columns["process"][rows],
        thread=columns["thread"][rows],
        operation=strings.add_all(named[name] for name, _, _ in kinds),
        communicator=np.full(len(rows), strings.add(group.name)),
        bytes=np.array([size[kind] for kind in kinds], np.int64),
        ranks=np.full(len(rows), group.ranks),
    )


def _ends_of_waits(operators: IntColumns, strings: StringTable) -> Ints:
    """Return the time at which the result of each call is there: the end of its wait, else of the call.

    The waits of an operation on a thread belong to its calls in the same order, if there are as many.
    """
    calls, waits = (_by_operation(operators, pattern, strings) for pattern in (_CALL, _WAIT))
    start, end = operators["start"], operators["end"]
    end = end.copy() if waits else end
    for thread, rows in calls.items():
        waited = waits.get(thread, [])
        if len(waited) == len(rows) and np.all(start[waited] >= start[rows]):
            end[rows] = np.maximum(end[rows], end[waited])
    result: Ints = end
    return result


def _by_operation(
    operators: IntColumns, pattern: re.Pattern[str], strings: StringTable
) -> dict[tuple[int, int, str], list[int]]:
    """Return the rows that a pattern matches by process, thread and operation, in the order of time."""
    named = _operations(operators["name"], pattern, strings)
    rows = np.flatnonzero(np.isin(operators["name"], [*named]))
    rows_by_name: dict[tuple[int, int, str], list[int]] = {}
    for row in rows[np.argsort(operators["start"][rows], kind="stable")].tolist():
        process, thread, name = (int(operators[column][row]) for column in ("process", "thread", "name"))
        rows_by_name.setdefault((process, thread, named[name]), []).append(row)
    return rows_by_name


def _message_of_work(op: str, dims: str | None, types: str | None, ranks: int) -> int:
    """Return the message as NCCL counts it, given the inputs of a work; `NO_BYTES` if they do not tell."""
    shapes, kinds = lenient_json_list(dims), lenient_json_list(types)
    if not shapes or len(shapes) != len(kinds):
        return NO_BYTES
    if op in ("Scatter", "ReduceScatter"):
        # The root, or each rank, gives a tensor for each rank.
        shapes = shapes[:1]
    sizes = [_bytes(shape, kind) for shape, kind in zip(shapes, kinds, strict=False)]
    whole = sum(sizes) if all(sizes) else 0
    if op == "AlltoAll":
        whole = whole // ranks if ranks > 0 and whole % ranks == 0 else 0
    return whole if 0 < whole < 1 << 62 else NO_BYTES


def _bytes(shape: object, kind: object) -> int:
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        return 0
    sizes: list[int] = shape
    return prod(sizes) * element_bytes(kind)
