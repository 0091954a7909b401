"""Replays a run: the time of each node of its graph with other times on the edges.

1. A node happens as soon as every edge that leads to it allows: the longest path from node 0.
2. A kernel beside communication is slower than alone. Its slowdown is estimated from the kernels of its name
   and grid in the profile, with and without communication beside them.
3. A changed run has other kernels beside its communication, so the replay is repeated `_ROUNDS` times, each
   with the overlap of the replay before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from hpcprof.analysis.account.host_activity import NONE, at
from hpcprof.analysis.explain.rank_edges import EARLIEST, EdgeKind
from hpcprof.analysis.explain.run_graph import RunGraph
from hpcprof.analysis.statistics.grouped import quotient
from hpcprof.analysis.steps.wall_time import begins_ahead
from hpcprof.profiles.columns.unique import begins_run, in_ranges, numbered_rows
from hpcprof.profiles.timeline import Category, Floats, Ints, Mask

_ROUNDS, _DAMPING_FACTOR = 4, 0.6
"""Number of replays with slowed kernels, and share of the change of their times that each one takes over."""

_MAX_ALONE_OVERLAP, _MIN_OVERLAP_SHARE = 0.05, 0.95
"""Maximum share of communication beside a kernel that runs alone, and minimum share for an overlapped one."""

_MIN_KERNELS = 3
"""Minimum number of kernels of a kind, alone and overlapped each, for its slowdown."""

_MAX_SLOWDOWN = 3.0
"""Maximum ratio of the time of a kernel beside communication to its time alone."""


@dataclass(frozen=True)
class Times:
    """The times of a run for a replay."""

    lag: Ints
    """Shape (edges,)."""
    alone: Floats
    """The time of each operation without communication beside it, in ns; shape (operations,)."""
    contended: bool = True
    """True if communication slows the kernels beside it."""

    def with_alone(self, alone: Floats) -> Times:
        """Return the times with other times of the operations."""
        return replace(self, alone=alone)

    def set_alone(self, rows: Ints | Mask, alone: Floats | float) -> Times:
        """Return the times with other times of some operations."""
        changed = self.alone.copy()
        changed[rows] = alone
        return self.with_alone(changed)

    def scale_alone(self, rows: Ints | Mask, factor: Floats | float) -> Times:
        """Return the times with those of some operations multiplied by a factor."""
        return self.set_alone(rows, self.alone[rows] * factor)

    def without_work(self, rows: Ints) -> Times:
        """Return the times with no time for some operations."""
        return self.set_alone(rows, 0)

    def without(self, edges: Ints | Mask) -> Times:
        """Return the times in which nothing waits along some edges."""
        return self.set_lag(edges, EARLIEST)

    def set_lag(self, edges: Ints | Mask, lag: Ints | int) -> Times:
        """Return the times with other lags on some edges."""
        changed = self.lag.copy()
        changed[edges] = lag
        return replace(self, lag=changed)

    def scale_lag(self, edges: Ints | Mask, factor: Floats | float) -> Times:
        """Return the times with the lags of some edges multiplied by a factor."""
        return self.set_lag(edges, np.rint(self.lag[edges] * factor).astype(np.int64))


@dataclass(frozen=True)
class _Plan:
    """The order of the computation of the nodes.

    Four of five nodes in a profile have a single incoming edge. They follow their *base*, the nearest node
    before them with several incoming edges or none, by the sum of the lags between: a cumulative sum over an
    Euler tour of the tree of each base. Only the bases have to be computed one after another. Nodes are given
    by their position in the order of the graph.
    """

    node: Ints
    single: Ints
    """The nodes with a single incoming edge, and that edge; shape (n,)."""
    enter: Ints
    leave: Ints
    """The positions in the Euler tour at which it enters and leaves each node; shape (nodes,)."""
    base: Ints
    """The number of each node's base; shape (nodes,)."""
    edge: Ints
    source: Ints
    """The first incoming edge of each base but the first one, and the node where it begins."""
    other: Ints
    other_source: Ints
    """The further incoming edges of the bases, and the nodes where they begin."""
    steps: list[tuple[int, list[tuple[int, int]]]]
    """For each base but the first one, the base of the source of its first edge, and a list of further edges:
    the base of the source and the position in ``other``.
    """

    @classmethod
    def of(cls, graph: RunGraph) -> _Plan:
        """Return the plan of a graph."""
        nodes = len(graph.order)
        position = np.empty(nodes, np.int64)
        position[graph.order] = np.arange(nodes)
        target, source = position[graph.edges.target], position[graph.edges.source]
        # The edges are sorted by target, and every node but the first has some.
        is_first = begins_run(target)
        is_base = np.bincount(target, minlength=nodes) != 1
        single = np.flatnonzero(~is_base[target])
        node, parent = target[single], source[single]
        enter, leave, base = _euler_tour(np.flatnonzero(is_base), node, parent)
        edge, other = np.flatnonzero(is_first & is_base[target]), np.flatnonzero(~is_first)
        steps: list[tuple[int, list[tuple[int, int]]]] = [
            (before, []) for before in base[source[edge]].tolist()
        ]
        numbers = base[target[other]].tolist()
        for place, (number, before) in enumerate(zip(numbers, base[source[other]].tolist(), strict=True)):
            steps[number - 1][1].append((before, place))
        return cls(node, single, enter, leave, base, edge, source[edge], other, source[other], steps)


