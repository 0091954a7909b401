"""Removals: the times of a run's graph with a cause taken out.

Each function returns the changed times. A change follows from the meaning of the cause
(`hpcprof.analysis.explain.causes`), not from the size of the symptom.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from hpcprof.analysis.account.call_kinds import ALLOCATING, CallKind
from hpcprof.analysis.account.places import NONE, OUTSIDE, WHOLE_STEP, is_inside
from hpcprof.analysis.explain.edge_kinds import EdgeKind
from hpcprof.analysis.statistics.grouped import quotient, sums_by
from hpcprof.profiles.columns.unique import numbered, numbered_rows
from hpcprof.profiles.host_memory import HostMemory
from hpcprof.profiles.timeline import Category, Floats, Ints, Mask

if TYPE_CHECKING:
    from hpcprof.analysis.explain.replay import Replay, Times

_MIN_LONG_NS, _LONG_TIMES = 100_000, 10
"""Minimum time of a long pause or call in ns, and over the rank's median."""

_SURELY_LONG_NS = 2_000_000
"""Time in ns above which a pause or call is long, whatever the rank's median."""

CALL_NS = 5_000
"""Remaining time of a call that no longer waits or allocates, in ns."""

_SEPARATE_CALLS = (*ALLOCATING, CallKind.MPI)
"""Kinds of calls with causes of their own."""

_MAX_USUAL_SHARE, _MAX_QUARTILE_RATIO = 0.45, 1.05
"""Maximum share of usual steps of a time that varies, and maximum ratio of a usual one to the quartile.

If two ranks are late in turn, one is as usual in each step.
"""


