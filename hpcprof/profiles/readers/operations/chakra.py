"""Reads execution traces of Chakra (mlcommons, ``et_def.proto``): one file per rank, one node per operation.

A file is a sequence of messages of Protocol Buffers with their lengths before them: `GlobalMetadata`, then
`Node`. Times are whole microseconds; the attributes ``start_ns`` and ``duration_ns``, which hpcprof writes,
are exact.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.readers.declaration import rank_from_name
from hpcprof.profiles.readers.xplane.wire import Damage, Field, fields_of, varint

SUFFIX = ".et"
NODE_KINDS = {4: "compute", 5: "send", 6: "recv", 7: "collective"}
COLLECTIVES = (
    *("AllReduce", "Reduce", "AllGather", "Gather", "Scatter", "Broadcast"),
    *("AlltoAll", "ReduceScatter", "ReduceScatter", "Barrier"),
)
"""The collectives of `CollectiveCommType` by their numbers; ReduceScatter has two."""

NAME, TYPE, START, DURATION, ATTRIBUTE = 2, 3, 6, 7, 10
"""Fields of a node."""
DOUBLE_VAL, INT32_VAL, INT64_VAL, UINT64_VAL, BOOL_VAL, STRING_VAL = 3, 7, 9, 13, 27, 29
"""Fields of an attribute, whose name is field 1."""


def read_rows(path: Path) -> pd.DataFrame:
    """Return the operations of a trace, with the columns of a table of operations.

    The rank is that in the name of the file. Raises DamagedInput if the file is no trace, or has no times.
    """
    data = path.read_bytes()
    try:
        nodes = [_node(data, begin, end) for begin, end in [*_messages(data)][1:]]
    except (Damage, struct.error, UnicodeDecodeError):
        raise DamagedInput(f"{path} is not a Chakra execution trace, or is cut off.") from None
    rows: pd.DataFrame = pd.DataFrame([node for node in nodes if node])
    if not len(rows) or not rows["duration_ns"].any():
        raise DamagedInput(f"{path} has no operations with times.")
    if len(rows) > 1 and not rows["start_ns"].any():
        raise DamagedInput(f"{path} has durations of operations, but no time at which one starts.")
    rows["rank"] = rank_from_name(path.with_suffix("")) or 0
    return rows


def _messages(data: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(data):
        size, at = varint(data, at, len(data))
        if at + size > len(data):
            raise Damage
        yield at, at + size
        at += size


def _node(data: bytes, begin: int, end: int) -> dict[str, object] | None:
    row: dict[str, object] = {"name": "", "step": 0, "start_ns": 0, "duration_ns": 0}
    kind = 0
    attributes: dict[str, object] = {}
    for field in fields_of(data, begin, end):
        if field.number == NAME and field.is_part:
            row["name"] = data[field.value : field.end].decode()
        elif field.number == TYPE:
            kind = field.value
        elif field.number == START:
            row["start_ns"] = 1000 * field.value
        elif field.number == DURATION:
            row["duration_ns"] = 1000 * field.value
        elif field.number == ATTRIBUTE and field.is_part:
            attributes |= _attribute(data, field)
    if kind not in NODE_KINDS:
        return None
    row["kind"] = "host" if attributes.get("is_cpu_op") else NODE_KINDS[kind]
    for name in ("start_ns", "duration_ns", "step", "stage", "microbatch", "chunk", "replica"):
        row[name] = attributes.get(name, row.get(name, -1))
    row["bytes"] = attributes.get("comm_size", -1)
    row["group"] = str(attributes.get("pg_name", "")) if kind == 7 else ""
    row["peer"] = attributes.get({5: "comm_dst", 6: "comm_src"}.get(kind, ""), -1)
    if not row["name"] and kind == 7:
        number = attributes.get("comm_type", 0)
        row["name"] = COLLECTIVES[number] if isinstance(number, int) and number < len(COLLECTIVES) else ""
    return row


def _attribute(data: bytes, part: Field) -> dict[str, object]:
    name, value = "", None  # type: str, object
    for field in fields_of(data, part.value, part.end):
        if field.number == 1 and field.is_part:
            name = data[field.value : field.end].decode()
        elif field.number == STRING_VAL and field.is_part:
            value = data[field.value : field.end].decode()
        elif field.number == DOUBLE_VAL:
            value = struct.unpack("<d", struct.pack("<Q", field.value & ((1 << 64) - 1)))[0]
        elif not field.is_part and field.number in (INT32_VAL, INT64_VAL, 11, UINT64_VAL, BOOL_VAL):
            value = field.value if field.value < 1 << 63 else field.value - (1 << 64)
    return {name: value}