def _euler_tour(bases: Ints, node: Ints, parent: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the Euler tour of the trees below bases, one tree after another.

    ``node`` and ``parent``, of shape (n,), are the other nodes, ascending, and their parents. Returns the
    positions at which the tour enters and leaves each node, and the number of its base; shape (nodes,).
    """
    nodes = len(bases) + len(node)
    pairs = list(zip(node.tolist(), parent.tolist(), strict=True))
    size, base, enter = [1] * nodes, [0] * nodes, [0] * nodes
    for child, before in reversed(pairs):
        size[before] += size[child]
    begin = 0
    for number, root in enumerate(bases.tolist()):
        base[root], enter[root] = number, begin
        begin += 2 * size[root]
    free = [position + 1 for position in enter]
    for child, before in pairs:
        base[child], enter[child] = base[before], free[before]
        free[before] += 2 * size[child]
        free[child] = enter[child] + 1
    return np.array(enter), np.array(enter) + 2 * np.array(size) - 1, np.array(base)


@dataclass(frozen=True, eq=False)
class Replay:
    """Replays a graph.

    ``recorded`` is the replay of the run as it was recorded, if this one is without its profiler
    (`without_profiler`).
    """

    graph: RunGraph
    recorded: Replay | None = None

    def without_profiler(self, times: Times) -> Replay:
        """Return the replay of the run whose edges have the lags of some times.

        The moments of its nodes are the result of this replay, as is the slowdown of its kernels.
        """
        edges, moments = replace(self.graph.edges, lag=times.lag), self.moments(times)
        other = Replay(replace(self.graph, edges=edges, observed=moments), self)
        shared_fields = {
            "_plan": self._plan,
            "slowdown": self.slowdown,
            "lost": self.lost,
            "unchanged": moments,
        }
        vars(other).update(shared_fields, measured=replace(self.measured, lag=times.lag))
        return other

    @cached_property
    def _plan(self) -> _Plan:
        return _Plan.of(self.graph)

    @cached_property
    def _runs(self) -> Ints:
        """The edge along which each operation runs, -1 for a coupled collective."""
        result, edges = np.full(len(self.graph.work), -1), self.graph.edges.of(EdgeKind.RUN)
        result[self.graph.edges.row[edges]] = edges
        return result

    @cached_property
    def slowdown(self) -> Floats:
        """The share of its time beside communication that each operation loses to it."""
        work = self.graph.work
        time = work.time.astype(float)
        compute = work.is_compute
        beside = quotient(self._overlap_factor, time)
        _, kind = numbered_rows(work.name, work.grid)
        ratio = _ratios(kind, time, beside, compute)
        return np.where(compute, 1 - 1 / ratio[kind], 0.0)

    @cached_property
    def measured(self) -> Times:
        """The times as they were measured."""
        return Times(self.graph.edges.lag, self.graph.work.time - self.lost)

    @cached_property
    def lost(self) -> Floats:
        """The time that each operation lost to communication beside it, in ns."""
        return self._overlap_factor * self.slowdown

    @cached_property
    def _overlap_factor(self) -> Floats:
        return self._overlap(self.graph.observed)

    @cached_property
    def unchanged(self) -> Ints:
        """The time of each node with the durations that were measured."""
        return self.moments(self.measured)

    @cached_property
    def has_slowdown(self) -> bool:
        """True if communication slows any operation."""
        return bool(self.slowdown.any())

    def moments(self, times: Times, *, exact: bool = True) -> Ints:
        """Return the moment of each node with these times, in ns, shape (nodes,).

        Unless ``exact``, kernels have the overlap with communication that was measured.
        """
        lag = times.lag.copy()
        running = self._runs >= 0
        edges = self._runs[running]
        current = times.alone + self.lost if times.contended else times.alone
        for _ in range(_ROUNDS - 1 if exact and times.contended and self.has_slowdown else 0):
            lag[edges] = np.rint(current[running]).astype(np.int64)
            wanted = times.alone + self._overlap(self._walk(lag)) * self.slowdown
            current = current + _DAMPING_FACTOR * (wanted - current)
        lag[edges] = np.rint(current[running]).astype(np.int64)
        return self._walk(lag)

    def on_ranks(self, times: Times, changed: Times, ranks: Collection[int]) -> Times:
        """Return ``changed`` times on some ranks, by their positions, and ``times`` on the others."""
        if len(ranks) == len(self.graph.ranks):
            return changed
        edge, work = (np.isin(rank, [*ranks]) for rank in (self.graph.edge_rank, self.graph.work_rank))
        lag, alone = np.where(edge, changed.lag, times.lag), np.where(work, changed.alone, times.alone)
        return replace(changed, lag=lag, alone=alone)

    def lags(self, times: Times, moments: Ints) -> Ints:
        """Return the lag of each edge with these times, if the nodes happen at these moments."""
        lag: Ints = times.lag.copy()
        running = self._runs >= 0
        alone = times.alone + (self._overlap(moments) * self.slowdown if times.contended else 0.0)
        lag[self._runs[running]] = np.rint(alone[running]).astype(np.int64)
        return lag

    def _walk(self, lag: Ints) -> Ints:
        """Return the moment of each node: the latest over its incoming edges, in ns; shape (nodes,)."""
        plan = self._plan
        tour = np.zeros(2 * len(plan.base), np.int64)
        tour[plan.enter[plan.node]] = lag[plan.single]
        tour[plan.leave[plan.node]] = -lag[plan.single]
        # The time of each node after its base.
        after = np.cumsum(tour)[plan.enter]
        first_moments = (lag[plan.edge] + after[plan.source]).tolist()
        other_moments = (lag[plan.other] + after[plan.other_source]).tolist()
        moment = [0]
        append_moment = moment.append
        for (source, more), first in zip(plan.steps, first_moments, strict=True):
            latest = moment[source] + first
            for before, place in more:
                other = moment[before] + other_moments[place]
                if other > latest:
                    latest = other
            append_moment(latest)
        result = np.empty(len(after), np.int64)
        result[self.graph.order] = np.array(moment)[plan.base] + after
        return result

    def _overlap(self, moments: Ints) -> Floats:
        nodes = self.graph.work_start(np.arange(len(self.graph.work)))
        return self.graph.beside(moments[nodes], moments[nodes + 1], Category.COMP, Category.COMM)

    def walls(self, moments: Ints) -> Ints:
        """Return the wall time of each step on the rank that takes longest, shape (steps,)."""
        longest: Ints = np.diff(moments[self.graph.front], axis=1).max(axis=0)
        return longest

    def wall(self, times: Times) -> float:
        """Return the median wall time of a step, in ns."""
        return float(np.median(self.walls(self.moments(times))))

    def elapsed(self, moments: Ints) -> Ints:
        """Return the elapsed time of each step: from its begin on the last rank to that of the next step.

        The sum is the time of the run, also where another rank is late in each step. A last step without a
        next one is left out, if there are others: the host time before a next one is missing.

        Where steps begin ahead of the work of those before, as with copies on a stream of their own, a step
        lasts from the end of that work to the end of its own (`begins_ahead`).
        """
        front: Ints = moments[self.graph.front].max(axis=0)
        if not len(self.graph.work):
            steps: Ints = np.diff(front)
        else:
            ends = self._work_ends(moments, int(front[0]))
            # The work of a step may end after the begin of the next one by its measured lag, and no more.
            front[1:] += (ends - front[1:] - self._usual_lag).clip(min=0)
            front = np.maximum.accumulate(front)
            ahead = begins_ahead(front[:-1], ends)
            steps = np.diff(ends, prepend=front[0]) if ahead else np.diff(front)
        # Nodes of starts are odd: where a further step begins, the last one ends.
        return steps if self.graph.front[0, -1] % 2 or len(steps) == 1 else steps[:-1]

    @cached_property
    def _usual_lag(self) -> Ints:
        """The time by which the work of each step ends after the begin of the next, shape (steps,)."""
        lags = []
        for moments in (self.graph.observed, self.unchanged):
            front = moments[self.graph.front].max(axis=0)
            lags.append(self._work_ends(moments, int(front[0])) - front[1:])
        lag: Ints = np.maximum(*lags).clip(min=0)
        return lag

    def _work_ends(self, moments: Ints, begin: int) -> Ints:
        """Return when the work of each step and of those before has ended, not before ``begin``."""
        row, step = self._work_of_steps
        ends = np.full(self.graph.steps, begin)
        np.maximum.at(ends, step, moments[self.graph.work_start(row) + 1])
        return np.maximum.accumulate(ends)

    @cached_property
    def _work_of_steps(self) -> tuple[Ints, Ints]:
        """The operations inside the replayed steps, and the step of each; both of shape (n,)."""
        step = self.graph.work.step - self.graph.first_step
        rows = np.flatnonzero((step >= 0) & (step < self.graph.steps))
        return rows, step[rows]


def _ratios(kind: Ints, time: Floats, beside: Floats, compute: Mask) -> Floats:
    """Return the ratio of the times of each kind's operations beside communication and alone.

    Kinds without enough of both have the mean of the others, weighted by time.
    """
    kinds = int(kind.max(initial=-1)) + 1
    alone = _medians(kind, time, compute & (beside < _MAX_ALONE_OVERLAP), kinds)
    slow = _medians(kind, time, compute & (beside > _MIN_OVERLAP_SHARE), kinds)
    has_both = np.isfinite(alone) & np.isfinite(slow) & (alone > 0)
    if not has_both.any():
        return np.ones(kinds)
    ratio = np.clip(slow[has_both] / alone[has_both], 1.0, _MAX_SLOWDOWN)
    weight = np.bincount(kind[compute], time[compute], kinds)[has_both]
    result = np.full(kinds, float(np.average(ratio, weights=weight)) if weight.sum() else 1.0)
    result[has_both] = ratio
    return result


def _medians(kind: Ints, time: Floats, chosen: Mask, kinds: int) -> Floats:
    """Return the median time of the chosen operations of each kind, NaN for a kind with too few."""
    grouped = pd.Series(time[chosen]).groupby(kind[chosen])
    median = grouped.median().where(grouped.size() >= _MIN_KERNELS)
    medians: Floats = median.reindex(range(kinds)).to_numpy(np.float64)
    return medians


_EDGE_KINDS = {
    EdgeKind.FIXED: "before",
    EdgeKind.HOST: "host",
    EdgeKind.CALL: "call",
    EdgeKind.LAUNCH: "launch",
    EdgeKind.STREAM: "gap",
    EdgeKind.EVENT: "dependency",
    EdgeKind.AFTER_WAIT: "dependency",
    EdgeKind.WAIT: "return",
    EdgeKind.ARRIVE: "collective",
    EdgeKind.TRANSFER: "communication",
    EdgeKind.MESSAGE: "communication",
    EdgeKind.RENDEZVOUS: "communication",
    EdgeKind.JOIN: "collective",
}
"""The kind of time in ``critical_path`` of each kind of edge."""

_CALL_EDGES = (
    *(EdgeKind.HOST, EdgeKind.CALL, EdgeKind.WAIT),
    *(EdgeKind.MESSAGE, EdgeKind.RENDEZVOUS, EdgeKind.JOIN),
)
"""The kinds of edges whose row is a call; the row of the others is an operation."""

_OPERATION_KINDS = {
    **dict.fromkeys((Category.COMP, Category.FUSED), "kernel"),
    Category.COMM: "communication",
    Category.MEM: "copy",
}
"""The kind of time in ``critical_path`` of operations that run, by their category."""


def critical_path(replay: Replay) -> pd.DataFrame:
    """Return the rows of ``critical_path``.

    ``kind`` is what takes the time: work of the ``host`` between calls, a ``call``, a ``launch``, a
    ``kernel``, a ``copy``, ``communication``, the ``gap`` between operations of a stream, the wait for
    another stream (``dependency``), or the ``return`` of a call that waited. ``ns_per_step`` is the median
    over the steps of the time on the path, and ``share_pct`` its share of the median wall step.
    """
    graph = replay.graph
    moments = replay.unchanged
    path = _path(replay, moments)
    edges = graph.edges.take(path)
    begin, end = moments[edges.source], moments[edges.target]
    last = graph.front[int(np.argmax(moments[graph.front[:, -1]]))]
    bounds = moments[last]
    is_call = np.isin(edges.kind, _CALL_EDGES)
    row_call, row_work = np.where(is_call, edges.row, 0), np.where(is_call, NONE, edges.row)
    work = graph.work
    work_columns = (graph.work_rank, work.place, work.name, work.category)
    work_rank, work_place, work_name, category = (at(column, row_work) for column in work_columns)
    rank = np.where(is_call, graph.call_rank[row_call], work_rank)
    place = np.where(is_call, graph.calls.place[row_call], work_place)
    name = np.where(is_call, graph.calls.name[row_call], work_name)
    name[edges.kind == EdgeKind.HOST] = NONE
    edge_kind_name = np.array([_EDGE_KINDS.get(edge_kind, "") for edge_kind in EdgeKind], object)[edges.kind]
    operation_kind_name = np.array([_OPERATION_KINDS[kind_of_work] for kind_of_work in Category], object)[
        category
    ]
    kind = np.where(edges.kind == EdgeKind.RUN, operation_kind_name, edge_kind_name)
    first = np.searchsorted(bounds[1:], begin, side="right")
    steps = (np.searchsorted(bounds[:-1], end) - first).clip(min=0)
    step, at_edge = in_ranges(first, steps), np.repeat(np.arange(len(path)), steps)
    time = np.minimum(end[at_edge], bounds[step + 1]) - np.maximum(begin[at_edge], bounds[step])
    rows = pd.DataFrame({"rank": rank, "kind": kind, "name": name, "range": place}).iloc[at_edge]
    return _rows_by_kind(replay, rows.assign(step=step, ns=time), float(np.median(np.diff(bounds))))


def _path(replay: Replay, moments: Ints) -> Ints:
    """Return the edges of the path that ends at the end of the last step, the first one first."""
    graph = replay.graph
    edges = graph.edges
    slack = moments[edges.target] - moments[edges.source] - replay.lags(replay.measured, moments)
    # The edges are sorted by target: of each node, the edge with the least slack binds.
    order = np.lexsort((slack, edges.target))
    first = begins_run(edges.target[order])
    binding = np.full(len(graph.order), NONE)
    binding[edges.target[order[first]]] = order[first]
    node = int(graph.front[int(np.argmax(moments[graph.front[:, -1]])), -1])
    path_edges = []
    while node and binding[node] != NONE:
        edge = int(binding[node])
        path_edges.append(edge)
        node = int(edges.source[edge])
    # The edge from the zero of the clock is no time of the run.
    return np.array(path_edges[-2::-1] if len(path_edges) > 1 else [], np.int64)


def _rows_by_kind(replay: Replay, rows: pd.DataFrame, wall: float) -> pd.DataFrame:
    """Sum the pieces of the path by rank, kind, name and range; ``wall`` is the median step in ns."""
    graph = replay.graph
    steps = range(graph.steps)
    keys = ["rank", "kind", "name", "range"]
    per_step = rows.groupby([*keys, "step"])["ns"].sum().unstack("step").reindex(columns=steps).fillna(0)
    median = per_step.median(axis=1)
    table: pd.DataFrame = (
        median[median > 0].sort_values(ascending=False, kind="stable").reset_index(name="ns_per_step")
    )
    names, places = [*graph.names, None], [*graph.places, None]
    table["rank"] = [graph.ranks[position] for position in table["rank"]]
    table["name"] = pd.Series([names[number] for number in table["name"]], dtype=object)
    table["range"] = pd.Series([places[number] for number in table["range"]], dtype=object)
    table["ns_per_step"] = table["ns_per_step"].round().astype(np.int64)
    table["share_pct"] = (100 * table["ns_per_step"] / wall).round(3)
    return table
