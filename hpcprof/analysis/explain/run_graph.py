"""The graph of a run: the activities of its ranks, joined by their collectives."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar

import numpy as np

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.account.host_activity import NONE
from hpcprof.analysis.collectives.common_clock import RankClock
from hpcprof.analysis.collectives.matches import MESSAGE as MESSAGE_GROUP
from hpcprof.analysis.collectives.matches import MatchedGroup
from hpcprof.analysis.explain.mpi_part import MpiPart
from hpcprof.analysis.explain.rank_activity import HostCalls, HostPieces, RankActivity, Work
from hpcprof.analysis.explain.rank_edges import EdgeKind, Edges, RankEdges, edges_of
from hpcprof.analysis.mpi.matching import RunMpi
from hpcprof.analysis.statistics.components import component_numbers, connected_components
from hpcprof.analysis.steps.mpi_steps import mpi_calls_in_order
from hpcprof.profiles.collective_operations import FROM_ROOT, TO_ROOT, WAITING
from hpcprof.profiles.columns.intervals import coverage, union
from hpcprof.profiles.timeline import Category, Floats, Ints, Mask, concatenate


@dataclass(frozen=True)
class CommonClock:
    """The clock of a graph, and the conversion of each rank's time stamps to it.

    Ranks that communication does not connect with others, directly or through further ranks, have no part.
    """

    clocks: Mapping[int, RankClock]
    """By rank, on a clock that the ranks of a part have in common."""
    part: Mapping[int, int]
    """By rank, the label of its connected component of ranks with aligned clocks."""
    zero: Mapping[int, int]
    """By rank, the stamp of moment 0: on the clock of its part, or on its own clock without a part."""

    def common(self, rank: int, stamps: Ints) -> Ints:
        """Return stamps of a rank's own clock as moments in ns on the common one."""
        moments = self.clocks[rank].to_common(stamps) if rank in self.part else stamps
        return moments - self.zero[rank]

    def agree(self, ranks: Ints) -> bool:
        """Return whether the clocks of all these ranks are aligned with each other."""
        parts = {self.part.get(rank) for rank in ranks.tolist()}
        return len(parts) == 1 and None not in parts


def clock_parts(aligned: Collection[int], matched: Sequence[MatchedGroup] = ()) -> dict[int, int]:
    """Label the connected components of ranks with aligned clocks.

    ``aligned`` are ranks that are aligned with each other; the aligned groups of ``matched`` connect others.
    """
    return connected_components(
        [list(aligned), *(calls.ranks.tolist() for calls in matched if calls.aligned)]
    )


def common_clock(
    clocks: Mapping[int, RankClock], part: Mapping[int, int], fronts: Mapping[int, int]
) -> CommonClock:
    """Return the clock of a graph, on which its first step begins at moment 0.

    ``fronts`` are the begins of the first explained step of each rank, on its own clock. The ranks of each
    part (see `CommonClock`), and each rank without one, begin it at moment 0.
    """
    first: dict[int, int] = {}
    for rank in fronts.keys() & part.keys():
        begin = int(clocks[rank].to_common(np.array([fronts[rank]]))[0])
        first[part[rank]] = min(begin, first.get(part[rank], begin))
    zero = {rank: first[part[rank]] if rank in part else front for rank, front in fronts.items()}
    return CommonClock(clocks, part, zero)


_CLOCK_SHARE = 0.01
"""Maximum error of clocks, as a share of the wait for the root of a collective."""

_LONG_SEND = 2.0
"""Minimum ratio of a buffered send to the median of its pair of ranks, for one that waited for room."""

MESSAGE = "SendRecv"
"""The operation of the couplings of sends and receives."""


@dataclass(frozen=True)
class Coupling:
    """Communication in the graph: the node of the last rank's arrival, and the operation on each rank."""

    node: int
    op: str
    work: Ints


