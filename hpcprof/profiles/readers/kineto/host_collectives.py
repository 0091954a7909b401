"""Collectives that the host carries out, as PyTorch's process groups record them (gloo, MPI, oneCCL).

The work of gloo and MPI is an annotation with the shapes of its tensors. Recent versions record it on the
thread that does the work, earlier ones on that of the call until another thread ends it. oneCCL has an
operator for the call, and one for the wait.
"""

import re
from collections.abc import Mapping
from math import prod
from typing import Any

import msgspec
import numpy as np

from hpcprof.common.decode import lenient_json_list
from hpcprof.profiles.collective_operations import operation
from hpcprof.profiles.columns.unique import distinct
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.kineto.arguments import element_bytes
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import (
    NO_BYTES,
    UNKNOWN_RANKS,
    Collectives,
    IntColumns,
    Ints,
    Mask,
    concatenate,
)

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
    """Return a mask of the works of process groups, which any thread may end, and losses among them.

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
    """Return the collectives that the host carries out, in the order of their starts.

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
    size = {kind: _message(named[kind[0]], texts[kind[1]], texts[kind[2]], group.ranks) for kind in {*kinds}}
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


def _message(op: str, dims: str | None, types: str | None, ranks: int) -> int:
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
