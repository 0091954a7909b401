"""The graph of a run: the activities of its ranks, joined by their collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from hpcprof.analysis.collectives.matches import MESSAGE as MESSAGE_GROUP
from hpcprof.analysis.collectives.matches import MatchedGroup
from hpcprof.analysis.explain.common_clock import CommonClock
from hpcprof.analysis.explain.couplings import MESSAGE, Coupler, Coupling, pipeline_stages
from hpcprof.analysis.explain.host_activity import NONE
from hpcprof.analysis.explain.mpi_part import MpiNeeds, MpiPart
from hpcprof.analysis.explain.rank_activity import CallKind, HostCalls, HostPieces, RankActivity, Work
from hpcprof.analysis.explain.rank_edges import EdgeKind, Edges, RankEdges
from hpcprof.analysis.mpi.matching import RunMpi
from hpcprof.analysis.steps.mpi_steps import mpi_calls_in_order
from hpcprof.profiles.timeline import Category, Ints, concatenate

_MOST_ROUNDS = 5_000


@dataclass(frozen=True, eq=False)
class RunGraph:
    """All explained steps of all ranks as one graph.

    Node 0 is the zero of the common clock. Then come the starts and ends of all calls, of all operations,
    and the moments at which the last rank has come to each collective.

    Attributes
    ----------
    calls, work, pieces : HostCalls, Work, HostPieces
        Those of all ranks one after another, on the common clock. Streams, threads, places, names and grids
        are numbered over the run.
    call_rank, work_rank : ndarray of int64
        The position in ``ranks`` of each call and operation.
    places, names : tuple of str
        The texts of places and of names.
    edges : Edges
        Sorted by the position of their targets in an order in which every edge leads forward.
    order : ndarray of int64, shape (nodes,)
        The nodes in that order.
    observed : ndarray of int64, shape (nodes,)
        When each node happened.
    front : ndarray of int64, shape (ranks, steps + 1)
        The nodes at which the steps begin; the last one ends the last step.
    odd_ns : int
        See `RankEdges`.
    blocked : ndarray of int64
        The calls that waited for the GPU.
    paced_ranks : tuple of int
        The ranks whose host keeps pace with the GPU without a call that waits (`host_pace.with_pauses`).
    mpi : MpiPart or None
        The calls of MPI; None if not all ranks call it.
    """

    ranks: tuple[int, ...]
    calls: HostCalls
    work: Work
    pieces: HostPieces
    call_rank: Ints
    work_rank: Ints
    places: tuple[str, ...]
    names: tuple[str, ...]
    edges: Edges
    order: Ints
    observed: Ints
    front: Ints
    couplings: tuple[Coupling, ...] = ()
    odd_ns: int = 0
    inferred_waits: int = 0
    blocked: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    paced_ranks: tuple[int, ...] = ()
    mpi: MpiPart | None = None

    @cached_property
    def stage(self) -> Ints:
        """The number of the pipeline stage of each rank by its position; 0 without a pipeline."""
        return pipeline_stages(self.couplings, self.work_rank, len(self.ranks))

    @property
    def is_coupled(self) -> bool:
        """True if any rank needs what another one does."""
        of_mpi = np.isin(self.edges.kind, (EdgeKind.MESSAGE, EdgeKind.JOIN))
        return bool(self.couplings) or bool(of_mpi.any())

    @property
    def is_pipeline(self) -> bool:
        """True if GPUs send each other messages: their ranks then are stages with different work."""
        return any(one.op == MESSAGE for one in self.couplings)

    @property
    def is_of_host(self) -> bool:
        """True if the steps have no work on a GPU."""
        return not len(self.work)

    @property
    def front_call(self) -> Ints:
        """The call that is the front of each step, or launches the operation that is; (ranks, steps)."""
        item = (self.front[:, : self.steps] - 1) // 2
        if not len(self.work):
            return item
        launched: Ints = self.work.call[item - len(self.calls)]
        return launched

    @property
    def is_closed(self) -> bool:
        """True if the last step ends where a further one begins, not with its own last operation."""
        # Nodes of starts are odd, those of ends even.
        return bool(self.front[0, -1] % 2)

    @property
    def steps(self) -> int:
        """The number of explained steps."""
        return int(self.front.shape[1]) - 1

    def call_start(self, call: Ints) -> Ints:
        """Return the nodes of the starts of calls; their ends follow."""
        return 1 + 2 * call

    def work_start(self, work: Ints) -> Ints:
        """Return the nodes of the starts of operations; their ends follow."""
        return 1 + 2 * (len(self.calls) + work)


def run_graph(
    activities: Mapping[int, RankActivity],
    edges: Mapping[int, RankEdges],
    clock: CommonClock,
    matched: Sequence[MatchedGroup],
    mpi: RunMpi | None = None,
) -> RunGraph:
    """Join the ranks.

    Parameters
    ----------
    activities : mapping of int to RankActivity
        By rank, in ascending order, with equally many steps.
    matched : sequence of MatchedGroup
        Those between ranks with aligned clocks couple the ranks (`Coupler`).
    mpi : RunMpi, optional
        The calls of MPI of these ranks on the clock that communication aligned.
    """
    ranks = tuple(activities)
    tables = _joined(activities, clock)
    calls, work = tables.calls, tables.work
    nodes = 1 + 2 * (len(calls) + len(work))
    observed = np.empty(nodes, np.int64)
    observed[0] = np.iinfo(np.int64).min // 4
    observed[1 : 1 + 2 * len(calls)] = np.column_stack((calls.start, calls.end)).ravel()
    observed[1 + 2 * len(calls) :] = np.column_stack((work.start, work.end)).ravel()
    inside = concatenate(Edges, _renumbered(activities, edges, clock, tables))
    kernels = {rank: _communication(one, tables.first_work[rank]) for rank, one in activities.items()}
    coupler = Coupler(kernels, observed, 1 + 2 * len(calls), clock)
    coupler.couple_collectives([one for one in matched if one.op != MESSAGE_GROUP])
    coupler.couple_messages([one for one in matched if one.op == MESSAGE_GROUP])
    observed = np.concatenate((observed, np.array(coupler.moments, np.int64)))
    coupled = coupler.edges()
    freed = coupled.target[coupled.kind == EdgeKind.TRANSFER]
    inside = inside.take(~((inside.kind == EdgeKind.RUN) & np.isin(inside.target, freed)))
    part = None
    if mpi is not None:
        needs = MpiNeeds(mpi, calls, _rows_of_mpi(activities, tables, mpi))
        part = needs.part(tables.call_rank, len(ranks), np.zeros(len(calls), np.int64))
        lag, own = inside.lag.copy(), np.flatnonzero(inside.kind == EdgeKind.CALL)
        lag[own] -= part.wait[inside.row[own]]
        inside = replace(inside, lag=lag)
        coupled = concatenate(Edges, (coupled, *needs.edges(len(observed))))
        observed = np.concatenate((observed, needs.moments()))
    every = concatenate(Edges, (inside, coupled))
    every, order = in_order(every, observed)
    return RunGraph(
        ranks=ranks,
        calls=calls,
        work=work,
        pieces=tables.pieces,
        call_rank=tables.call_rank,
        work_rank=tables.work_rank,
        places=tables.places,
        names=tables.names,
        edges=every,
        order=order,
        observed=observed,
        front=_fronts(activities, tables),
        couplings=tuple(coupler.couplings),
        odd_ns=sum(one.odd_ns for one in edges.values()),
        inferred_waits=sum(one.inferred_waits for one in edges.values()),
        blocked=np.concatenate([one.blocked + tables.first_call[rank] for rank, one in edges.items()]),
        paced_ranks=tuple(
            rank for rank, one in activities.items() if np.any(one.calls.kind == CallKind.PAUSE)
        ),
        mpi=part,
    )


def _rows_of_mpi(activities: Mapping[int, RankActivity], tables: _Joined, mpi: RunMpi) -> Ints:
    """Return the position in the calls of MPI of the run of each call of the graph, or `NONE`."""
    found = np.full(len(tables.calls), NONE)
    for rank, one in activities.items():
        rows, _ = mpi_calls_in_order(one.timeline)
        first, last = np.searchsorted(mpi.calls.rank, [rank, rank + 1]).tolist()
        place = np.full(len(rows), NONE)
        place[rows[: last - first]] = np.arange(first, last)[: len(rows)]
        own = np.flatnonzero(one.calls.kind == CallKind.MPI)
        found[own + tables.first_call[rank]] = place[one.calls.row[own] - len(one.timeline.calls)]
    return found


@dataclass(frozen=True)
class _Joined:
    """The tables of all ranks; ``first_call`` and ``first_work`` are the first row of each rank."""

    calls: HostCalls
    work: Work
    pieces: HostPieces
    call_rank: Ints
    work_rank: Ints
    places: tuple[str, ...]
    names: tuple[str, ...]
    first_call: dict[int, int]
    first_work: dict[int, int]

    def work_start(self, work: Ints) -> Ints:
        return 1 + 2 * (len(self.calls) + work)


def _joined(activities: Mapping[int, RankActivity], clock: CommonClock) -> _Joined:
    names, places = _Texts(), _Texts()
    calls, work, pieces, call_rank, work_rank = [], [], [], [], []
    first_call, first_work = {}, {}
    threads = streams = 0
    at_call = at_work = 0
    for number, (rank, one) in enumerate(activities.items()):
        first_call[rank], first_work[rank] = at_call, at_work
        name = names.numbers(one.timeline.strings.tolist())
        place = places.numbers(one.places)
        moved = {
            "start": clock.common(rank, one.calls.start),
            "end": clock.common(rank, one.calls.end),
            "thread": one.calls.thread + threads,
            "name": name[one.calls.name],
            "place": place[one.calls.place],
            "before": shifted(one.calls.before, at_call),
        }
        calls.append(replace(one.calls, **moved))
        work.append(
            replace(
                one.work,
                start=clock.common(rank, one.work.start),
                end=clock.common(rank, one.work.end),
                stream=one.work.stream + streams,
                name=name[one.work.name],
                call=one.work.call + at_call,
                place=place[one.work.place],
                before=shifted(one.work.before, at_work),
            )
        )
        pieces.append(replace(one.pieces, call=one.pieces.call + at_call, place=place[one.pieces.place]))
        call_rank.append(np.full(len(one.calls), number))
        work_rank.append(np.full(len(one.work), number))
        threads += int(one.calls.thread.max(initial=-1)) + 1
        streams += len(one.streams)
        at_call += len(one.calls)
        at_work += len(one.work)
    return _Joined(
        concatenate(HostCalls, calls),
        concatenate(Work, work),
        concatenate(HostPieces, pieces),
        np.concatenate(call_rank),
        np.concatenate(work_rank),
        tuple(places.texts),
        tuple(names.texts),
        first_call,
        first_work,
    )


class _Texts:
    """The texts of several string tables with numbers of their own."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}

    @property
    def texts(self) -> list[str]:
        return list(self._number)

    def numbers(self, texts: Sequence[str]) -> Ints:
        """Return the number of each text; the last one is `NONE`, for ids of -1."""
        found = [self._number.setdefault(text, len(self._number)) for text in texts]
        return np.array([*found, NONE], np.int64)