class Coupler:
    """Adds the nodes and edges that couple ranks.

    ``kernels`` has the communication of each rank, by its start on the rank's own clock; ``observed`` are the
    moments of the nodes so far, and ``first_work`` is the node of the start of the first operation.
    """

    def __init__(
        self, kernels: Mapping[int, Mapping[int, int]], observed: Ints, first_work: int, clock: CommonClock
    ) -> None:
        self.couplings: list[Coupling] = []
        self.moments: list[int] = []
        self._kernels, self._observed, self._first, self._clock = kernels, observed, first_work, clock
        self._parts: list[Edges] = []

    def edges(self) -> Edges:
        """Return the edges of all couplings."""
        return concatenate(Edges, self._parts)

    def couple_collectives(self, matched: Sequence[MatchedGroup]) -> None:
        """Let collectives end on all ranks their own time after the arrival of the last rank.

        The own time is the median over the ranks. Ranks outside the graph keep their measured delay after the
        last rank inside it. In collectives with a root, all others wait for the root, or it waits for all
        others (`_couple_rooted`).
        """
        for calls in matched:
            if len(calls.ranks) < 2 or not self._clock.agree(calls.ranks):
                continue
            rows = np.flatnonzero(calls.part == 0).tolist()
            works = {
                row: work
                for row in rows
                if (work := self._find_groups(calls.ranks, calls.start[row])) is not None
            }
            if calls.op in WAITING:
                for row, work in works.items():
                    late = int(calls.others_late[row])
                    time = self._end(work) - int(self._start(work).max()) - late
                    self._couple(calls.op, work, work, np.full(len(work), max(0, int(np.median(time)))), late)
            elif works and calls.op in FROM_ROOT | TO_ROOT:
                self._couple_rooted(calls.op, np.array([*works.values()]))

    def _couple_rooted(self, op: str, work: Ints) -> None:
        """Let the ranks wait for the root of collectives, or the root for them; ``work`` is (n, ranks).

        Profiles do not record the root (`_roots`).
        """
        start, end = self._start(work), self._end(work)
        ranks = work.shape[1]
        for row, root in enumerate(_roots(op in FROM_ROOT, start, end).tolist()):
            other_ranks = np.delete(np.arange(ranks), root)
            if op in TO_ROOT:
                time = max(0, int(end[row, root] - start[row].max()))
                self._couple(op, work[row], work[row, [root]], np.array([time]))
                continue
            for other in other_ranks.tolist():
                pair = work[row, [root, other]]
                time = max(0, int(end[row, other] - self._start(pair).max()))
                self._couple(op, pair, pair[1:], np.array([time]))

    def couple_messages(self, matched: Sequence[MatchedGroup]) -> None:
        """Let sends and receives end their own time after both ranks have come.

        A send that ended before its receive began went to a buffer: only the receive waits for it. A kernel
        with several messages ends its own time after the last of its partners.
        """
        pairs: list[Ints] = []
        for calls in matched:
            if self._clock.agree(calls.ranks):
                works = (self._find_groups(calls.ranks, start) for start in calls.start)
                messages = [work for work in works if work is not None]
                pairs += messages
                if messages:
                    self._await_room(*np.transpose(messages))
        both = [work for work in pairs if self._end(work)[0] > self._start(work)[1]]
        last: dict[int, int] = {}
        for work in both:
            arrival = int(self._start(work).max())
            for operation in work.tolist():
                last[operation] = max(last.get(operation, arrival), arrival)
        for work in both:
            time = self._end(work) - np.array([last[operation] for operation in work.tolist()])
            self._couple(MESSAGE, work, work, np.maximum(time, 0))
        for work in pairs:
            if self._end(work)[0] <= self._start(work)[1]:
                ends = self._nodes(work) + 1
                self._parts.append(edges_of(ends[:1], ends[1:], 0, EdgeKind.ARRIVE, work[1:]))

    def _await_room(self, send: Ints, receive: Ints) -> None:
        """Let a long send to a buffer end after the earlier receive that made room for it has begun.

        ``send`` and ``receive`` are the operations of each message from one rank to another.
        """
        sent, time = self._end(send), self._end(send) - self._start(send)
        longest = _LONG_SEND * float(np.median(time))
        order = np.argsort(self._start(receive))
        earlier = np.searchsorted(self._start(receive)[order], sent) - 1
        since = sent - self._start(receive)[order][earlier]
        buffered = (sent <= self._start(receive)) & (earlier >= 0)
        for row in np.flatnonzero(buffered & (time > longest) & (since <= longest)).tolist():
            pair = np.array([send[row], receive[order[earlier[row]]]])
            self._couple(MESSAGE, pair, pair[:1], since[[row]])

    def _find_groups(self, ranks: Ints, start: Ints) -> Ints | None:
        stamps = zip(ranks.tolist(), start.tolist(), strict=True)
        work = np.array([self._kernels.get(rank, {}).get(stamp, NONE) for rank, stamp in stamps], np.int64)
        return None if NONE in work else work

    def _nodes(self, work: Ints) -> Ints:
        return self._first + 2 * work

    def _start(self, work: Ints) -> Ints:
        return self._observed[self._nodes(work)]

    def _end(self, work: Ints) -> Ints:
        return self._observed[self._nodes(work) + 1]

    def _couple(self, op: str, work: Ints, waiting: Ints, time: Ints, late: int = 0) -> None:
        """Let some operations end their own time after all of ``work`` has begun, and ``late`` ns more."""
        node = len(self._observed) + len(self.couplings)
        arriving, ends = self._nodes(work), self._nodes(waiting) + 1
        self._parts += [
            edges_of(arriving, np.full(len(work), node), late, EdgeKind.ARRIVE, work),
            edges_of(np.full(len(waiting), node), ends, time, EdgeKind.TRANSFER, waiting),
        ]
        self.couplings.append(Coupling(node, op, work))
        self.moments.append(int(self._start(work).max()) + late)