class Removals:
    """Takes causes out of the times of a graph; every method takes times and returns changed ones."""

    def __init__(self, replay: Replay) -> None:
        self.replay, self.graph = replay, replay.graph

    @cached_property
    def edge_of_call(self) -> dict[EdgeKind, Ints]:
        """The edges of each call by kind: from the call before (`HOST`), and for its own time (`CALL`)."""
        edges = {}
        for kind in (EdgeKind.HOST, EdgeKind.CALL):
            rows = self.graph.edges.of(kind)
            edge_of = np.full(len(self.graph.calls), NONE)
            edge_of[self.graph.edges.row[rows]] = rows
            edges[kind] = edge_of
        return edges

    @cached_property
    def long_gap(self) -> Mask:
        """Mask of the calls after a pause of the thread that is long for its rank.

        In a place that launches no kernels, any pause is long: it is no part of launching them.
        """
        calls, work = self.graph.calls, self.graph.work
        launches = np.zeros(len(self.graph.places) + 1, bool)
        launches[work.place[work.category != Category.MEM]] = True
        waits: Mask = self._long_pieces(calls.gap) | (
            (calls.place != NONE) & ~launches[calls.place] & (calls.gap > 0)
        )
        return waits

    @cached_property
    def long_call(self) -> Mask:
        """Mask of the calls whose own time is long for their rank, except `_SEPARATE_CALLS`."""
        return self._long_pieces(self.call_times) & ~np.isin(self.graph.calls.kind, _SEPARATE_CALLS)

    @cached_property
    def call_times(self) -> Ints:
        """The own time of each call as it was measured, without its wait, in ns."""
        return self.graph.edges.lag[self.edge_of_call[EdgeKind.CALL]]

    def _long_pieces(self, time: Ints) -> Mask:
        result = np.zeros(len(time), bool)
        for rank in range(len(self.graph.ranks)):
            is_own = self.graph.call_rank == rank
            usual = float(np.median(time[is_own])) if is_own.any() else 0.0
            result |= is_own & (time > max(_MIN_LONG_NS, min(_LONG_TIMES * usual, _SURELY_LONG_NS)))
        return result

    @cached_property
    def with_host(self) -> Mask:
        """Mask of the copies that are, or may be, between host and device."""
        work = self.graph.work
        copies: Mask = (work.category == Category.MEM) & (work.host_memory != HostMemory.NONE)
        return copies

    def inside(self, place: str) -> Mask:
        """Return a mask of the places that are ``place`` or in it; the last element stands for no place."""
        if place == WHOLE_STEP:
            return np.ones(len(self.graph.places) + 1, bool)
        return np.array([*(is_inside(text, place) for text in self.graph.places), place == OUTSIDE])

    def pauses(self, times: Times, place: str) -> Times:
        """Remove the long pauses between calls in a place, and shorten its long calls."""
        calls = np.flatnonzero(self.long_call & self.inside(place)[self.graph.calls.place])
        return self.call_time(self.host_time(times, place, long=True), calls)

    def host_time(self, times: Times, place: str, *, long: bool | None = None, factor: float = 0.0) -> Times:
        """Scale the host time between calls in a place; ``long`` chooses the long pauses or the others."""
        pieces = self.graph.pieces
        chosen = self.inside(place)[pieces.place]
        if long is not None:
            chosen &= self.long_gap[pieces.call] == long
        return self.less_between(times, np.where(chosen, pieces.length * (1 - factor), 0.0))

    def less_between(self, times: Times, less: Floats) -> Times:
        """Shorten the pieces of host time by some ns each."""
        less_of = np.bincount(self.graph.pieces.call, less, len(self.graph.calls))
        return self.less_before(times, np.rint(less_of).astype(np.int64))

    def less_before(self, times: Times, less: Ints) -> Times:
        """Shorten the time between each call and the one before it on its thread."""
        calls = np.flatnonzero(less)
        edges = self.edge_of_call[EdgeKind.HOST][calls]
        return times.set_lag(edges, np.maximum(times.lag[edges] - less[calls], 0))

    def call_time(self, times: Times, calls: Ints, most: int = CALL_NS) -> Times:
        """Limit the own time of calls."""
        edges = self.edge_of_call[EdgeKind.CALL][calls]
        return times.set_lag(edges, np.minimum(times.lag[edges], most))

    def quicker_calls(self, times: Times, less_ns: int | Ints) -> Times:
        """Let each call take less time, and where it is too short for that, its thread before it.

        ``less_ns`` is one time, or one for each call.
        """
        call_edges, before = (self.edge_of_call[kind] for kind in (EdgeKind.CALL, EdgeKind.HOST))
        lag = times.lag.copy()
        wanted = np.broadcast_to(less_ns, call_edges.shape)
        less = np.minimum(lag[call_edges], wanted)
        lag[call_edges] -= less
        follows = before != NONE
        remaining = np.minimum(np.maximum(lag[before[follows]], 0), (wanted - less)[follows])
        lag[before[follows]] -= remaining
        return replace(times, lag=lag)

    def waits(self, times: Times, calls: Ints) -> Times:
        """Let calls return without waiting for the GPU."""
        edges = self.graph.edges
        return times.without((edges.kind == EdgeKind.WAIT) & np.isin(edges.row, calls))

    def calls_at_once(self, times: Times, calls: Ints, most: int = 0) -> Times:
        """Let calls return at once: without waiting, and after ``most`` ns of their own."""
        return self.call_time(self.waits(times, calls), calls, most)

    def at_once(self, times: Times, calls: Ints) -> Times:
        """Let calls take no time, and short times before them neither."""
        before = self.edge_of_call[EdgeKind.HOST][calls[~self.long_gap[calls]]]
        before = before[before != NONE]
        return self.call_time(times, calls, 0).set_lag(before, np.minimum(times.lag[before], 0))

    def without_launches(self, times: Times, rows: Ints) -> Times:
        """Let operations that take no time not be launched either, unless their launch has others."""
        work = self.graph.work
        launches = np.setdiff1d(work.call[rows], np.delete(work.call, rows))
        return self.at_once(times, launches[self.graph.calls.kind[launches] == CallKind.LAUNCH])

    def calls_in(self, place: str, kinds: Collection[CallKind]) -> Ints:
        """Return the calls of some kinds that begin in a place."""
        calls = self.graph.calls
        return np.flatnonzero(self.inside(place)[calls.place] & np.isin(calls.kind, list(kinds)))

    def copies(self, times: Times, place: str) -> Times:
        """Hide copies: they take no time on their stream, and their calls return at once."""
        rows = np.flatnonzero(self.with_host & self.inside(place)[self.graph.work.place])
        calls = np.unique(self.graph.work.call[rows])
        return self.calls_at_once(times, calls, CALL_NS).without_work(rows)

    def communication(self, times: Times, factor: Floats) -> Times:
        """Scale the time that each operation communicates, without what it waits for others."""
        edges, communicates = self.graph.edges, self.graph.work.is_communication
        rows = edges.of(EdgeKind.TRANSFER)
        scaled = times.scale_lag(rows, factor[edges.row[rows]])
        return scaled.scale_alone(communicates, factor[communicates])

    def late_host(self, times: Times, late: int | None = None) -> Times:
        """Give a late rank the median host times of the other ranks, by step and place.

        Without a rank, remove each rank's excess host time of single steps.
        """
        edges, (in_calls, between) = self.edge_of_call[EdgeKind.CALL], self.host_excess(times, late)
        shorter = times.set_lag(edges, times.lag[edges] - np.rint(in_calls).astype(np.int64))
        return self.less_between(shorter, between)

    def host_excess(self, times: Times, late: int | None = None) -> tuple[Floats, Floats]:
        """Return the excess of each call and each piece of host time that `late_host` removes, in ns.

        Allocations and calls of MPI have none: they have causes of their own.
        """
        calls, pieces, rank = self.graph.calls, self.graph.pieces, self.graph.call_rank
        call_times = times.lag[self.edge_of_call[EdgeKind.CALL]].astype(float)
        in_calls = np.where(np.isin(calls.kind, _SEPARATE_CALLS), 0.0, call_times)
        between, step, ranks = pieces.length.astype(float), calls.step[pieces.call], len(self.graph.ranks)
        by_call = _Shares.of(calls.step, calls.place, (), rank, in_calls, ranks)
        by_piece = _Shares.of(step, pieces.place, (), rank[pieces.call], between, ranks)
        ratio = _ratio_to_usual if late is None else partial(_ratio_to_others, late=late)
        calls_ratio, pieces_ratio = (ratio(shares, stage=self.graph.stage) for shares in (by_call, by_piece))
        return in_calls * (1 - calls_ratio), between * (1 - pieces_ratio)

    def late_gpu(self, times: Times, late: int | None = None) -> Times:
        """Give a late rank the median compute times of the other ranks, by step, place, kernel and grid.

        Without a rank, remove excess compute of single steps; where compute varies, give all ranks the mean.
        """
        work = self.graph.work
        rows = np.flatnonzero(work.is_compute)
        step, place, finer = work.step[rows], work.place[rows], (work.name[rows], work.grid[rows])
        rank, ranks = self.graph.work_rank[rows], len(self.graph.ranks)
        shares = _Shares.of(step, place, finer, rank, times.alone[rows], ranks)
        ratio = _ratio_to_equal if late is None else partial(_ratio_to_others, late=late)
        return times.scale_alone(rows, ratio(shares, stage=self.graph.stage))


