"""The unit that more ranks repeat: a rank, or the stages of one pipeline, with the operations of a step.

1. Ranks that send each other messages and have stages are one unit, else each rank is a unit.
2. Operations of all units that have stage, name and number in common are one operation of the unit. Their
   times in all units and steps are its sample. The unit with most operations is the template.
3. A collective joins operations of one unit, of all units, or of a subset of the units. Subsets in two
   orthogonal directions are a grid of processes; ``keep`` gives the meaning of other subsets.
4. A message between units comes from a neighbour.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pandas as pd

from hpcprof.analysis.predict.operation_graph import MESSAGES, OperationGraph, operation_graphs
from hpcprof.common.errors import UsageError
from hpcprof.profiles.timeline import Floats, Ints

_KEY = ["stage", "name", "number"]


class Span(Enum):
    """The units that an operation of communication joins."""

    UNIT = "the stages of a pipeline"
    ALL = "all units"
    NEAR = "neighbouring units"
    FAR = "units at equal distances"
    KEPT = "units of a group that keeps its size"
    NEIGHBOUR = "two units"


@dataclass(frozen=True)
class Joint:
    """Operations of a unit that wait for each other and for those of other units.

    ``ranks`` is the number of ranks of the communicator; ``offset`` is the distance of the unit that sends.
    """

    keys: tuple[int, ...]
    span: Span
    ranks: int
    offset: int = 0


@dataclass(frozen=True, eq=False)
class Unit:
    """The operations of a unit in a step."""

    keys: pd.DataFrame
    """One row per operation: stage, name, number, kind, bytes."""
    own: Floats
    lag: Floats
    """Time after the arrival of the last peer, plus the delay after the predecessors, in ns; NaN where a
    unit does not have the operation; shape (operations, units, steps).
    """
    before: Sequence[Ints]
    """The operations of the same unit that each one waits for."""
    joints: tuple[Joint, ...]
    ranks: int
    """The number of ranks of a unit."""
    step_ns: Floats
    """The measured time of each step; shape (steps,)."""

    @property
    def units(self) -> int:
        """The number of measured units."""
        return int(self.own.shape[1])

    @property
    def mesh(self) -> dict[str, int]:
        """The extent of the mesh in each direction."""
        stages = int(self.keys["stage"].nunique())
        fixed_ranks = max((item.ranks for item in self.joints if item.span is Span.KEPT), default=1)
        grid = [
            next((item.ranks for item in self.joints if item.span is span), 0)
            for span in (Span.NEAR, Span.FAR)
        ]
        if all(grid):
            return {"rows": grid[1], "columns": grid[0]}
        mesh = {"pipeline": stages, "tensor": self.ranks // stages} if self.ranks > 1 else {}
        return {
            "data": self.units // fixed_ranks,
            **mesh,
            **({"kept": fixed_ranks} if fixed_ranks > 1 else {}),
        }


def unit_of(table: pd.DataFrame, keep: int = 1) -> Unit:
    """Return the unit of a table of operations; a group of ``keep`` ranks does not grow with the ranks.

    Raises UsageError if no step has operations of all ranks, or the mesh is ambiguous.
    """
    graphs = operation_graphs(table)
    if not graphs:
        raise UsageError("nothing can be predicted: no step has operations of all ranks.")
    graph = max(graphs, key=lambda item: len(item.steps))
    rows = graph.rows
    ranks = np.unique(rows["rank"].to_numpy())
    staged = bool(
        (rows["stage"] >= 0).all() and rows["kind"].isin(MESSAGES).any() and rows["stage"].nunique() > 1
    )
    # Without messages, replicas of the table are only ranks.
    unit = pd.factorize(rows["replica"] if staged else rows["rank"], sort=True)[0]
    keys = rows.assign(unit=unit, stage=rows["stage"] if staged else 0)
    keys["number"] = keys.groupby([*_KEY[:2], "unit"]).cumcount() if staged else keys["number"]
    index = pd.MultiIndex.from_frame(keys[_KEY])
    fullest = int(keys.groupby("unit").size().idxmax())
    template = np.flatnonzero(unit == fullest)
    template = template[np.argsort(np.median(graph.start[template], axis=1), kind="stable")]
    position = {key: at for at, key in enumerate(index[template])}
    place = np.array([position.get(key, -1) for key in index])
    shape = (len(template), int(unit.max()) + 1, len(graph.steps))
    durations, lag = np.full(shape, np.nan), np.full(shape, np.nan)
    has_place = place >= 0
    durations[place[has_place], unit[has_place]] = graph.own[has_place]
    lag[place[has_place], unit[has_place]] = _lags(graph, unit, table)[has_place]
    at = {row: int(place[row]) for row in template.tolist()}
    before = [
        np.array([at[other] for other in graph.before[row].tolist() if other in at], np.int64)
        for row in template.tolist()
    ]
    joints = _joints(graph, unit, place, fullest, keep)
    return Unit(
        keys=keys.iloc[template][[*_KEY, "kind", "bytes"]].reset_index(drop=True),
        own=durations,
        lag=lag,
        before=before,
        joints=tuple(joints),
        ranks=round(len(ranks) / shape[1]) * _stride(ranks),
        step_ns=_periods(graph, table),
    )


def _consecutive(graph: OperationGraph) -> bool:
    return len(graph.steps) > 1 and bool(np.all(np.diff(graph.steps) == 1))


def _periods(graph: OperationGraph, table: pd.DataFrame) -> Floats:
    """Return the time of each step: to the beginning of the next one, where the steps follow each other."""
    if not _consecutive(graph):
        return graph.measured
    begin = _begins(graph, table)
    return np.append(np.diff(begin), graph.measured[-1])


def _begins(graph: OperationGraph, table: pd.DataFrame) -> Floats:
    return table.groupby("step")["start_ns"].min().reindex(graph.steps).to_numpy(float)


def _lags(graph: OperationGraph, unit: Ints, table: pd.DataFrame) -> Floats:
    """Return the delay of each operation after what it waits for; shape (operations, steps).

    The first ones of a step wait for the last ones of their unit in the step before.
    """
    lag = np.empty_like(graph.start)
    previous = np.zeros((int(unit.max()) + 1, len(graph.steps)))
    if _consecutive(graph):
        begin = _begins(graph, table)
        for number in range(len(previous)):
            end = graph.end[unit == number].max(axis=0) + begin
            previous[number, 1:] = end[:-1] - begin[1:]
        previous[:, 0] = np.median(previous[:, 1:], axis=1)
    for row, rows in enumerate(graph.before):
        ready = graph.end[rows].max(axis=0) if len(rows) else previous[unit[row]]
        lag[row] = graph.start[row] - ready
    return np.maximum(lag, 0.0)


def _joints(graph: OperationGraph, unit: Ints, place: Ints, template: int, keep: int) -> list[Joint]:
    units = int(unit.max()) + 1
    kind = graph.rows["kind"].to_numpy()
    subsets: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    sets: list[tuple[tuple[int, ...], tuple[int, ...], int, int]] = []
    for rows in graph.members:
        members = tuple(sorted(set(unit[rows].tolist())))
        if 1 < len(members) < units and kind[rows[0]] not in MESSAGES:
            subsets.setdefault(members, set())
        if template not in members:
            continue
        keys = tuple(sorted({int(place[row]) for row in rows.tolist() if place[row] >= 0}))
        offset = 0
        if kind[rows[0]] in MESSAGES and len(members) == 2:
            receiver = next(row for row in rows.tolist() if kind[row] == "recv")
            sender = next(row for row in rows.tolist() if kind[row] == "send")
            if unit[receiver] == template:
                keys, offset = (int(place[receiver]),), int(unit[sender] - unit[receiver])
            else:
                keys, offset = (int(place[sender]),), int(unit[sender] - unit[receiver])
        sets.append((keys, members, len(rows), offset))
    spans = _spans([*subsets], keep)
    joints, messages = [], {}  # type: list[Joint], dict[tuple[str, int], list[int]]
    for keys, members, ranks, offset in sets:
        row_kind = graph.rows["kind"].to_numpy()[np.flatnonzero((unit == template) & (place == keys[0]))[0]]
        if row_kind in MESSAGES and len(members) == 2:
            messages.setdefault((str(row_kind), offset), []).append(keys[0])
        elif len(members) == 1:
            joints.append(Joint(keys, Span.UNIT, ranks))
        else:
            span = Span.ALL if len(members) == units else spans[len(members), members[1] - members[0]]
            joints.append(Joint(keys, span, ranks))
    for (sort, offset), receives in messages.items():
        if sort == "recv":
            # A unit at an end has no neighbour on the other side: what it sends there is what it sends here.
            sends = messages.get(("send", offset)) or messages.get(("send", -offset)) or []
            joints += [
                Joint((receive, send), Span.NEIGHBOUR, 2, offset)
                for receive, send in zip(receives, sends, strict=False)
            ]
    return joints


def _spans(subsets: Sequence[tuple[int, ...]], keep: int) -> Mapping[tuple[int, int], Span]:
    """Return the direction of the groups that join some of the units, by their size and distance."""
    kinds = sorted({(len(members), members[1] - members[0]) for members in subsets}, key=lambda kind: kind[1])
    if keep > 1:
        spans = {kind: Span.KEPT if kind[0] == keep and kind[1] == 1 else Span.FAR for kind in kinds}
        if Span.KEPT in spans.values():
            return {span_name: Span.ALL if span is Span.FAR else span for span_name, span in spans.items()}
        raise UsageError(f"no group of the run has {keep} neighbouring ranks.")
    if not kinds:
        return {}
    if len(kinds) == 2 and kinds[0][1] == 1:
        return {kinds[0]: Span.NEAR, kinds[1]: Span.FAR}
    sizes = ", ".join(str(size) for size, _ in kinds)
    raise UsageError(
        f"the mesh is ambiguous: groups of {sizes} ranks may grow with the ranks or keep their size; "
        "--keep SIZE names the size of the group that keeps it."
    )


def measured_step(table: pd.DataFrame) -> tuple[float, int]:
    """Return the mean step of a table of operations in ns, and its number of ranks.

    Raises UsageError if no step has operations of all ranks.
    """
    graphs = operation_graphs(table)
    if not graphs:
        raise UsageError("nothing was measured: no step has operations of all ranks.")
    graph = max(graphs, key=lambda item: len(item.steps))
    ranks = np.unique(table["rank"].to_numpy())
    return float(_periods(graph, table).mean()), len(ranks) * _stride(ranks)


def _stride(ranks: Ints) -> int:
    """Return the distance of equally spaced ranks: each stands for a group that was recorded once."""
    distances = set(np.diff(ranks).tolist())
    return distances.pop() if len(distances) == 1 else 1