def _roots(gives: bool, start: Ints, end: Ints) -> Ints:
    """Return the column of the root of each collective; ``start`` and ``end`` have shape (n, ranks).

    ``gives`` says whether the root sends its data to the others, or receives theirs.

    1. A rank may be the root if no receiver ends before its sender has begun. The clocks of ranks may be some
       microseconds apart, which is little beside a long wait (`_CLOCK_SHARE`).
    2. The root is the rank that may be the root of all collectives and that the others wait for most or, as
       a receiver, waits most.
    3. Without such a rank, the same holds for each collective by itself.
    """
    if gives:
        waited = start - start.min(axis=1, keepdims=True)
        possible = np.all(end[:, None, :] + _CLOCK_SHARE * waited[:, :, None] >= start[:, :, None], axis=2)
    else:
        waited = start.max(axis=1, keepdims=True) - start
        possible = np.all(start[:, None, :] <= (end + _CLOCK_SHARE * waited)[:, :, None], axis=2)
    always = possible.all(axis=0)
    if always.any():
        return np.full(len(start), int(np.argmax(np.where(always, waited.sum(axis=0), -1))))
    roots: Ints = np.argmax(np.where(possible, waited, -1), axis=1)
    return roots


def pipeline_stages(couplings: Sequence[Coupling], work_rank: Ints, ranks: int) -> Ints:
    """Return the number of the pipeline stage of each rank by its position; 0 if no rank sends messages.

    1. The connected components of the messages are the pipelines.
    2. The connected components of the collectives without two ranks of one pipeline, as in data and tensor
       groups, are the stages.
    """
    groups = {(coupling.op == MESSAGE, tuple(work_rank[coupling.work].tolist())) for coupling in couplings}
    if not any(sends for sends, _ in groups):
        return np.zeros(ranks, np.int64)
    pipeline = component_numbers([members for sends, members in groups if sends], ranks)
    inside = (members for sends, members in groups if not sends)
    one_per_pipeline = [
        members for members in inside if len(np.unique(pipeline[list(members)])) == len(members)
    ]
    return component_numbers(one_per_pipeline, ranks)


