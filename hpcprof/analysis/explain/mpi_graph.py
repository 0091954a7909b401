"""The graph of a run whose steps are measured on the host: MPI calls, and what its ranks do between them.

A call ends when all that it needs has come: a receive needs the start of its send, a send that waits the
start of its receive, a collective the start of every rank, or of the root. After that it takes its own time,
the transfer. A nonblocking operation begins in one call and ends in another, its wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcprof.analysis.explain.common_clock import CommonClock
from hpcprof.analysis.explain.host_activity import NONE, divided
from hpcprof.analysis.explain.places import places_of
from hpcprof.analysis.explain.rank_activity import CallKind, Calls, HostPieces, Work
from hpcprof.analysis.explain.rank_edges import EdgeKind, Edges
from hpcprof.analysis.explain.run_graph import RunGraph, in_order
from hpcprof.analysis.mpi.matching import RunMpi, collective_tables
from hpcprof.analysis.mpi.waits import blocked_sends
from hpcprof.analysis.steps.mpi_steps import mpi_calls_in_order
from hpcprof.analysis.steps.step_ranges import Steps, steps_of
from hpcprof.profiles.collective_operations import FROM_ROOT, TO_ROOT, WAITING
from hpcprof.profiles.columns.unique import numbered_rows, rows_by_key
from hpcprof.profiles.timeline import Ints, Timeline, concatenate

_LATEST = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, eq=False)
class MpiGraph(RunGraph):
    """The graph of a program with MPI and without work on a GPU.

    Its calls are those of MPI, and one without a length where each step begins.

    Attributes
    ----------
    mpi : RunMpi
        The calls of the run. ``calls.row`` are positions in them, `NONE` where a step begins.
    wait : ndarray of int64, shape (calls,)
        How long each call waited for others.
    messages : ndarray of int64, shape (m, 2)
        The sending and the receiving rank of each message, by position.
    relays : ndarray of int64, shape (r, 3)
        Of messages whose sender had received another one before: the rank that sent that one last, the
        sender, and the receiver.
    """

    mpi: RunMpi
    wait: Ints
    messages: Ints
    relays: Ints

    @cached_property
    def stage(self) -> Ints:
        """Zero for each rank: all ranks are compared with each other."""
        return np.zeros(len(self.ranks), np.int64)

    @property
    def is_coupled(self) -> bool:
        """True if any rank needs what another one does."""
        return bool(np.isin(self.edges.kind, (EdgeKind.MESSAGE, EdgeKind.JOIN)).any())

    @cached_property
    def directions(self) -> Ints:
        """The messages from each rank to each other one, shape (ranks, ranks)."""
        found = np.zeros((len(self.ranks), len(self.ranks)), np.int64)
        np.add.at(found, tuple(self.messages.T), 1)
        return found

    @cached_property
    def is_pipeline(self) -> bool:
        """True if messages pass from rank to rank, through others, and not around a ring.

        They may pass back the same way. Ranks that exchange messages with their neighbours send to the one
        from which they received as often as to another one.
        """
        found = self.directions
        inner = np.count_nonzero(found + found.T, axis=0) > 1
        relays = self.relays[inner[self.relays[:, 1]]]
        passed = relays[relays[:, 0] != relays[:, 2]]
        if not len(passed) or len(passed) < _RELAYED * len(relays):
            return False
        after: dict[tuple[int, int], set[tuple[int, int]]] = {}
        for source, rank, target in np.unique(passed, axis=0).tolist():
            after.setdefault((source, rank), set()).add((rank, target))
        return _is_acyclic(after)

    @cached_property
    def server(self) -> int:
        """The position of the rank with which all others exchange their messages; `NONE` without."""
        found = self.directions
        if len(found) <= 2 or not found.any():
            return NONE
        hub = int((found.sum(axis=0) + found.sum(axis=1)).argmax())
        others = np.delete(np.arange(len(found)), hub)
        serves = (found[hub, others] > 0) & (found[others, hub] > 0)
        return hub if serves.all() and not found[np.ix_(others, others)].any() else NONE


_RELAYED = 0.75
"""In a pipeline so many of the messages that follow others go on, except those of the first and last rank."""

_NEAR_NS = 20_000
"""Moments of two ranks that are so close may be in the other order."""

_MOSTLY = 0.75
"""A wait ends soon after a moment if it has lasted for so much of its time by then."""


def common_steps(timelines: Mapping[int, Timeline]) -> Ints:
    """Return the numbers of the steps that all ranks have."""
    numbers = [steps_of(timeline).number for timeline in timelines.values()]
    found = numbers[0]
    for other in numbers[1:]:
        found = np.intersect1d(found, other)
    return found


def step_start(timeline: Timeline, number: int) -> int:
    """Return when a step begins on the host, on the profile's clock."""
    steps = steps_of(timeline)
    return int(steps.ranges.start[np.searchsorted(steps.number, number)])


