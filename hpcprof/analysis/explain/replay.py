"""Replays a run: when everything would happen if the times on the edges of its graph were others.

A kernel beside communication is slower than alone. By how much is estimated inside the profile, from kernels
of one name and grid with and without communication beside them. A changed run has other kernels beside its
communication, so the replay is repeated with the times that follow from the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.explain.rank_edges import EARLIEST, EdgeKind
from hpcprof.analysis.explain.run_graph import RunGraph
from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.profiles.columns.intervals import coverage, union
from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.profiles.timeline import Category, Ints

_ROUNDS = 4
_DAMPING = 0.6
_ALONE, _BESIDE = 0.05, 0.95
_FEWEST = 3
_MOST_SLOWDOWN = 3.0


@dataclass(frozen=True)
class Times:
    """The times of a run that a replay takes.

    Attributes
    ----------
    lag : ndarray of int64, shape (edges,)
    alone : ndarray of float64, shape (operations,)
        The time of each operation without communication beside it, in ns.
    contended : bool
        Whether communication slows the kernels beside it.
    """

    lag: Ints
    alone: Floats
    contended: bool = True

    def with_alone(self, alone: Floats) -> Times:
        """Return the times with others of the operations."""
        return replace(self, alone=alone)

    def without(self, edges: Ints | NDArray[np.bool_]) -> Times:
        """Return the times in which nothing waits along some edges."""
        return self.set_lag(edges, EARLIEST)

    def is_nowhere_longer(self, other: Times) -> bool:
        """Return whether no time is longer than in other times of the same graph."""
        return bool(np.all(self.lag <= other.lag) and np.all(self.alone <= other.alone))

    def set_lag(self, edges: Ints | NDArray[np.bool_], lag: Ints | int) -> Times:
        """Return the times with other lags on some edges."""
        changed = self.lag.copy()
        changed[edges] = lag
        return replace(self, lag=changed)


@dataclass(frozen=True)
class _Plan:
    """The nodes but the first one, in the order of the graph.

    Attributes
    ----------
    first : ndarray of int64
        The first edge that leads to each node.
    source : list of int
        Its source, by position in the order.
    other : ndarray of int64
        The other edges.
    others : list
        For each node the sources of the other edges that lead to it, and their places in ``other``.
    """

    first: Ints
    source: list[int]
    other: Ints
    others: list[list[tuple[int, int]] | None]


@dataclass(frozen=True, eq=False)
class Replay:
    """Replays a graph."""

    graph: RunGraph

    @cached_property
    def _plan(self) -> _Plan:
        """The order in which nodes follow from each other."""
        graph = self.graph
        position = np.empty(len(graph.order), np.int64)
        position[graph.order] = np.arange(len(graph.order))
        target, source = position[graph.edges.target], position[graph.edges.source]
        # The edges are sorted by target, and every node but the first has some.
        first = np.flatnonzero(np.append(True, target[1:] != target[:-1])[: len(target)])
        other = np.setdiff1d(np.arange(len(target)), first, assume_unique=True)
        others: list[list[tuple[int, int]] | None] = [None] * len(graph.order)
        for place, (node, before) in enumerate(
            zip(target[other].tolist(), source[other].tolist(), strict=True)
        ):
            others[node] = [*(others[node] or ()), (before, place)]
        return _Plan(first, source[first].tolist(), other, others[1:])

    @cached_property
    def _runs(self) -> Ints:
        """The edge along which each operation runs, -1 for a coupled collective."""
        result = np.full(len(self.graph.work), -1)
        edges = np.flatnonzero(self.graph.edges.kind == EdgeKind.RUN)
        result[self.graph.edges.row[edges]] = edges
        return result

    @cached_property
    def slowdown(self) -> Floats:
        """The share of its time beside communication that each operation loses to it."""
        work = self.graph.work
        time = (work.end - work.start).astype(float)
        compute = work.category == Category.COMP
        beside = np.divide(self._beside, time, out=np.zeros(len(time)), where=time > 0)
        _, kind = numbered_rows(work.name, work.grid)
        ratio = _ratios(kind, time, beside, compute)
        lost: Floats = np.where(compute, 1 - 1 / ratio[kind], 0.0)
        return lost

    @cached_property
    def measured(self) -> Times:
        """The times as they were measured."""
        work = self.graph.work
        return Times(self.graph.edges.lag, (work.end - work.start) - self.lost)

    @cached_property
    def lost(self) -> Floats:
        """The time that each operation lost to communication beside it, in ns."""
        lost: Floats = self._beside * self.slowdown
        return lost

    @cached_property
    def _beside(self) -> Floats:
        """The time that each operation ran beside communication, in ns."""
        return self._overlap(self.graph.observed)

    @cached_property
    def unchanged(self) -> Ints:
        """The time of each node with the durations that were measured."""
        return self.moments(self.measured)

    def moments(self, times: Times, *, exact: bool = True) -> Ints:
        """Return when each node happens with these times, shape (nodes,).

        Unless ``exact``, kernels have the communication beside them that they had when they were measured.
        """
        lag = times.lag.copy()
        running = self._runs >= 0
        edges = self._runs[running]
        current = times.alone + self.lost if times.contended else times.alone
        contended = exact and times.contended and bool(self.slowdown.any())
        for _ in range(_ROUNDS if contended else 1):
            lag[edges] = np.rint(current[running]).astype(np.int64)
            found = self._walk(lag)
            if contended:
                wanted = times.alone + self._overlap(found) * self.slowdown
                current = current + _DAMPING * (wanted - current)
        return found

    def lags(self, times: Times, moments: Ints) -> Ints:
        """Return the lag of each edge with these times, if the nodes happen at these moments."""
        lag: Ints = times.lag.copy()
        running = self._runs >= 0
        alone = times.alone + (self._overlap(moments) * self.slowdown if times.contended else 0.0)
        lag[self._runs[running]] = np.rint(alone[running]).astype(np.int64)
        return lag

    def _walk(self, lag: Ints) -> Ints:
        """Return when each node happens: as soon as every edge that leads to it lets it."""
        plan = self._plan
        others = lag[plan.other].tolist()
        moment = [0]
        come = moment.append
        for source, own, more in zip(plan.source, lag[plan.first].tolist(), plan.others, strict=True):
            latest = moment[source] + own
            if more is not None:
                for before, place in more:
                    other = moment[before] + others[place]
                    if other > latest:
                        latest = other
            come(latest)
        result = np.empty(len(moment), np.int64)
        result[self.graph.order] = moment
        return result

    def _overlap(self, moments: Ints) -> Floats:
        """Return the time that each compute operation runs beside communication of its rank."""
        graph, work = self.graph, self.graph.work
        nodes = graph.work_start(np.arange(len(work)))
        start, end = moments[nodes], moments[nodes + 1]
        result = np.zeros(len(work))
        for rank in range(len(graph.ranks)):
            mine = graph.work_rank == rank
            other = mine & (work.category == Category.COMM)
            if other.any():
                rows = np.flatnonzero(mine & (work.category == Category.COMP))
                result[rows] = coverage(start[rows], end[rows], union(start[other], end[other]))
        return result

    def walls(self, moments: Ints) -> Ints:
        """Return the wall time of each step on the rank that takes longest, shape (steps,)."""
        longest: Ints = np.diff(moments[self.graph.front], axis=1).max(axis=0)
        return longest

    def wall(self, times: Times) -> float:
        """Return the median wall time of a step, in ns."""
        return float(np.median(self.walls(self.moments(times))))

    def elapsed(self, moments: Ints) -> Ints:
        """Return the elapsed time of each step: from when the last rank begins it to the same of the next.

        Their sum is the time of the run, also where another rank is late in each step. A last step without a
        next one is left out, if there are others: what the host does before a next one is missing.
        """
        steps: Ints = np.diff(moments[self.graph.front].max(axis=0))
        return steps if self.graph.is_closed or len(steps) == 1 else steps[:-1]


def _ratios(kind: Ints, time: Floats, beside: Floats, compute: NDArray[np.bool_]) -> Floats:
    """Return by how much the operations of each kind are slower beside communication than alone.

    Kinds that do not show it have the mean of the others, weighted by time.
    """
    kinds = int(kind.max(initial=-1)) + 1
    alone = _medians(kind, time, compute & (beside < _ALONE), kinds)
    slow = _medians(kind, time, compute & (beside > _BESIDE), kinds)
    known = np.isfinite(alone) & np.isfinite(slow) & (alone > 0)
    if not known.any():
        return np.ones(kinds)
    ratio = np.clip(slow[known] / alone[known], 1.0, _MOST_SLOWDOWN)
    weight = np.bincount(kind[compute], time[compute], kinds)[known]
    result = np.full(kinds, float(np.average(ratio, weights=weight)) if weight.sum() else 1.0)
    result[known] = ratio
    return result


def _medians(kind: Ints, time: Floats, chosen: NDArray[np.bool_], kinds: int) -> Floats:
    """Return the median time of the chosen operations of each kind, NaN for a kind with too few."""
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((time[rows], kind[rows]))]
    count = np.bincount(kind[rows], minlength=kinds)
    first = np.cumsum(count) - count
    result = np.full(kinds, np.nan)
    many = np.flatnonzero(count >= _FEWEST)
    low, high = first[many] + (count[many] - 1) // 2, first[many] + count[many] // 2
    result[many] = (time[rows[low]] + time[rows[high]]) / 2
    return result
