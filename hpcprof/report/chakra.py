"""Writes the graph of a run as Chakra execution traces (mlcommons/chakra): one file per rank.

Each operation is a node with what it waits for: operations of its rank as control dependencies, communication
as data dependencies. Collectives have their communicator (``pg_name``) and messages their ends, by which a
simulator joins the ranks. Times are in whole microseconds, and exact in the attributes ``start_ns``,
``duration_ns`` (with waiting) and ``own_ns`` (without).
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from hpcprof.analysis.predict.operation_graph import COMMUNICATION, OperationGraph, operation_graphs
from hpcprof.common.atomic import replacing
from hpcprof.common.errors import HpcprofError
from hpcprof.profiles.collective_operations import operation
from hpcprof.profiles.readers.operations.chakra import (
    ATTRIBUTE,
    BOOL_VAL,
    COLLECTIVES,
    DURATION,
    INT64_VAL,
    NAME,
    NODE_KINDS,
    START,
    STRING_VAL,
    SUFFIX,
    TYPE,
)
from hpcprof.report.trace_events import Exported

_TYPES = {kind: number for number, kind in NODE_KINDS.items()} | {"host": 4, "wait": 4}
_ID, _CONTROL, _DATA = 1, 4, 5
_VERSION = "0.0.4"
_NUMBERS = ("step", "stage", "microbatch", "chunk", "replica")


def export_chakra(
    table: pd.DataFrame, folder: Path, progress: Callable[[Path], None], *, names: bool
) -> Exported:
    """Write a file per rank, ``rank.N.et``; without ``names``, operations have numbers for names.

    Raises HpcprofError if no step has operations of all ranks.
    """
    graphs = operation_graphs(table)
    if not graphs:
        raise HpcprofError("nothing to write: no step has operations of all ranks.")
    if not names:
        known = {name: _numbered(name, at) for at, name in enumerate(sorted(table["name"].unique()))}
        for graph in graphs:
            graph.rows["name"] = graph.rows["name"].map(known)
    begin = table.groupby("step")["start_ns"].min()
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for rank in sorted(table["rank"].unique().tolist()):
        path = folder / f"rank.{rank}{SUFFIX}"
        progress(path)
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.write(_sized(_text(1, _VERSION)))
            for node in _nodes(graphs, rank, begin):
                file.write(_sized(node))
        written.append(path)
    return Exported(written)


def _numbered(name: str, at: int) -> str:
    """Return a name that tells only the direction of a pipeline and the kind of communication."""
    way = "b" if name.lower().startswith("b") else "f"
    kind = operation(name)
    return f"{way}-{kind.lower()}" if kind in ("Send", "Recv") else f"{way}-{kind or 'compute'}-{at}"


def _nodes(graphs: list[OperationGraph], rank: int, begin: pd.Series) -> Iterator[bytes]:
    """Yield the nodes of a rank, step by step; a step waits for the last operation of the one before."""
    steps = sorted((step, graph, at) for graph in graphs for at, step in enumerate(graph.steps.tolist()))
    first, last = 0, None
    for step, graph, column in sorted(steps, key=lambda one: one[0]):
        rows = np.flatnonzero(graph.rows["rank"].to_numpy() == rank)
        number = {
            row: first + at for at, row in enumerate(rows[np.argsort(graph.start[rows, column])].tolist())
        }
        kinds = graph.rows["kind"].to_numpy()
        for row, node in number.items():
            waits = [number[other] for other in graph.before[row].tolist() if other in number]
            talks = [kinds[other] in COMMUNICATION for other in graph.before[row].tolist() if other in number]
            control = [one for one, talk in zip(waits, talks, strict=True) if not talk]
            data = [one for one, talk in zip(waits, talks, strict=True) if talk]
            if not waits and last is not None:
                control.append(last)
            yield _node(graph, row, column, node, control, data, int(begin[step]), step)
        last = number[int(rows[np.argmax(graph.end[rows, column])])]
        first += len(number)


def _node(
    graph: OperationGraph,
    row: int,
    column: int,
    number: int,
    control: list[int],
    data: list[int],
    begin: int,
    step: int,
) -> bytes:
    values = graph.rows.iloc[row]
    start = begin + round(float(graph.start[row, column]))
    duration = round(float(graph.end[row, column] - graph.start[row, column]))
    own = round(float(graph.own[row, column]))
    content = _number(_ID, number) + _text(NAME, str(values["name"]))
    content += _number(TYPE, _TYPES[values["kind"]])
    content += b"".join(_number(_CONTROL, one) for one in control)
    content += b"".join(_number(_DATA, one) for one in data)
    content += _number(START, start // 1000) + _number(DURATION, own // 1000)
    host = values["kind"] in ("host", "wait")
    content += _nested(ATTRIBUTE, _text(1, "is_cpu_op") + _number(BOOL_VAL, int(host)))
    numbers = {"start_ns": start, "duration_ns": duration, "own_ns": own}
    numbers |= {name: int(values[name]) for name in _NUMBERS if name in values and name != "step"}
    numbers["step"] = step
    if values["kind"] in COMMUNICATION:
        numbers["comm_size"] = max(int(values["bytes"]), 0)
        members = np.flatnonzero((graph.group == graph.group[row]) & (graph.group[row] >= 0))
        ranks = graph.rows["rank"].to_numpy()[members].tolist()
        if values["kind"] == "collective":
            op = operation(str(values["name"])) or "AllReduce"
            numbers["comm_type"] = COLLECTIVES.index(op) if op in COLLECTIVES else 0
            group = str(values["group"]) or "-".join(map(str, sorted(set(ranks) or {int(values["rank"])})))
            content += _nested(ATTRIBUTE, _text(1, "pg_name") + _text(STRING_VAL, group))
        else:
            mine = int(values["rank"])
            other = next((one for one in ranks if one != mine), int(values["peer"]))
            sends = values["kind"] == "send"
            numbers |= {
                "comm_src": mine if sends else other,
                "comm_dst": other if sends else mine,
                "comm_tag": 0,
            }
    for name, value in numbers.items():
        content += _nested(ATTRIBUTE, _text(1, name) + _number(INT64_VAL, value))
    return content


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _nested(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _sized(content)


def _text(field: int, text: str) -> bytes:
    return _nested(field, text.encode())


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content