def mpi_graph(timelines: Mapping[int, Timeline], run: RunMpi, clock: CommonClock, numbers: Ints) -> MpiGraph:
    """Build the graph of some steps.

    Parameters
    ----------
    timelines : mapping of int to Timeline
        By rank, in ascending order.
    run : RunMpi
        The calls of these ranks on the clock that communication aligned.
    clock : CommonClock
    numbers : ndarray of int64, shape (steps,)
        The numbers of the steps, which follow each other on every rank.
    """
    parts = [_rank_calls(rank, timeline, run, clock, numbers) for rank, timeline in timelines.items()]
    first = np.cumsum([0, *(len(part.calls) for part in parts)])
    calls = concatenate(
        Calls,
        [_moved(part.calls, int(at)) for part, at in zip(parts, first[:-1], strict=True)],
    )
    places, pieces = _pieces(timelines, parts, run, first)
    # A call is where its rank was before it.
    calls.place[pieces.call] = pieces.place
    call_rank = np.repeat(np.arange(len(parts)), np.diff(first))
    observed = np.concatenate(
        ([np.iinfo(np.int64).min // 4], np.column_stack((calls.start, calls.end)).ravel())
    )
    node = np.full(len(run.calls) + 1, NONE)
    known = np.flatnonzero(calls.row != NONE)
    node[calls.row[known]] = known
    needs = _Needs(run, node, calls)
    wait = needs.waits()
    edges = concatenate(Edges, [*_own_edges(calls, wait), *needs.edges(calls.end - calls.start - wait)])
    observed = np.concatenate((observed, needs.moments()))
    edges, order = in_order(edges, observed)
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    fronts = [1 + 2 * (part.fronts + at) for part, at in zip(parts, first[:-1], strict=True)]
    return MpiGraph(
        ranks=tuple(timelines),
        calls=calls,
        work=Work.empty(),
        pieces=pieces,
        call_rank=call_rank,
        work_rank=np.empty(0, np.int64),
        places=places,
        names=tuple(run.calls.names),
        edges=edges.take(np.argsort(position[edges.target], kind="stable")),
        order=order,
        observed=observed,
        front=np.array(fronts, np.int64),
        couplings=(),
        odd_ns=0,
        inferred_waits=0,
        blocked=np.empty(0, np.int64),
        paced_ranks=(),
        mpi=run,
        wait=wait,
        messages=call_rank[needs.messages],
        relays=_relays(needs.messages, calls.thread, call_rank),
    )


@dataclass(frozen=True)
class _RankCalls:
    """The calls of a rank in the steps, and the places among them at which steps begin.

    ``following`` is the position in the run of the call of MPI that each one is, or that comes next. The
    stamps ``own_start`` and ``own_end`` are those of the rank's own clock.
    """

    calls: Calls
    fronts: Ints
    following: Ints
    own_start: Ints
    own_end: Ints


def _rank_calls(rank: int, timeline: Timeline, run: RunMpi, clock: CommonClock, numbers: Ints) -> _RankCalls:
    steps = steps_of(timeline)
    bounds = _bounds(steps, numbers)
    every = run.calls
    low, high = np.searchsorted(every.rank, [rank, rank + 1])
    rows = np.arange(low, high)
    rows = rows[(every.own_start[rows] >= bounds[0]) & (every.own_start[rows] < bounds[-1])]
    main = every.sequence[low] if high > low else 0
    last_of_main = int(np.searchsorted(every.sequence[low:high], main, side="right")) + low
    count = len(bounds)
    row = np.concatenate((np.full(count, NONE), rows))
    sequence = np.concatenate((np.full(count, main), every.sequence[rows]))
    start = np.concatenate((bounds, every.own_start[rows]))
    end = np.concatenate((bounds, every.own_end[rows]))
    order = np.lexsort((row != NONE, start, sequence))
    next_row = low + np.searchsorted(every.own_start[low:last_of_main], bounds)
    following = np.concatenate((np.where(next_row < last_of_main, next_row, NONE), rows))
    row, sequence, start, end, following = (one[order] for one in (row, sequence, start, end, following))
    again = np.append(False, sequence[1:] == sequence[:-1])
    # Calls of a thread do not overlap, but stamps of damaged profiles may.
    begin = np.maximum(start, np.where(again, np.append(start[:1], end[:-1]), start))
    step = np.clip(np.searchsorted(bounds, start, side="right") - 1, 0, len(numbers) - 1)
    name = np.where(row == NONE, NONE, every.name[row])
    calls = Calls(
        row=row,
        start=clock.common(rank, begin),
        end=clock.common(rank, np.maximum(begin, end)),
        thread=sequence,
        kind=np.where(row == NONE, int(CallKind.OTHER), int(CallKind.MPI)),
        name=name,
        place=np.full(len(row), NONE),
        step=step,
        before=np.where(again, np.arange(len(row)) - 1, NONE),
    )
    return _RankCalls(calls, np.flatnonzero(row == NONE), following, begin, np.maximum(begin, end))


def _bounds(steps: Steps, numbers: Ints) -> Ints:
    """Return when some steps begin on the rank's own clock, and when the last one ends."""
    at = np.searchsorted(steps.number, numbers)
    last = int(at[-1])
    end = steps.ranges.start[last + 1] if last + 1 < len(steps) else steps.ranges.end[last]
    return np.append(steps.ranges.start[at], max(int(end), int(steps.ranges.start[last])))


def _moved(calls: Calls, by: int) -> Calls:
    columns = {name: getattr(calls, name) for name in Calls.__match_args__}
    columns["before"] = np.where(calls.before == NONE, NONE, calls.before + by)
    return Calls(**columns)


def _pieces(
    timelines: Mapping[int, Timeline], parts: Sequence[_RankCalls], run: RunMpi, first: Ints
) -> tuple[tuple[str, ...], HostPieces]:
    """Return the places, and the time before each call divided by them.

    Outside the program's own ranges, a place is that between two calls of MPI.
    """
    number: dict[str, int] = {}
    found = []
    for (rank, timeline), part, at in zip(timelines.items(), parts, first[:-1].tolist(), strict=True):
        calls = part.calls
        main = run.calls.sequence[np.searchsorted(run.calls.rank, rank)]
        gaps = np.flatnonzero(calls.before != NONE)
        start, end = part.own_end[calls.before[gaps]], part.own_start[gaps]
        filled = end > start
        gaps, start, end = gaps[filled], start[filled], end[filled]
        own = np.full(len(gaps), NONE)
        owner, begin, finish = np.arange(len(gaps)), start, end
        if len(timeline.ranges) and len(gaps):
            owner, begin, finish, own = _divided(timeline, calls.thread[gaps] - main, start, end, number)
        between = _between(run, part.following[gaps], number)
        place = np.where(own == NONE, between[owner], own)
        found.append(HostPieces(gaps[owner] + at, place, finish - begin))
    return tuple(number), concatenate(HostPieces, found)


def _divided(
    timeline: Timeline, thread: Ints, start: Ints, end: Ints, number: dict[str, int]
) -> tuple[Ints, Ints, Ints, Ints]:
    """Divide the times between calls of threads by ranges: the number of the time, its parts and places."""
    places = places_of(timeline, int(start.min()), int(end.max()))
    rows, order = mpi_calls_in_order(timeline)
    columns = []
    for (number_of_thread,), mine in rows_by_key(thread):
        row = int(rows[np.searchsorted(order, number_of_thread)])
        key = (int(timeline.mpi_calls.process[row]), int(timeline.mpi_calls.thread[row]))
        own, marking = places.of(key)
        owner, begin, finish = divided((own, marking), start[mine], end[mine])
        place = own.at(begin)
        place = np.where(place == NONE, marking.at(begin), place)
        columns.append((mine[owner], begin, finish, place))
    owner, begin, finish, place = (np.concatenate(column) for column in zip(*columns, strict=True))
    texts = [number.setdefault(text, len(number)) if text else NONE for text in places.texts]
    return owner, begin, finish, np.array([*texts, NONE], np.int64)[place]


def _between(run: RunMpi, following: Ints, number: dict[str, int]) -> Ints:
    """Return the places between two calls of MPI, by the second of them."""
    calls = run.calls
    last = following == NONE
    before = np.where(following > 0, calls.name[following - 1], NONE)
    before[calls.first[np.searchsorted(calls.first, following, side="right") - 1] == following] = NONE
    pairs, which = numbered_rows(before, np.where(last, NONE, calls.name[following]))
    texts = [between_calls(*(calls.names[one] if one != NONE else None for one in pair)) for pair in pairs]
    known = np.array([number.setdefault(text, len(number)) for text in texts], np.int64)
    return known[which] if len(known) else np.empty(0, np.int64)


def between_calls(one: str | None, other: str | None) -> str:
    """Return the name of the place between two calls of MPI, either of which may be unknown."""
    if one is None or other is None:
        return f"before {other}" if other else f"after {one}"
    return f"between {one} and {other}"


def _edges(source: Ints, target: Ints, lag: Ints | int, kind: EdgeKind, row: Ints) -> Edges:
    lags = np.broadcast_to(np.asarray(lag, np.int64), row.shape)
    return Edges(source, target, lags, np.full(len(row), int(kind)), row)


def _own_edges(calls: Calls, wait: Ints) -> list[Edges]:
    every = np.arange(len(calls))
    follows, first = np.flatnonzero(calls.before != NONE), np.flatnonzero(calls.before == NONE)
    gap = calls.start[follows] - calls.end[calls.before[follows]]
    own = calls.end - calls.start - wait
    return [
        _edges(2 + 2 * calls.before[follows], 1 + 2 * follows, gap, EdgeKind.HOST, follows),
        _edges(np.zeros_like(first), 1 + 2 * first, calls.start[first], EdgeKind.FIXED, first),
        _edges(1 + 2 * every, 2 + 2 * every, own, EdgeKind.CALL, every),
    ]


def _relays(messages: Ints, thread: Ints, rank: Ints) -> Ints:
    """Return the ranks by which messages go on: whose message came last before, the sender, the receiver.

    Of several messages that came in one call, that of the rank to which the new one goes counts.

    Parameters
    ----------
    messages : ndarray of int64, shape (m, 2)
        The calls in which messages are sent and received.
    thread, rank : ndarray of int64, shape (calls,)
    """
    order = np.argsort(messages[:, 1], kind="stable")
    sent, received = messages[order].T
    last = np.searchsorted(received, sent) - 1
    known = np.flatnonzero((last >= 0) & (thread[received[last]] == thread[sent]))
    came, target = received[last[known]], rank[received[known]]
    ranks = int(rank.max(initial=0)) + 1
    answers = np.isin(came * ranks + target, received * ranks + rank[sent])
    source = np.where(answers, target, rank[sent[last[known]]])
    return np.column_stack((source, rank[sent[known]], target))


def _is_acyclic(after: dict[tuple[int, int], set[tuple[int, int]]]) -> bool:
    """Return whether no message comes back to where it was, by the messages that each one leads to."""
    left = dict(after)
    while left:
        led_to = set().union(*left.values())
        rest = {one: others for one, others in left.items() if one in led_to}
        if len(rest) == len(left):
            return False
        left = rest
    return True


class _Needs:
    """The other calls that calls need, all of them in the graph.

    Parameters
    ----------
    run : RunMpi
    node : ndarray of int64
        The position in the graph of each call of the run, `NONE` if it is not there.
    calls : Calls
    """

    def __init__(self, run: RunMpi, node: Ints, calls: Calls) -> None:
        self._calls = calls
        self._real = np.flatnonzero(calls.row != NONE)
        found = run.operations
        receives, blocked = found.matched_receives, blocked_sends(run)
        sends = found.matched_sends
        self._received, self._sent, _ = self._pairs(run, node, receives)
        self._held, self._posted, _ = self._pairs(run, node, blocked)
        progress = [self._progress(run, *self._pairs(run, node, rows)) for rows in (receives, sends)]
        self._stuck, self._moving = (np.concatenate(columns) for columns in zip(*progress, strict=True))
        self.messages = np.column_stack((self._sent, self._received))
        rooted: list[tuple[Ints, Ints]] = []
        joined: list[Ints] = []
        gathered: list[tuple[Ints, Ints]] = []
        for op, rows in collective_tables(run):
            name = found.ops[op]
            begin, done = node[found.begin[rows]], node[found.completes[rows]]
            here = np.all((begin != NONE) & (done != NONE), axis=1)
            rows, begin, done = rows[here], begin[here], done[here]
            is_root = found.rank[rows] == found.root[rows][:, :1]
            one_root = is_root.sum(axis=1) == 1
            if name in WAITING:
                joined += [np.stack((b, d)) for b, d in zip(begin, done, strict=True)]
            elif name in FROM_ROOT:
                rows, begin, done, is_root = (one[one_root] for one in (rows, begin, done, is_root))
                others = rows.shape[1] - 1
                rooted.append((np.repeat(begin[is_root], others), done[~is_root]))
            elif name in TO_ROOT:
                begin, done, is_root = (one[one_root] for one in (begin, done, is_root))
                gathered.append((begin, done[is_root]))
        self._rooted = [np.concatenate([pair[side] for pair in rooted] or [_NO]) for side in (0, 1)]
        self._joined, self._gathered = (
            joined,
            [
                (row, np.array([end]))
                for begin, ends in gathered
                for row, end in zip(begin, ends, strict=True)
            ],
        )

    def _pairs(self, run: RunMpi, node: Ints, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the calls in which operations end and in which their partners begin, and the operations."""
        found = run.operations
        own, other = node[found.completes[rows]], node[found.begin[found.partner[rows]]]
        here = (own != NONE) & (other != NONE) & (own != other)
        return own[here], other[here], rows[here]

    def _progress(self, run: RunMpi, own: Ints, other: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """Return calls that end because a partner is inside MPI again, and the call in which it is.

        Without a thread for it, the library moves a large message only while both ranks are inside MPI. So a
        wait that begins while the partner, in the middle of a nonblocking operation, is outside, and that
        ends soon after it comes back, has waited for that.
        """
        calls, found = self._calls, run.operations
        partner = found.partner[rows]
        begun = found.completes[partner] != found.begin[partner]
        at_start, at_end = (
            self._last_begun(calls.thread[other], moment)
            for moment in (calls.start[own], calls.end[own] + _NEAR_NS)
        )
        away = begun & (at_end > at_start) & (calls.end[at_start] + _NEAR_NS < calls.start[own])
        alone = calls.start[at_end] - calls.start[own]
        length = calls.end[own] - calls.start[own]
        chosen = np.flatnonzero(away & (alone > _NEAR_NS) & (alone > _MOSTLY * length))
        # Of several partners the last one to come back is what a wait has waited for.
        chosen = chosen[np.lexsort((-alone[chosen], own[chosen]))]
        chosen = chosen[np.append(True, np.diff(own[chosen]) != 0)[: len(chosen)]]
        return own[chosen], at_end[chosen]

    def _last_begun(self, thread: Ints, moment: Ints) -> Ints:
        """Return the last call of each thread that begins before a moment, its first one without any."""
        calls, rows = self._calls, self._real
        low = int(min(calls.start.min(initial=0), moment.min(initial=0)))
        span = int(max(calls.start.max(initial=0), moment.max(initial=0))) - low + 1
        key = calls.thread[rows] * span + calls.start[rows] - low
        at = np.searchsorted(key, thread * span + moment - low, side="right") - 1
        first = np.searchsorted(calls.thread[rows], thread)
        return rows[np.maximum(at, first)]

    def _groups(self) -> list[tuple[Ints, Ints]]:
        """Return the calls that come to each collective, and those that wait for the last of them."""
        return [*((both[0], both[1]) for both in self._joined), *self._gathered]

    def waits(self) -> Ints:
        """Return how long each call waits for the last that it needs."""
        start, end = self._calls.start, self._calls.end
        last = start.copy()
        for own, other in (
            (self._received, self._sent),
            (self._held, self._posted),
            (self._stuck, self._moving),
            (self._rooted[1], self._rooted[0]),
        ):
            np.maximum.at(last, own, start[other])
        for come, waiting in self._groups():
            last[waiting] = np.maximum(last[waiting], start[come].max())
        found: Ints = np.minimum(last, end) - start
        return found

    def moments(self) -> Ints:
        """Return when the last rank comes to each collective with a node of its own."""
        start = self._calls.start
        return np.array([int(start[come].max()) for come, _ in self._groups()], np.int64)

    def edges(self, transfer: Ints) -> list[Edges]:
        """Return the edges between calls; ``transfer`` is the own time of each call."""
        start, end = self._calls.start, self._calls.end

        def between(own: Ints, other: Ints, kind: EdgeKind) -> Edges:
            lag = np.minimum(transfer[own], end[own] - start[other])
            return _edges(1 + 2 * other, 2 + 2 * own, lag, kind, own)

        found = [
            between(self._received, self._sent, EdgeKind.MESSAGE),
            between(self._held, self._posted, EdgeKind.RENDEZVOUS),
            between(self._stuck, self._moving, EdgeKind.MESSAGE),
            between(self._rooted[1], self._rooted[0], EdgeKind.MESSAGE),
        ]
        node = 1 + 2 * len(self._calls)
        sources, targets = [], []
        for number, (come, waiting) in enumerate(self._groups()):
            sources.append(np.stack((come, np.full(len(come), node + number))))
            targets.append(np.stack((waiting, np.full(len(waiting), node + number))))
        if sources:
            come, joined = np.concatenate(sources, axis=1)
            waiting, leaving = np.concatenate(targets, axis=1)
            last = self.moments()[leaving - node]
            found += [
                _edges(1 + 2 * come, joined, 0, EdgeKind.JOIN, come),
                _edges(
                    leaving,
                    2 + 2 * waiting,
                    np.minimum(transfer[waiting], end[waiting] - last),
                    EdgeKind.MESSAGE,
                    waiting,
                ),
            ]
        return found


_NO = np.empty(0, np.int64)