@dataclass(frozen=True)
class _Shares:
    """The times of rows in cells of equal work: step, place and, for kernels, name and grid.

    ``cells`` has the keys of each cell, with the step and the place first, and ``group`` the cell of each
    row. ``around`` is the number of each cell's place, and ``step`` that of its step.
    """

    rank: Ints
    time: Floats
    cells: Ints
    group: Ints
    around: Ints
    step: Ints
    ranks: int

    @classmethod
    def of(
        cls, step: Ints, place: Ints, finer: tuple[Ints, ...], rank: Ints, time: Floats, ranks: int
    ) -> _Shares:
        """Return the shares; ``finer`` has further keys of the cells. All arrays have shape (n,)."""
        cells, group = numbered_rows(step, place, *finer)
        return cls(rank, time, cells, group, numbered(cells[:, 1])[1], numbered(cells[:, 0])[1], ranks)

    def total(self) -> Floats:
        """Return the time of each cell on each rank."""
        return sums_by((len(self.cells), self.ranks), (self.group, self.rank), self.time)

    def of_places(self, total: Floats) -> Floats:
        """Return the sums over the cells of each place in each step, shape (places, steps, …)."""
        places, steps = (int(column.max(initial=-1)) + 1 for column in (self.around, self.step))
        return sums_by((places, steps, *total.shape[1:]), (self.around, self.step), total)

    def shortened(self, total: Floats, more: Floats, most: Floats) -> Floats:
        """Return the factor of each cell's time ``total`` that removes its excess ``more``.

        A place loses at most ``most`` in a step, shape (places, steps, …): with other input shapes, more of
        one kernel may be less of another.
        """
        longer = self.of_places(more)
        part = quotient(most, longer).clip(max=1.0)
        less = more * part[self.around, self.step]
        return 1 - quotient(less, total)


