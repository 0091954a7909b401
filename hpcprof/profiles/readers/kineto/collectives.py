"""Collectives of a PyTorch trace, from the arguments that Kineto gives NCCL's kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcprof.profiles.collective_operations import PARTS, operation
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import (
    NO_BYTES,
    NO_CORRELATION,
    NO_PEER,
    UNKNOWN_RANKS,
    ApiCalls,
    Collectives,
)

# Bytes of an element, by the names of c10::ScalarType.
_ELEMENT = {
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
    **dict.fromkeys(("Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "UInt16"), 2),
    **dict.fromkeys(("Int", "Float", "UInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "Double", "UInt64", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}


class Recorded(NamedTuple):
    """The record of a collective in the arguments of its kernel."""

    name: str
    correlation: int
    elements_in: int
    elements_out: int
    kind: str | None
    ranks: int
    group: str | None
    even: bool
    peer: int


def recorded(arguments: Mapping[str, Any], correlation: int) -> Recorded | None:
    """Return the record in a kernel's arguments, None if there is none."""
    name = arguments.get("Collective name")
    if not isinstance(name, str) or correlation == NO_CORRELATION:
        return None
    kind, group = arguments.get("dtype"), arguments.get("Process Group Name")
    return Recorded(
        name=name,
        correlation=correlation,
        elements_in=_natural(arguments.get("In msg nelems")),
        elements_out=_natural(arguments.get("Out msg nelems")),
        kind=kind if isinstance(kind, str) else None,
        ranks=_natural(arguments.get("Group size")) or UNKNOWN_RANKS,
        group=group if isinstance(group, str) else None,
        even=arguments.get("In split size", "[]") == "[]",
        peer=_peer(arguments),
    )


def _peer(arguments: Mapping[str, Any]) -> int:
    """Return the partner's rank in the program, which PyTorch records for sends and receives."""
    rank = arguments.get("Dst Rank", arguments.get("Src Rank"))
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < 1 << 31:
        return NO_PEER
    return rank


def _natural(value: object) -> int:
    """Return a count, 0 for anything else. The bytes of a message must fit 63 bits."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 < value < 1 << 56 else 0  # type: ignore[operator,return-value]


def collectives(records: Sequence[Recorded], calls: ApiCalls, strings: StringTable) -> Collectives:
    """Return the collectives whose launch call is recorded, in the order of those calls.

    A process group's name is the same on all its ranks, and two groups never share one.
    """
    launches = dict(zip(calls.correlation.tolist(), range(len(calls)), strict=True))
    found = [
        (launches[record.correlation], name, record)
        for record in records
        if record.correlation in launches and (name := operation(record.name)) is not None
    ]
    found.sort(key=lambda row: calls.start[row[0]])
    call = np.array([row for row, _, _ in found], np.int64)
    return Collectives(
        start=calls.start[call],
        end=calls.end[call],
        process=calls.process[call],
        thread=calls.thread[call],
        operation=strings.add_all(name for _, name, _ in found),
        communicator=strings.add_all(record.group for _, _, record in found),
        bytes=np.array([_message(name, record) for _, name, record in found], np.int64),
        ranks=np.array([record.ranks for _, _, record in found], np.int64),
        peer=np.array([record.peer for _, _, record in found], np.int64),
        comm_peer=np.full(len(found), NO_PEER),
    )


def _message(op: str, record: Recorded) -> int:
    """Return the message as NCCL counts it; `NO_BYTES` if ranks exchange messages of different sizes."""
    width = _ELEMENT.get(record.kind or "")
    elements = record.elements_out if op in ("ReduceScatter", "Scatter") else record.elements_in
    if op == "AlltoAll":
        even = record.even and record.ranks > 0 and elements % record.ranks == 0
        elements = elements // record.ranks if even else 0
    if width is None or not elements or (op in PARTS and not record.even):
        return NO_BYTES
    return elements * width
