"""Writes the graph of a run as a GOAL schedule, which LogGOPSim and ATLAHS simulate on a network.

Each rank has computing (``calc``, in ns) and messages with what they wait for. A collective becomes messages
in dissemination order (Hensgen, Finkel and Manber, 1988): in round k each rank sends to the rank 2^k further,
so that all wait for all. Its rounds share the bytes that the best algorithms send.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from hpcprof.analysis.predict.network import operation_of, volume
from hpcprof.analysis.predict.operation_graph import COMMUNICATION, MESSAGES, OperationGraph
from hpcprof.common.atomic import replacing
from hpcprof.report.chakra import RankOperation, graphs_to_write, rank_operations
from hpcprof.report.trace_events import Exported

_MAX_ROUNDS = 32
"""Number of tags of a collective: one per round."""


def export_goal(table: pd.DataFrame, folder: Path, progress: Callable[[Path], None]) -> Exported:
    """Write ``schedule.goal``; ranks are numbered from 0 in their order.

    Raises HpcprofError if no step has operations of all ranks.
    """
    graphs = graphs_to_write(table)
    ranks = sorted(table["rank"].unique().tolist())
    path = folder / "schedule.goal"
    folder.mkdir(parents=True, exist_ok=True)
    progress(path)
    number = {rank: at for at, rank in enumerate(ranks)}
    with replacing(path) as temporary, temporary.open("w", encoding="ascii") as file:
        file.write(f"num_ranks {len(ranks)}\n")
        for rank in ranks:
            file.write(f"\nrank {number[rank]} {{\n")
            file.writelines(f"{line}\n" for line in _ScheduleLines(graphs, rank, number))
            file.write("}\n")
    return Exported([path])


class _ScheduleLines:
    """The lines of a rank; labels count from 1."""

    def __init__(self, graphs: Sequence[OperationGraph], rank: int, number: dict[int, int]) -> None:
        self._graphs, self._rank, self._number = graphs, rank, number
        self._label = 0

    def __iter__(self) -> Iterator[str]:
        last: dict[int, int] = {}  # the label of each node's end
        for node in rank_operations(self._graphs, self._rank):
            waits = [last[other] for other in (*node.control, *node.data)]
            yield from self._operation(node, waits)
            last[node.number] = self._label

    def _operation(self, node: RankOperation, waits: list[int]) -> Iterator[str]:
        graph, row = node.graph, node.row
        kind = graph.rows["kind"].iat[row]
        group = int(graph.group[row])
        members = np.flatnonzero(graph.group == group) if group >= 0 else np.array([row])
        ranks = sorted({self._number[rank] for rank in graph.rows["rank"].to_numpy()[members].tolist()})
        size = max(int(graph.rows["bytes"].to_numpy()[row]), 1)
        own_number = self._number[self._rank]
        if len(ranks) > 1 and kind in MESSAGES:
            (other,) = (rank for rank in ranks if rank != own_number)
            verb = f"send {size}b to {other}" if kind == "send" else f"recv {size}b from {other}"
            yield from self._line(f"{verb} tag {_MAX_ROUNDS * group}", waits)
            return
        if len(ranks) > 1:
            rounds = (len(ranks) - 1).bit_length()
            op = operation_of(str(graph.rows["name"].iat[row]), str(kind))
            part = max(round(size * volume(op, len(ranks)) / rounds), 1)
            place = ranks.index(own_number)
            for at in range(rounds):
                distance = 1 << at
                receiver, source = (ranks[(place + way) % len(ranks)] for way in (distance, -distance))
                tag = _MAX_ROUNDS * group + at
                yield from self._line(f"send {part}b to {receiver} tag {tag}", waits)
                yield from self._line(f"recv {part}b from {source} tag {tag}", waits)
                waits = [self._label - 1, self._label]
        own_ns = 0 if kind in COMMUNICATION else round(float(graph.own[row, node.column]))
        yield from self._line(f"calc {own_ns}", waits)

    def _line(self, text: str, waits: Sequence[int]) -> Iterator[str]:
        self._label += 1
        yield f"l{self._label}: {text}"
        for other in waits:
            yield f"l{self._label} requires l{other}"