def shifted(rows: Ints, by: int) -> Ints:
    """Return rows that have moved; `NONE` stays."""
    return np.where(rows == NONE, NONE, rows + by)


def _renumbered(
    activities: Mapping[int, RankActivity],
    edges: Mapping[int, RankEdges],
    clock: CommonClock,
    tables: _Joined,
) -> list[Edges]:
    """Return the edges of each rank between nodes of the run, with moments on the common clock."""
    found = []
    for rank, one in edges.items():
        own, calls = one.edges, 2 * len(activities[rank].calls)
        call_node = 1 + 2 * tables.first_call[rank]
        work_node = int(tables.work_start(np.array(tables.first_work[rank])))

        def node(number: Ints, calls: int = calls, call: int = call_node, work: int = work_node) -> Ints:
            result: Ints = np.where(number < calls, number + call, number - calls + work)
            return result

        fixed = own.kind == EdgeKind.FIXED
        of_call = np.isin(own.kind, (EdgeKind.FIXED, EdgeKind.HOST, EdgeKind.CALL, EdgeKind.WAIT))
        first = np.where(of_call, tables.first_call[rank], tables.first_work[rank])
        lag = own.lag.copy()
        lag[fixed] = clock.common(rank, own.lag[fixed])
        source = np.where(fixed, 0, node(own.source))
        found.append(Edges(source, node(own.target), lag, own.kind, own.row + first))
    return found