_MAX_ROUNDS = 5_000
"""Maximum number of passes that move nodes behind their sources, before cycles are taken out."""


@dataclass(frozen=True, eq=False)
class JoinedRanks:
    """The calls and operations of all ranks, and the nodes of a graph at which they start."""

    ranks: tuple[int, ...]
    calls: HostCalls
    work: Work
    pieces: HostPieces
    """The tables of all ranks one after another, on the common clock. Streams, threads, places and names are
    numbered over the run.
    """
    call_rank: Ints
    work_rank: Ints
    """The position in ``ranks`` of each call and operation."""
    places: tuple[str, ...]
    names: tuple[str, ...]
    """The texts of places and of names."""
    first_call: dict[int, int]
    first_work: dict[int, int]
    """The first call and operation of each rank."""

    def work_start(self, work: Ints | int) -> Ints:
        """Return the nodes of the starts of operations; their ends follow."""
        return 1 + 2 * (len(self.calls) + np.asarray(work, np.int64))


@dataclass(frozen=True, eq=False)
class RunGraph(JoinedRanks):
    """All explained steps of all ranks as one graph.

    Node 0 is the zero of the common clock. Then come the starts and ends of all calls, of all operations,
    and the moments at which the last rank has come to each collective.
    """

    edges: Edges
    """Sorted by the position of their targets in an order in which every edge leads forward."""
    order: Ints
    """The nodes in that order, a topological order; shape (nodes,)."""
    observed: Ints
    """Time of each node; shape (nodes,)."""
    front: Ints
    """The nodes at which the steps begin; the last one ends the last step; shape (ranks, steps + 1)."""
    couplings: tuple[Coupling, ...] = ()
    odd_ns: int = 0
    """See `RankEdges`."""
    inferred_waits: int = 0
    blocked: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """The calls that waited for the GPU."""
    paced_ranks: tuple[int, ...] = ()
    """The ranks whose host keeps pace with the GPU without a call that waits
    (`rank_activity.with_pauses`)."""
    mpi: MpiPart | None = None
    """The calls of MPI; None if not all ranks call it."""

    @cached_property
    def stage(self) -> Ints:
        """The number of the pipeline stage of each rank by its position; 0 without a pipeline."""
        if not self.is_pipeline:
            return np.zeros(len(self.ranks), np.int64)
        return pipeline_stages(self.couplings, self.work_rank, len(self.ranks))

    @cached_property
    def edge_rank(self) -> Ints:
        """The position in ``ranks`` of the rank whose call or operation each edge leads to."""
        node_ranks = (np.repeat(rank, 2) for rank in (self.call_rank, self.work_rank))
        # Edges to the nodes of communication keep their lags.
        rank = np.concatenate(([NONE], *node_ranks, np.full(len(self.order), NONE)))
        return rank[self.edges.target]

    def is_named(self, name: Ints, fits: Callable[[str], object]) -> Mask:
        """Return a mask of the name numbers ``name``, of any shape, whose name fits."""
        fitting: Mask = np.array([*map(bool, map(fits, self.names)), False])[name]
        return fitting

    def beside(self, start: Ints, end: Ints, category: Category, other: Category) -> Floats:
        """Return the overlap of each operation of a category with another category on its rank, in ns.

        ``start`` and ``end`` are the times of all operations; shape (operations,).
        """
        result = np.zeros(len(self.work))
        for rank in range(len(self.ranks)):
            rows, other_rows = (
                np.flatnonzero((self.work_rank == rank) & (self.work.category == kind))
                for kind in (category, other)
            )
            if len(other_rows):
                result[rows] = coverage(start[rows], end[rows], union(start[other_rows], end[other_rows]))
        return result

    @property
    def is_coupled(self) -> bool:
        """True if communication makes any rank wait for another one."""
        is_mpi = np.isin(self.edges.kind, (EdgeKind.MESSAGE, EdgeKind.JOIN))
        return bool(self.couplings) or bool(is_mpi.any())

    @property
    def is_pipeline(self) -> bool:
        """True if GPUs send messages in one direction: their ranks are stages with different work.

        If each message has a counterpart between the same two operations, the ranks exchange data, as in an
        all-to-all or with neighbours.
        """
        sent = {tuple(coupling.work.tolist()) for coupling in self.couplings if coupling.op == MESSAGE}
        return any((receiver, sender) not in sent for sender, receiver in sent)

    @property
    def is_of_host(self) -> bool:
        """True if the steps have no work on a GPU."""
        return not len(self.work)

    @property
    def front_call(self) -> Ints:
        """The call at the front of each step, or the call that launches its front; shape (ranks, steps)."""
        item = (self.front[:, : self.steps] - 1) // 2
        if not len(self.work):
            return item
        return self.work.call[item - len(self.calls)]

    @property
    def first_step(self) -> int:
        """The position of the first explained step among those of the capture."""
        return int(self.calls.step[self.front_call[0, 0]])

    @property
    def steps(self) -> int:
        """The number of explained steps."""
        return int(self.front.shape[1]) - 1


