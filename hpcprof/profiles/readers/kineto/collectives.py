"""Collectives of a PyTorch trace, from the arguments that Kineto gives NCCL's kernels and PyTorch's calls.

The kernel of a batch (``batch_isend_irecv``) has no arguments, because PyTorch launches it after all calls of
the batch have returned; only the calls have them (https://github.com/pytorch/pytorch/issues/194693). Those of
oneCCL (XCCL) have none either: the call that launches them has.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from hpcprof.profiles.collective_operations import ONE_PART_MESSAGES, carries, operation
from hpcprof.profiles.columns.unique import distinct
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
    Mask,
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
    kind: str | None = None
    ranks: int = UNKNOWN_RANKS
    group: str | None = None
    even: bool = False
    peer: int = NO_PEER
    start: int = 0
    """The start of a kernel, which orders the kernels of a CUDA graph."""


def collective_record(written: bytes, correlation: int = NO_CORRELATION) -> CollectiveRecord | None:
    """Return the record in the arguments of a kernel or a call, None if there is none."""
    arguments = (parsed_object(written) or {}) if _COLLECTIVE in written else {}
    name = arguments.get("Collective name")
    if not isinstance(name, str):
        return None
    kind, group = arguments.get("dtype"), arguments.get("Process Group Name")
    return CollectiveRecord(
        name=name,
        correlation=correlation,
        elements_in=max(0, _natural_number(arguments.get("In msg nelems"))),  # Bytes must fit 63 bits.
        elements_out=max(0, _natural_number(arguments.get("Out msg nelems"))),
        kind=kind if isinstance(kind, str) else None,
        ranks=_natural_number(arguments.get("Group size")) or UNKNOWN_RANKS,
        group=group if isinstance(group, str) else None,
        even=arguments.get("In split size", "[]") == "[]",
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


def by_operators(
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
    carried = dict(zip(kernels["correlation"][rows].tolist(), kernel_names, strict=True))
    if not carried.keys() - correlation:
        return []
    threads: dict[tuple[int, int], tuple[list[GroupCall], list[_Launch]]] = {}
    for call in sorted(group_calls):
        threads.setdefault((call.process, call.thread), ([], []))[0].append(call)
    launching = np.flatnonzero(np.isin(calls.correlation, [*carried]))
    for row in launching[np.argsort(calls.start[launching], kind="stable")].tolist():
        number, thread = int(calls.correlation[row]), (int(calls.process[row]), int(calls.thread[row]))
        launch = _Launch(int(calls.start[row]), number, number in correlation, operation(carried[number]))
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
        last for last, within in zip(calls_before, is_during_call, strict=True) if within
    )
    first = 0
    for launch, last, within in zip(launches, calls_before, is_during_call, strict=True):
        if not launch.has_record and within:
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
    width = element_bytes(record.kind)
    elements = record.elements_out if op in ("ReduceScatter", "Scatter") else record.elements_in
    if op == "AlltoAll":
        even = record.even and record.ranks > 0 and elements % record.ranks == 0
        elements = elements // record.ranks if even else 0
    if not width or not elements or (op in ONE_PART_MESSAGES and not record.even):
        return NO_BYTES
    return elements * width
