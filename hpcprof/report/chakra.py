"""Writes the graph of a run as Chakra execution traces (mlcommons/chakra): one file per rank.

Each operation is a node with what it waits for: operations of its rank as control dependencies, communication
as data dependencies. Collectives have their communicator (``pg_name``) and messages their ends, by which a
simulator joins the ranks. Times are in whole microseconds, and exact in the attributes ``start_ns``,
``duration_ns`` (with waiting) and ``own_ns`` (without).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from hpcprof.analysis.predict.operation_graph import (
    COMMUNICATION,
    OperationGraph,
    operation_graphs,
    topological_order,
)
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
from hpcprof.report.perfetto.encoding import varint
from hpcprof.report.trace_events import Exported

_NODE_TYPES = {kind: number for number, kind in NODE_KINDS.items()} | {"host": 4, "wait": 4}
_ID, _CONTROL, _DATA = 1, 4, 5
_SCHEMA_VERSION = "0.0.4"
_POSITION_COLUMNS = ("step", "stage", "microbatch", "chunk", "replica")


def export_chakra(
    table: pd.DataFrame, folder: Path, progress: Callable[[Path], None], *, names: bool
) -> Exported:
    """Write a file per rank, ``rank.N.et``; without ``names``, operations have numbers for names.

    Raises HpcprofError if no step has operations of all ranks.
    """
    graphs = graphs_to_write(table)
    if not names:
        numbers = {name: _anonymous_name(name, at) for at, name in enumerate(sorted(table["name"].unique()))}
        for graph in graphs:
            graph.rows["name"] = graph.rows["name"].map(numbers)
    begin = table.groupby("step")["start_ns"].min()
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for rank in sorted(table["rank"].unique().tolist()):
        path = folder / f"rank.{rank}{SUFFIX}"
        progress(path)
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.write(_sized_field(_text(1, _SCHEMA_VERSION)))
            for node in rank_operations(graphs, rank):
                file.write(_sized_field(_node(node, begin)))
        written.append(path)
    return Exported(written)


def graphs_to_write(table: pd.DataFrame) -> list[OperationGraph]:
    """Return the graphs of a run's operations; raises HpcprofError if there are none."""
    if graphs := operation_graphs(table):
        return graphs
    raise HpcprofError("nothing to write: no step has operations of all ranks.")


def _anonymous_name(name: str, at: int) -> str:
    """Return a name that tells only the direction of a pipeline and the kind of communication."""
    direction = "b" if name.lower().startswith("b") else "f"
    kind = operation(name)
    return (
        f"{direction}-{kind.lower()}" if kind in ("Send", "Recv") else f"{direction}-{kind or 'compute'}-{at}"
    )


class RankOperation(msgspec.Struct, frozen=True, eq=False):
    """An operation of a rank in a step: its row and column in a graph, and the numbers of what it waits for.

    ``control`` has operations that compute, and ``data`` those that communicate.
    """

    graph: OperationGraph
    row: int
    column: int
    number: int
    control: Sequence[int]
    data: Sequence[int]


def rank_operations(graphs: Sequence[OperationGraph], rank: int) -> Iterator[RankOperation]:
    """Yield the operations of a rank, step by step, so that each follows what it waits for.

    A step waits for the last operation of the one before.
    """
    steps = sorted(
        (step, number, at) for number, part in enumerate(graphs) for at, step in enumerate(part.steps)
    )
    first, last = 0, None
    for _, at, column in steps:
        graph = graphs[at]
        rows = np.flatnonzero(graph.rows["rank"].to_numpy() == rank)
        ordered = topological_order(
            {row: set(graph.before[row].tolist()) & {*rows.tolist()} for row in rows.tolist()}
        )
        number = {row: first + place for place, row in enumerate(ordered)}
        talks = graph.rows["kind"].isin(COMMUNICATION).to_numpy()
        for row, node in number.items():
            waits = [other for other in graph.before[row].tolist() if other in number]
            control = [number[other] for other in waits if not talks[other]]
            if not waits and last is not None:
                control.append(last)
            yield RankOperation(graph, row, column, node, control, [number[o] for o in waits if talks[o]])
        last = number[int(rows[np.argmax(graph.end[rows, column])])]
        first += len(number)


def _node(node: RankOperation, begin: pd.Series) -> bytes:
    graph, row, column = node.graph, node.row, node.column
    values, step = graph.rows.iloc[row], int(graph.steps[column])
    start = int(begin[step]) + round(float(graph.start[row, column]))
    duration = round(float(graph.end[row, column] - graph.start[row, column]))
    own_ns = round(float(graph.own[row, column]))
    content = _number(_ID, node.number) + _text(NAME, str(values["name"]))
    content += _number(TYPE, _NODE_TYPES[values["kind"]])
    content += b"".join(_number(_CONTROL, control) for control in node.control)
    content += b"".join(_number(_DATA, datum) for datum in node.data)
    content += _number(START, start // 1000) + _number(DURATION, own_ns // 1000)
    host = values["kind"] in ("host", "wait")
    content += _nested_field(ATTRIBUTE, _text(1, "is_cpu_op") + _number(BOOL_VAL, int(host)))
    numbers = {"start_ns": start, "duration_ns": duration, "own_ns": own_ns}
    numbers |= {name: int(values[name]) for name in _POSITION_COLUMNS if name in values and name != "step"}
    numbers["step"] = step
    if values["kind"] in COMMUNICATION:
        numbers["comm_size"] = max(int(values["bytes"]), 0)
        members = np.flatnonzero((graph.group == graph.group[row]) & (graph.group[row] >= 0))
        ranks = graph.rows["rank"].to_numpy()[members].tolist()
        if values["kind"] == "collective":
            op = operation(str(values["name"])) or "AllReduce"
            numbers["comm_type"] = COLLECTIVES.index(op) if op in COLLECTIVES else 0
            group = str(values["group"]) or "-".join(map(str, sorted(set(ranks) or {int(values["rank"])})))
            content += _nested_field(ATTRIBUTE, _text(1, "pg_name") + _text(STRING_VAL, group))
        else:
            own_rank = int(values["rank"])
            other = next((rank for rank in ranks if rank != own_rank), int(values["peer"]))
            sends = values["kind"] == "send"
            numbers |= {
                "comm_src": own_rank if sends else other,
                "comm_dst": other if sends else own_rank,
                "comm_tag": 0,
            }
    for name, value in numbers.items():
        content += _nested_field(ATTRIBUTE, _text(1, name) + _number(INT64_VAL, value))
    return content


def _number(field: int, value: int) -> bytes:
    # Numbers below 0 are encoded with 64 bits.
    return varint(field << 3) + varint(value & (1 << 64) - 1)


def _nested_field(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + _sized_field(content)


def _text(field: int, text: str) -> bytes:
    return _nested_field(field, text.encode())


def _sized_field(content: bytes) -> bytes:
    return varint(len(content)) + content