def run_graph(
    activities: Mapping[int, RankActivity],
    edges: Mapping[int, RankEdges],
    clock: CommonClock,
    matched: Sequence[MatchedGroup],
    mpi: RunMpi | None = None,
    in_files: Ints | None = None,
) -> RunGraph:
    """Join the ranks.

    ``activities`` are those of the ranks in ascending order, with equally many steps. Operations of
    ``matched`` between ranks with aligned clocks couple these (`Coupler`); ``mpi`` are the calls of these
    ranks on the clock that communication aligned, and ``in_files`` is as in `MpiPart`, by default none.
    """
    tables = _join_tables(activities, clock)
    calls, work = tables.calls, tables.work
    moments = (np.column_stack((table.start, table.end)).ravel() for table in (calls, work))
    observed = np.concatenate(([np.iinfo(np.int64).min // 4], *moments))
    inside = concatenate(Edges, _renumber_edges(activities, edges, clock, tables))
    kernels = {rank: _communication(item, tables.first_work[rank]) for rank, item in activities.items()}
    coupler = Coupler(kernels, observed, 1 + 2 * len(calls), clock)
    coupler.couple_collectives([match for match in matched if match.op != MESSAGE_GROUP])
    coupler.couple_messages([match for match in matched if match.op == MESSAGE_GROUP])
    observed = np.concatenate((observed, np.array(coupler.moments, np.int64)))
    coupled = coupler.edges()
    freed = coupled.target[coupled.kind == EdgeKind.TRANSFER]
    inside = inside.take(~((inside.kind == EdgeKind.RUN) & np.isin(inside.target, freed)))
    part = None
    if mpi is not None:
        # Without work on GPUs, calls are those of MPI.
        row = _rows_of_mpi(activities, tables, mpi) if len(work) else calls.row
        files = np.zeros(len(calls), np.int64) if in_files is None else in_files
        part = MpiPart(mpi, row, calls, tables.call_rank, len(activities), files)
        lag, call_edges = inside.lag.copy(), np.flatnonzero(inside.kind == EdgeKind.CALL)
        lag[call_edges] -= part.wait[inside.row[call_edges]]
        inside = replace(inside, lag=lag)
        coupled = concatenate(Edges, (coupled, *part.edges(len(observed))))
        observed = np.concatenate((observed, part.moments()))
    all_edges = concatenate(Edges, (inside, coupled))
    all_edges, order = in_order(all_edges, observed)
    blocked = [rank_part.blocked + tables.first_call[rank] for rank, rank_part in edges.items()]
    paced = (rank for rank, item in activities.items() if np.any(item.calls.kind == CallKind.PAUSE))
    return RunGraph(
        **vars(tables),
        edges=all_edges,
        order=order,
        observed=observed,
        front=_fronts(activities, tables),
        couplings=tuple(coupler.couplings),
        odd_ns=sum(rank_part.odd_ns for rank_part in edges.values()),
        inferred_waits=sum(rank_part.inferred_waits for rank_part in edges.values()),
        blocked=np.concatenate(blocked),
        paced_ranks=tuple(paced),
        mpi=part,
    )


def _rows_of_mpi(activities: Mapping[int, RankActivity], tables: JoinedRanks, mpi: RunMpi) -> Ints:
    places = np.full(len(tables.calls), NONE)
    for rank, activity in activities.items():
        rows, _ = mpi_calls_in_order(activity.timeline)
        first, last = np.searchsorted(mpi.calls.rank, [rank, rank + 1]).tolist()
        place = np.full(len(rows), NONE)
        place[rows[: last - first]] = np.arange(first, last)[: len(rows)]
        mpi_rows = np.flatnonzero(activity.calls.kind == CallKind.MPI)
        places[mpi_rows + tables.first_call[rank]] = place[
            activity.calls.row[mpi_rows] - len(activity.timeline.calls)
        ]
    return places


def _join_tables(activities: Mapping[int, RankActivity], clock: CommonClock) -> JoinedRanks:
    names: dict[str, int] = {}
    places: dict[str, int] = {}
    calls: list[HostCalls] = []
    work: list[Work] = []
    pieces: list[HostPieces] = []
    first_call, first_work = {}, {}
    threads = streams = at_call = at_work = 0
    for rank, part in activities.items():
        first_call[rank], first_work[rank] = at_call, at_work
        name, place = _numbers(names, part.names), _numbers(places, part.places)
        stamps = partial(clock.common, rank)
        call_rows = _renumbered(part.calls, stamps, name, place, at_call)
        work_rows = _renumbered(part.work, stamps, name, place, at_work)
        calls.append(replace(call_rows, thread=part.calls.thread + threads))
        work.append(replace(work_rows, stream=part.work.stream + streams, call=part.work.call + at_call))
        pieces.append(replace(part.pieces, call=part.pieces.call + at_call, place=place[part.pieces.place]))
        threads += int(part.calls.thread.max(initial=-1)) + 1
        streams += len(part.streams)
        at_call += len(part.calls)
        at_work += len(part.work)
    position = np.arange(len(activities))
    call_rank, work_rank = (np.repeat(position, [len(table) for table in tables]) for tables in (calls, work))
    return JoinedRanks(
        tuple(activities),
        concatenate(HostCalls, calls),
        concatenate(Work, work),
        concatenate(HostPieces, pieces),
        call_rank,
        work_rank,
        tuple(places),
        tuple(names),
        first_call,
        first_work,
    )


_Rows = TypeVar("_Rows", HostCalls, Work)


def _renumbered(rows: _Rows, stamps: Callable[[Ints], Ints], name: Ints, place: Ints, first: int) -> _Rows:
    """Return rows of a rank on the common clock, with the numbers that the run gives names and places."""
    before = np.where(rows.before == NONE, NONE, rows.before + first)
    start, end, name, place = stamps(rows.start), stamps(rows.end), name[rows.name], place[rows.place]
    return replace(rows, start=start, end=end, name=name, place=place, before=before)


def _numbers(number: dict[str, int], texts: Sequence[str]) -> Ints:
    """Return the number of each text, with `NONE` at the end for ids of -1; new texts are added."""
    return np.array([*(number.setdefault(text, len(number)) for text in texts), NONE], np.int64)


def _renumber_edges(
    activities: Mapping[int, RankActivity],
    edges: Mapping[int, RankEdges],
    clock: CommonClock,
    tables: JoinedRanks,
) -> list[Edges]:
    joined = []
    for rank, rank_edges in edges.items():
        local, calls = rank_edges.edges, 2 * len(activities[rank].calls)
        call_node = 1 + 2 * tables.first_call[rank]
        work_node = int(tables.work_start(tables.first_work[rank]))

        def node(number: Ints, calls: int = calls, call: int = call_node, work: int = work_node) -> Ints:
            return np.where(number < calls, number + call, number - calls + work)

        fixed = local.kind == EdgeKind.FIXED
        at_call = np.isin(local.kind, (EdgeKind.FIXED, EdgeKind.HOST, EdgeKind.CALL, EdgeKind.WAIT))
        first = np.where(at_call, tables.first_call[rank], tables.first_work[rank])
        lag = local.lag.copy()
        lag[fixed] = clock.common(rank, local.lag[fixed])
        source = np.where(fixed, 0, node(local.source))
        joined.append(Edges(source, node(local.target), lag, local.kind, local.row + first))
    return joined


def in_order(edges: Edges, observed: Ints) -> tuple[Edges, Ints]:
    """Return a topological order of the nodes, and the edges sorted by their targets in it.

    1. The order is that of time where possible.
    2. A node before one of its sources moves behind it: a call may return before its copy ends, and with
       inexact clocks a rank may end a collective before another one begins it.
    3. If that does not end, edges form cycles, which `_without_cycles` takes out.
    """
    moment = observed.copy()
    for _ in range(_MAX_ROUNDS):
        early = moment[edges.target] <= moment[edges.source]
        if not early.any():
            order = np.argsort(moment, kind="stable")
            return edges.take(np.argsort(np.argsort(order)[edges.target], kind="stable")), order
        np.maximum.at(moment, edges.target[early], moment[edges.source[early]] + 1)
    return in_order(_without_cycles(edges, observed), observed)


def _without_cycles(edges: Edges, observed: Ints) -> Edges:
    """Take out the edges of cycles (strongly connected components) that lead back in time.

    Such edges come from wrong inferences or time stamps. A node without another incoming edge, such as an
    operation that starts before its launch, keeps its measured time.
    """
    # Only profiles that contradict themselves need scipy.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components as scipy_components

    adjacency = coo_array((np.ones(len(edges)), (edges.source, edges.target)), (len(observed),) * 2)
    cycle = scipy_components(adjacency, connection="strong")[1]
    length = observed[edges.target] - observed[edges.source]
    # Without time between its nodes, a cycle needs an edge that leads to a lower number.
    back = (length < 0) | ((length == 0) & (edges.target < edges.source))
    acyclic = edges.take(~(back & (cycle[edges.source] == cycle[edges.target])))
    bare = np.setdiff1d(np.arange(1, len(observed)), acyclic.target)
    zero = np.zeros_like(bare)
    return concatenate(Edges, (acyclic, edges_of(zero, bare, observed[bare], EdgeKind.FIXED, zero)))


def _fronts(activities: Mapping[int, RankActivity], tables: JoinedRanks) -> Ints:
    rows = []
    for rank, activity in activities.items():
        if not len(tables.work):
            rows.append(1 + 2 * (activity.front + tables.first_call[rank]))
            continue
        first = tables.first_work[rank]
        last = np.arange(activity.last, activity.last + (activity.last != NONE)) + first
        rows.append(np.append(tables.work_start(activity.front + first), tables.work_start(last) + 1))
    return np.array(rows, np.int64)


def _communication(activity: RankActivity, first: int) -> dict[int, int]:
    """Return the row in the run of each communication operation of a rank, by its start on its own clock."""
    rows = np.flatnonzero(activity.work.is_communication)
    return dict(zip(activity.work.start[rows].tolist(), (rows + first).tolist(), strict=True))