def _ratio_to_others(shares: _Shares, late: int, stage: Ints) -> Floats:
    """Return the factor that gives each row of a late rank the median time of its peers in the same cell.

    A rank that regains some of its excess in other steps is late only by the difference.
    """
    total = shares.total()
    usual = np.median(total[:, peers(late, stage)], axis=1)
    late_time = total[:, late]
    time_of_places = shares.of_places(total)
    excess = time_of_places[..., late] - np.median(time_of_places[..., peers(late, stage)], axis=-1)
    longer = excess.clip(min=0)
    late_at_all, sums = excess.sum(axis=1, keepdims=True).clip(min=0), longer.sum(axis=1, keepdims=True)
    longer *= quotient(late_at_all, sums)
    ratio = shares.shortened(late_time, (late_time - usual).clip(min=0), longer)
    return np.where(shares.rank == late, ratio[shares.group], 1.0)


def _ratio_to_usual(shares: _Shares, stage: Ints) -> Floats:
    """Return the factor that limits each row to the usual time of its cell.

    The usual time is the first quartile of the rank's steps or, if longer, the median of its peers in the
    same step. A rank that is late in every step stays late.
    """
    if not len(shares.time):
        return shares.time
    total = shares.total()
    time_of_places = shares.of_places(total)
    usual = np.maximum(_first_quartile(time_of_places), _peer_median(time_of_places, stage))
    # The cells of a kind, over all steps.
    _, kind = numbered_rows(*shares.cells.T[1:])
    by_step = np.zeros((int(kind.max()) + 1, time_of_places.shape[1], shares.ranks))
    by_step[kind, shares.step] = total
    limit = np.maximum(_first_quartile(by_step)[kind, 0], _peer_median(total, stage))
    more = (total - limit).clip(min=0)
    return shares.shortened(total, more, (time_of_places - usual).clip(min=0))[shares.group, shares.rank]


def _ratio_to_equal(shares: _Shares, stage: Ints) -> Floats:
    """Return the factor that gives each rank the mean of its peers in places whose time varies.

    With sequences of varying lengths no time is usual. Elsewhere the factor is that of `_ratio_to_usual`.
    """
    usual = _ratio_to_usual(shares, stage)
    if not len(usual):
        return usual
    time_of_places = shares.of_places(shares.total())
    usually = np.mean(
        time_of_places <= _MAX_QUARTILE_RATIO * _first_quartile(time_of_places), axis=1, keepdims=True
    )
    varies = (_of_peers(usually, stage, np.mean) < _MAX_USUAL_SHARE) & (time_of_places > 0)
    equal = np.divide(
        _of_peers(time_of_places, stage, np.mean),
        time_of_places,
        out=np.full_like(time_of_places, np.nan),
        where=varies,
    )
    ratio = equal[shares.around[shares.group], shares.step[shares.group], shares.rank]
    return np.where(np.isnan(ratio), usual, ratio)


def _first_quartile(total: Floats) -> Floats:
    return np.quantile(total, 0.25, axis=1, keepdims=True, method="lower")


def _peer_median(total: Floats, stage: Ints) -> Floats:
    return _of_peers(
        total,
        stage,
        lambda times, axis, keepdims: np.quantile(times, 0.5, axis, keepdims=keepdims, method="lower"),
    )


def _of_peers(total: Floats, stage: Ints, statistic: Callable[..., Floats]) -> Floats:
    """Return a statistic over the ranks of each rank's stage; ``total`` has the shape (…, ranks)."""
    result = np.empty_like(total)
    for number in range(int(stage.max(initial=0)) + 1):
        on_stage = stage == number
        result[..., on_stage] = statistic(total[..., on_stage], axis=-1, keepdims=True)
    return result


def peers(rank: int, stage: Ints) -> Ints:
    """Return the ranks to compare with a rank: the others of its stage or, if there are none, all others."""
    all_ranks = np.arange(len(stage))
    is_peer = (stage == stage[rank]) & (all_ranks != rank)
    return all_ranks[is_peer] if is_peer.any() else np.delete(all_ranks, rank)


def stage_medians(total: Floats, stage: Ints) -> Floats:
    """Return the median over the ranks of each stage; ``total`` has the shape (…, ranks)."""
    numbers = range(int(stage.max(initial=0)) + 1)
    return np.stack([np.median(total[..., stage == number], axis=-1) for number in numbers], axis=-1)