def in_order(edges: Edges, observed: Ints) -> tuple[Edges, Ints]:
    """Return edges by their targets, and the nodes in an order in which every edge leads forward.

    The order is that of time if it can. A call may return before its copy ends, and where clocks are not
    aligned exactly, a rank may end a collective before another one begins it. A node that is too early moves
    behind its source. Where edges contradict each other, no such order exists until `_without_cycles`.
    """
    moment = observed.copy()
    for _ in range(_MOST_ROUNDS):
        early = moment[edges.target] <= moment[edges.source]
        if not early.any():
            order = np.argsort(moment, kind="stable")
            return edges.take(np.argsort(np.argsort(order)[edges.target], kind="stable")), order
        np.maximum.at(moment, edges.target[early], moment[edges.source[early]] + 1)
    return in_order(_without_cycles(edges, observed), observed)


def _without_cycles(edges: Edges, observed: Ints) -> Edges:
    """Take out the edges of cycles that lead back in time: what was inferred, or time stamps, are wrong.

    A node that nothing else leads to, such as an operation that starts before its launch, happens when it
    happened.
    """
    # Only profiles that contradict themselves need scipy.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    nodes = len(observed)
    graph = coo_array((np.ones(len(edges)), (edges.source, edges.target)), (nodes, nodes))
    _, cycle = connected_components(graph, connection="strong")
    length = observed[edges.target] - observed[edges.source]
    # Without time between its nodes, a cycle needs an edge that leads to a lower number.
    back = (length < 0) | ((length == 0) & (edges.target < edges.source))
    kept = edges.take(~(back & (cycle[edges.source] == cycle[edges.target])))
    bare = np.setdiff1d(np.arange(1, nodes), kept.target)
    zero = np.zeros_like(bare)
    fixed = Edges(zero, bare, observed[bare], np.full_like(bare, int(EdgeKind.FIXED)), zero)
    return concatenate(Edges, (kept, fixed))


def _fronts(activities: Mapping[int, RankActivity], tables: _Joined) -> Ints:
    """Return the nodes between which the steps of each rank lie, shape (ranks, steps + 1)."""
    rows = []
    for rank, one in activities.items():
        first = tables.first_work[rank]
        nodes = tables.work_start(one.front + first).tolist()
        rows.append(
            [*nodes, *([] if one.last == NONE else [int(tables.work_start(np.array(one.last + first))) + 1])]
        )
    return np.array(rows, np.int64)


def _communication(one: RankActivity, first: int) -> dict[int, int]:
    """Return the communication of a rank by its start on the rank's own clock."""
    rows = np.flatnonzero(one.work.category == Category.COMM)
    return dict(zip(one.work.start[rows].tolist(), (rows + first).tolist(), strict=True))
