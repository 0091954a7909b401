"""The unit that more ranks repeat: a rank, or the stages of one pipeline, with the operations of a step.

1. Ranks that send each other messages and have stages are one unit, else each rank is a unit. Without
   recorded stages, ranks that exchange messages are stages if one of them computes both between a send and
   the nearest receive, and between a receive and the nearest send. Neighbours of a halo exchange send and
   receive at the same place of their computing.
2. Operations of all units that have stage, name and number in common are one operation of the unit. Their
   times in all units and steps are its sample. The unit with most operations is the template.
3. A collective joins operations of one unit, of all units, or of a subset of the units. Subsets in two
   orthogonal directions are a grid of processes; ``keep`` gives the meaning of other subsets.
4. A message between units comes from a neighbour.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pandas as pd

from hpcprof.analysis.predict.operation_graph import MESSAGES, RESOLUTION, OperationGraph, most_frequent_graph
from hpcprof.common.errors import UsageError
from hpcprof.common.grouping import grouped
from hpcprof.profiles.timeline import Floats, Ints

_KEY = ["stage", "name", "number"]
_MAX_BETWEEN = 0.5
"""Maximum computing between a send and a receive of one exchange, over the mean computing per message."""


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
    consecutive: bool
    """True if each step follows the one before."""
    has_inferred_stages: bool = False
    """True if the order of the ranks in a chain of messages stands for stages that nothing recorded."""
    has_server: bool = False
    """True if all messages of four or more ranks are to or from one of them."""

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
        direction = "served group" if self.has_server else "pipeline"
        mesh = {direction: stages, "tensor": self.ranks // stages} if self.ranks > 1 else {}
        return {
            "data": self.units // fixed_ranks,
            **mesh,
            **({"kept": fixed_ranks} if fixed_ranks > 1 else {}),
        }


def unit_of(table: pd.DataFrame, keep: int = 1) -> Unit:
    """Return the unit of a table of operations; a group of ``keep`` ranks does not grow with the ranks.

    Raises UsageError if no step has operations of all ranks, or the mesh is ambiguous.
    """
    graph = most_frequent_graph(table)
    if graph is None:
        raise UsageError("nothing can be predicted: no step has operations of all ranks.")
    rows = graph.rows
    ranks = np.unique(rows["rank"].to_numpy())
    stage = _stages(graph)
    staged = stage is not None
    # Without messages, replicas of the table are only ranks.
    unit = pd.factorize(rows["replica"] if staged else rows["rank"], sort=True)[0]
    keys = rows.assign(unit=unit, stage=stage if staged else 0)
    keys["number"] = keys.groupby([*_KEY[:2], "unit"]).cumcount() if staged else keys["number"]
    alike = (keys.groupby(_KEY)["unit"].nunique() == keys["unit"].nunique()).all()
    index = pd.MultiIndex.from_frame(keys[_KEY] if staged or alike else _places(graph))
    fullest = int(keys.groupby("unit").size().idxmax())
    template = np.flatnonzero(unit == fullest)
    template = template[np.argsort(np.median(graph.start[template], axis=1), kind="stable")]
    position = {key: at for at, key in enumerate(index[template])}
    place = np.array([position.get(key, -1) for key in index])
    shape = (len(template), int(unit.max()) + 1, len(graph.steps))
    durations, row_at = np.full(shape, np.nan), np.full(shape[:2], -1)
    has_place = place >= 0
    durations[place[has_place], unit[has_place]] = graph.own[has_place]
    row_at[place[has_place], unit[has_place]] = np.flatnonzero(has_place)
    before = _predecessors(graph, unit, place, row_at, fullest)
    joints = [
        item
        for item in _joints(graph, unit, place, fullest, keep)
        # Clones of a rank that sends and receives in turns would wait for each other in a circle.
        if item.span is not Span.NEIGHBOUR
        or not any(ancestors(before, [key]) & {*item.keys} for key in item.keys)
    ]
    inferred = staged and bool((rows["stage"] < 0).any())
    return Unit(
        keys=keys.iloc[template][[*_KEY, "kind", "bytes"]].reset_index(drop=True),
        own=durations,
        lag=_lags(graph, unit, row_at, before, table),
        before=before,
        joints=tuple(joints),
        ranks=round(len(ranks) / shape[1]) * _stride(ranks),
        step_ns=_periods(graph, table),
        consecutive=_consecutive(graph),
        has_inferred_stages=inferred,
        has_server=inferred and _has_server(graph),
    )


def _has_server(graph: OperationGraph) -> bool:
    """Return whether one rank of each replica of four or more sends or receives all of its messages."""
    ranks, replicas = (graph.rows[name].to_numpy() for name in ("rank", "replica"))
    messages = [rows for rows in graph.members if graph.rows["kind"].iloc[rows[0]] in MESSAGES]
    pairs = grouped((int(replicas[rows[0]]), {*ranks[rows].tolist()}) for rows in messages)
    return all(len(set().union(*each)) > 3 and bool(set.intersection(*each)) for each in pairs.values())


def _predecessors(graph: OperationGraph, unit: Ints, place: Ints, row_at: Ints, template: int) -> list[Ints]:
    """Return the predecessors of each operation of the unit numbered ``template``, by place.

    A predecessor in any unit is one in all, unless one of them did not wait for it.
    """
    slack = RESOLUTION * float(np.median(graph.measured))
    waits: list[set[int]] = [set() for _ in row_at]
    begins_early: set[tuple[int, int]] = set()
    for row in np.flatnonzero(place >= 0).tolist():
        at = int(place[row])
        for other in {*place[graph.before[row]].tolist()} - {-1} - waits[at]:
            if unit[row] == template:
                waits[at].add(other)
            elif other < at and (at, other) not in begins_early:
                both = row_at[[at, other]]
                first, last = both[:, (both >= 0).all(axis=0)]
                waited = (graph.start[first] >= graph.end[last] - slack).all()
                if waited:
                    waits[at].add(other)
                else:
                    begins_early.add((at, other))
    return [np.array(sorted(places), np.int64) for places in waits]


def ancestors(before: Sequence[Ints], operations: Collection[int]) -> set[int]:
    """Return the direct and indirect predecessors of some operations."""
    waits: set[int] = set()
    new = {*operations}
    while new:
        new = {row for waiting in new for row in before[waiting].tolist()} - waits
        waits |= new
    return waits


def _places(graph: OperationGraph) -> pd.DataFrame:
    """Return the name, place and number by which the operations of different ranks are the same.

    Messages are told apart by their place between computations and their number there: ranks at an edge have
    fewer neighbours, and names may say the direction.
    """
    rows = graph.rows[["rank", "name"]].assign(place=0)
    messages, computes = graph.rows["kind"].isin(MESSAGES), graph.rows["kind"] == "compute"
    first = np.median(graph.start, axis=1)
    for at in rows.groupby("rank").indices.values():
        rows.loc[at, "place"] = np.searchsorted(np.sort(first[at][computes[at]]), first[at])
    rows["name"] = rows["name"].where(~messages, graph.rows["kind"])
    rows["place"] = rows["place"].where(messages, 0)
    rows["number"] = rows.groupby(["rank", "name", "place"]).cumcount()
    places: pd.DataFrame = rows[["name", "place", "number"]]
    return places


def _stages(graph: OperationGraph) -> Ints | None:
    """Return the stage of each operation: the recorded one, otherwise its rank's position in the replica.

    None if the ranks are no pipelines of equal numbers of stages.
    """
    rows = graph.rows
    if not rows["kind"].isin(MESSAGES).any():
        return None
    if (rows["stage"] >= 0).all():
        return rows["stage"].to_numpy() if rows["stage"].nunique() > 1 else None
    ranks = rows["rank"].to_numpy()
    if not any(_computes_between_messages(graph, np.flatnonzero(ranks == rank)) for rank in np.unique(ranks)):
        return None
    stage = rows.groupby("replica")["rank"].rank("dense").to_numpy(np.int64) - 1
    stages = pd.Series(stage).groupby(rows["replica"].to_numpy()).max()
    return stage if stages.nunique() == 1 and stages.iloc[0] > 0 else None


def _computes_between_messages(graph: OperationGraph, rows: Ints) -> bool:
    """Return whether a rank computes between its sends and receives, unlike in a halo exchange.

    Each message spans a part of the rank's computing time. A send and a receive are apart if more computing
    lies between them than half of the mean computing per message (`_MAX_BETWEEN`).
    """
    kind = graph.rows["kind"].to_numpy()[rows]
    first, last = (np.median(times[rows], axis=1) for times in (graph.start, graph.end))
    work = kind == "compute"
    sends, receives = (
        np.array(
            [
                np.clip(side[kind == way, None] - first[work], 0, (last - first)[work]).sum(axis=1)
                for side in (first, last)
            ]
        )
        for way in MESSAGES
    )
    if not sends.size or not receives.size:
        return False
    between = np.maximum(sends[0][:, None] - receives[1][None, :], receives[0][None, :] - sends[1][:, None])
    far = between > _MAX_BETWEEN * (last - first)[work].sum() / (between.shape[0] + between.shape[1])
    return bool(far.all(axis=1).any() and far.all(axis=0).any())


def _consecutive(graph: OperationGraph) -> bool:
    return len(graph.steps) > 1 and bool(np.all(np.diff(graph.steps) == 1))


def _periods(graph: OperationGraph, table: pd.DataFrame) -> Floats:
    """Return the time of each step: from the end of the one before, where the steps follow each other.

    The first step lasts until the next one begins, on the rank where that takes longest: other ranks begin
    all steps but the first one early, and wait.
    """
    if not _consecutive(graph):
        return graph.measured
    first, second = (
        table[table["step"] == step].groupby("rank")["start_ns"].min() for step in graph.steps[:2]
    )
    return np.append((second - first).max(), np.diff(_begins(graph, table) + graph.end.max(axis=0)))


def _begins(graph: OperationGraph, table: pd.DataFrame) -> Floats:
    return table.groupby("step")["start_ns"].min().reindex(graph.steps).to_numpy(float)


def _lags(
    graph: OperationGraph, unit: Ints, row_at: Ints, before: Sequence[Ints], table: pd.DataFrame
) -> Floats:
    """Return the delay of each operation after its predecessors, as `Unit.lag`.

    ``row_at`` is the row of each operation in each unit, -1 without one. The operations of all units have the
    same predecessors, ``before``, as in a replay. The first operations of a step follow the last ones of
    their unit in the step before.
    """
    lag = np.full((*row_at.shape, len(graph.steps)), np.nan)
    previous = np.zeros(lag.shape[1:])
    if _consecutive(graph):
        begin = _begins(graph, table)
        for number in range(len(previous)):
            end = graph.end[unit == number].max(axis=0) + begin
            previous[number, 1:] = end[:-1] - begin[1:]
        previous[:, 0] = np.median(previous[:, 1:], axis=1)
    for (operation, number), row in np.ndenumerate(row_at):
        if row >= 0:
            rows = row_at[before[operation], number]
            rows = rows[rows >= 0]
            ready = graph.end[rows].max(axis=0) if len(rows) else previous[number]
            lag[operation, number] = np.maximum(graph.start[row] - ready, 0.0)
    return lag


def _joints(graph: OperationGraph, unit: Ints, place: Ints, template: int, keep: int) -> list[Joint]:
    units = int(unit.max()) + 1
    kind = graph.rows["kind"].to_numpy()
    subsets = set()
    sets: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
    offsets: dict[tuple[str, int], list[int]] = {}
    joints: list[Joint] = []
    for rows in graph.members:
        members = tuple(sorted(set(unit[rows].tolist())))
        if kind[rows[0]] in MESSAGES and len(members) == 2:
            receiver, sender = sorted(rows.tolist(), key=lambda row: kind[row] == "send")
            for row in (receiver, sender):
                offsets.setdefault((kind[row], int(place[row])), []).append(
                    int(unit[sender] - unit[receiver])
                )
            continue
        if 1 < len(members) < units:
            subsets.add(members)
        if template in members:
            keys = tuple(sorted({int(place[row]) for row in rows.tolist() if place[row] >= 0}))
            sets.append((keys, members, len(rows)))
    spans = _spans([*subsets], keep)
    for keys, members, ranks in sets:
        span = Span.UNIT if len(members) == 1 else Span.ALL
        if 1 < len(members) < units:
            span = spans[len(members), members[1] - members[0]]
        joints.append(Joint(keys, span, ranks))
    messages: dict[tuple[str, int], list[int]] = {}
    for (sort, key), distances in offsets.items():
        if key >= 0:
            # Most units have the neighbour of an operation at one distance; others are at an edge.
            numbers, counts = np.unique(distances, return_counts=True)
            messages.setdefault((sort, int(numbers[counts.argmax()])), []).append(key)
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
    graph = most_frequent_graph(table)
    if graph is None:
        raise UsageError("nothing was measured: no step has operations of all ranks.")
    ranks = np.unique(table["rank"].to_numpy())
    return float(_periods(graph, table).mean()), len(ranks) * _stride(ranks)


def _stride(ranks: Ints) -> int:
    """Return the distance of equally spaced ranks: each stands for a group that was recorded once."""
    distances = set(np.diff(ranks).tolist())
    return distances.pop() if len(distances) == 1 else 1
