"""The MPI calls of all ranks of a run as one table, with their messages and collectives matched.

MPI's own rules match them: the n-th message with a tag from one rank to another in a communicator is the
n-th that is received with it, and the n-th collective of a communicator is the same on all of its ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import chain
from operator import itemgetter

import numpy as np

from hpcprof.analysis.collectives.clock_alignment import (
    MIN_COLLECTIVES,
    NEAR_NS,
    AlignedClocks,
    ClockKey,
    align_ends,
    one_clock,
)
from hpcprof.analysis.collectives.common_clock import Aligned, Alignment, RankClock, connect, with_ranks
from hpcprof.analysis.collectives.pair_matching import MIN_WAIT_RATIO, Messages, align_messages
from hpcprof.analysis.mpi.run_lists import NONE, RowWindow, RunLists
from hpcprof.common.grouping import grouped
from hpcprof.profiles.collective_operations import (
    ALIGNING,
    FROM_ROOT,
    ON_WINDOWS_AND_FILES,
    POINT_TO_POINT,
    PREFIX,
    TO_ROOT,
    WAITING,
)
from hpcprof.profiles.columns.unique import distinct, numbered_rows, position_in_group, rows_by_key
from hpcprof.profiles.readers.communicators import ranks_in_short
from hpcprof.profiles.timeline import BEFORE_ALL, Ints, Mask

_SENDS, _RECEIVES = frozenset({"Send"}), frozenset({"Recv"})

RARELY = 0.1
"""Maximum share of collectives that a rank may end before the last one begins, if all wait for all."""

_SAME_CLOCK_NS = 5_000.0
"""Precision of the sessions' starts that nsys notes on one node, in ns (profiles of 2023.4 and 2025.3)."""

_MAX_EARLY_SHARE = 0.001
"""Maximum share of messages and collectives that may contradict the clock of a node."""


@dataclass(frozen=True)
class Calls:
    """The n calls of all ranks by rank, thread and start; arrays of shape (n,)."""

    rank: Ints
    sequence: Ints
    """The number of the rank's thread among the threads of all ranks; its calls are consecutive rows."""
    main: Mask
    """True if the thread is the one with the most calls of its rank."""
    counted: Mask
    """True if the call belongs to this window of the run, and not to the one before."""
    name: Ints
    range: Ints
    before: Ints
    """The numbers in ``names`` and ``ranges`` of the call, of the range around it, and of the range in the
    time since the call before it.
    """
    start: Ints
    """On the common clock."""
    own_start: Ints
    """On the clock of the rank."""
    length: Ints
    """In ns, on the clock of the rank."""
    names: list[str]
    ranges: list[str | None]
    """Texts; the last range is None."""

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self.rank)

    @property
    def end(self) -> Ints:
        """End of each call on the common clock."""
        return self.start + self.length

    @property
    def own_end(self) -> Ints:
        """End of each call on the clock of the rank."""
        return self.own_start + self.length

    @property
    def gap(self) -> Ints:
        """The time outside MPI before each call, since the call before it of the same thread, in ns."""
        gaps: Ints = np.maximum(self.own_start - np.append(0, self.own_end[:-1]), 0)
        gaps[self.first[:-1]] = 0
        return gaps

    @property
    def first(self) -> Ints:
        """The position of the first call of each sequence, and the number of all calls."""
        return np.append(np.flatnonzero(np.diff(self.sequence, prepend=NONE)), len(self))


@dataclass(frozen=True)
class MatchedOperations:
    """The m messages and collectives of all ranks in the order of their calls; arrays of shape (m,)."""

    rank: Ints
    row: Ints
    op: Ints
    comm: Ints
    tag: Ints
    """``row`` is the position in the list of the rank, ``op`` and ``comm`` are numbers in ``ops`` and
    ``comms``.
    """
    peer: Ints
    root: Ints
    """Ranks of the program, or `NONE`."""
    begin: Ints
    end: Ints
    """Positions of calls; ``end`` is `NONE` if the profile does not have the call."""
    sent: Ints
    received: Ints
    """In bytes, -1 if unknown."""
    left: Mask
    """True for a collective without a counterpart."""
    match: Ints
    """The number of the message or of the collective that both or all ends share, or `NONE`."""
    partner: Ints
    """The position of the other end of a message, or `NONE`."""
    ops: list[str]
    comms: list[str | None]
    members: list[Ints]
    """The ranks that took part in something of each communicator."""
    sizes: Ints
    """Shape (comms,)."""

    def __len__(self) -> int:
        """Return the number of operations."""
        return len(self.rank)

    def is_of(self, names: frozenset[str]) -> Mask:
        """Return a mask of the operations that have one of some names."""
        return np.array([*(name in names for name in self.ops), False])[self.op]

    @property
    def sends(self) -> Mask:
        """True for each operation that sends a message."""
        return self.is_of(_SENDS)

    @property
    def unnamed(self) -> Mask:
        """True for each receive that names no message and got none: it was cancelled or from no rank."""
        nothing: Mask = (self.peer == NONE) & (self.tag == NONE) & (self.comm == len(self.comms) - 1)
        return nothing & self.is_of(_RECEIVES)

    @property
    def matched_sends(self) -> Ints:
        """The positions of the sends whose receive is known."""
        return np.flatnonzero(self.sends & (self.partner != NONE))

    @property
    def matched_receives(self) -> Ints:
        """The positions of the receives whose send is known."""
        return np.flatnonzero(~self.sends & (self.partner != NONE))

    @property
    def completes(self) -> Ints:
        """The call that ends each operation, else the call that begins it."""
        return np.where(self.end == NONE, self.begin, self.end)


@dataclass(frozen=True)
class Unmatched:
    """The numbers of messages and collectives without a counterpart, and with a rank without a profile."""

    messages: int = 0
    collectives: int = 0
    absent: int = 0

    def __add__(self, other: Unmatched) -> Unmatched:
        """Return the sums of both."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Unmatched(*(a + b for a, b in pairs))

    def problems(self) -> list[str]:
        """Return a sentence on each kind."""
        counts = [
            (self.messages, "sends and receives", ""),
            (self.collectives, "calls of collectives", ""),
            (
                self.absent,
                "calls of collectives",
                " (their communicator is unknown or has ranks without a profile)",
            ),
        ]
        return [f"{noun} without a match: {number:,}{reason}" for number, noun, reason in counts if number]


@dataclass(frozen=True)
class RunMpi:
    """The MPI calls of a run, or of a window of it, its operations, and how many of these have no match."""

    calls: Calls
    operations: MatchedOperations
    unmatched: Unmatched

    @property
    def ranks(self) -> list[int]:
        """The ranks with MPI calls."""
        ranks: list[int] = distinct(self.calls.rank).tolist()
        return ranks

    def on_common_clock(self, clocks: Mapping[int, RankClock]) -> RunMpi:
        """Return the same with the calls on the common clock."""
        start = self.calls.own_start.copy()
        for rank in self.ranks:
            on_rank = self.calls.rank == rank
            if rank in clocks:
                start[on_rank] = clocks[rank].to_common(start[on_rank])
        on_common = replace(self, calls=replace(self.calls, start=start))
        return on_common._drop_foreign_matches()._with_senders()

    def waits_for_all(self, op: int, rows: Ints) -> bool:
        """Return whether no rank ends collectives before all have begun, by MPI's rules or in the run.

        ``op`` is the number of the operation, and ``rows``, of shape (m, n), are as in `collective_tables`.
        """
        name = self.operations.ops[op]
        return name in WAITING or (name in PREFIX and self._all_wait(rows))

    def _all_wait(self, rows: Ints) -> bool:
        """Return whether the first rank hardly ever ends collectives before the last one begins them."""
        calls, ops = self.calls, self.operations
        last = calls.start[ops.begin[rows]].max(axis=1)
        first = calls.end[ops.completes[rows]].min(axis=1)
        return int(np.count_nonzero(first + NEAR_NS < last)) <= RARELY * len(rows)

    def _with_senders(self) -> RunMpi:
        """Return the same with roots of broadcasts and scatters that record none (nonblocking, by EZTrace).

        1. Nobody ends one before its root begins it. The last rank of which that is true is the root.
        2. If that is true of nearly all, the root waits for the others to complete it, or they for it: it is
           the rank whose wait differs most from the usual one, if that is one rank in half of them or more.
        """
        ops, calls = self.operations, self.calls
        root = ops.root.copy()
        for op, table in collective_tables(self):
            rows = table[(root[table] == NONE).all(axis=1)]
            if ops.ops[op] not in FROM_ROOT or rows.shape[1] < 2 or not len(rows):
                continue
            begin, end = calls.start[ops.begin[rows]], calls.end[ops.completes[rows]]
            first = np.partition(end, 1, axis=1)
            ended = np.where(end == first[:, :1], first[:, 1:2], first[:, :1])
            last = np.where(begin <= ended, begin, BEFORE_ALL).argmax(axis=1)
            if np.mean(begin <= ended) >= 1 - RARELY and rows.shape[1] > 2:
                wait = calls.length[ops.completes[rows]]
                odd = np.bincount(np.abs(wait - np.median(wait, axis=1, keepdims=True)).argmax(axis=1))
                if odd.max() < len(rows) / 2:
                    continue
                last[:] = odd.argmax()
            root[rows] = np.take_along_axis(ops.rank[rows], last[:, np.newaxis], axis=1)
        return replace(self, operations=replace(ops, root=root))

    def _drop_foreign_matches(self) -> RunMpi:
        """Return the same without matches of functions of windows and files that have other ranks in common.

        On the common clock, some rank often ends them before another one begins.
        """
        ops = self.operations
        match = ops.match.copy()
        for op, rows in collective_tables(self):
            if ops.ops[op] in ON_WINDOWS_AND_FILES and not self._all_wait(rows):
                match[rows] = NONE
        return replace(self, operations=replace(ops, match=match))


def with_matches(lists: RunLists, match: Ints, peer: Ints, is_known: Mask) -> RunMpi:
    """Return the calls of a part of a run, whose messages and collectives were matched in the whole of it.

    The arrays have shape (operations,), for the operations of all ranks in their order: ``match`` is the
    number of the message or collective in this part, and ``peer`` the other rank of a message, or `NONE`;
    ``is_known`` tells whether it is matched in the whole run.
    """
    (whole,) = lists.windows()
    calls, ops = _calls(lists, whole), _operations(lists, whole)
    message = ops.is_of(POINT_TO_POINT)
    partner = np.full(len(ops), NONE)
    ends = np.flatnonzero(message & (match != NONE))
    pairs = ends[np.argsort(match[ends], kind="stable")].reshape(-1, 2)
    partner[pairs] = pairs[:, ::-1]
    ops = _with_matched_ranks(ops, np.where(message, NONE, match))
    members = np.array([*map(len, ops.members)])
    absent = ~is_known & ~message & ((ops.comm == len(members) - 1) | (ops.sizes > members)[ops.comm])
    unmatched = message & ~ops.unnamed
    lost = [np.count_nonzero(~is_known & kind) for kind in (unmatched, ~message & ~absent, absent)]
    peer = np.where(match == NONE, ops.peer, peer)
    return RunMpi(calls, replace(ops, match=match, partner=partner, peer=peer), Unmatched(*map(int, lost)))


def _with_matched_ranks(ops: MatchedOperations, match: Ints) -> MatchedOperations:
    """Return the operations with the communicators of the ranks that matched in the whole run.

    The times in a part of a run may tell others for collectives that record none. ``match`` is `NONE` for
    messages.
    """
    matched = np.flatnonzero(match != NONE)
    order = matched[np.lexsort((ops.rank[matched], match[matched]))]
    if not len(order):
        return ops
    first = np.flatnonzero(np.diff(match[order], prepend=NONE))
    count, comm = np.diff(first, append=len(order)), ops.comm[order]
    lowest, highest = np.minimum.reduceat(comm, first), np.maximum.reduceat(comm, first)
    members = np.array([*map(len, ops.members)])
    wrong = np.flatnonzero((lowest != highest) | (members[lowest] != count))
    unknown, groups, corrected = len(ops.comms) - 1, dict[bytes, int](), ops.comm.copy()
    for at in wrong.tolist():
        rows = order[first[at] : first[at] + count[at]]
        corrected[rows] = unknown + 1 + groups.setdefault(ops.rank[rows].tobytes(), len(groups))
    # The unknown communicator is the last one.
    corrected = np.where(
        corrected > unknown, corrected - 1, np.where(corrected == unknown, unknown + len(groups), corrected)
    )
    added = [np.frombuffer(ranks, np.int64) for ranks in groups]
    return replace(
        ops,
        comm=corrected,
        comms=[*ops.comms[:-1], *map(ranks_in_short, added), ops.comms[-1]],
        members=[*ops.members[:-1], *added, ops.members[-1]],
        sizes=np.concatenate((ops.sizes[:-1], [*map(len, added)], ops.sizes[-1:])).astype(np.int64),
    )


def match_window(lists: RunLists, window: RowWindow) -> RunMpi:
    """Match the messages and collectives of a window of a run."""
    calls, ops = _calls(lists, window), _operations(lists, window)
    match, partner, lost = _match_messages(ops)
    together, lost_together, absent = _match_collectives(ops)
    match = np.where(together == NONE, match, together + match.max(initial=NONE) + 1)
    # Calls that a window shares with the one before count there.
    return RunMpi(calls, replace(ops, match=match, partner=partner), Unmatched(lost, lost_together, absent))


def _calls(lists: RunLists, window: RowWindow) -> Calls:
    rows = window.calls
    return Calls(
        rank=rows["rank"],
        sequence=rows["sequence"],
        main=rows["main"] == 1,
        counted=rows["counted"] == 1,
        name=rows["call"],
        range=rows["range"],
        before=rows["before"],
        start=rows["start"],
        own_start=rows["start"],
        length=rows["length"],
        names=[*lists.names],
        ranges=[*lists.ranges, None],
    )


def _operations(lists: RunLists, window: RowWindow) -> MatchedOperations:
    rows, communicators = window.operations, lists.communicators
    none = np.full(len(rows["rank"]), NONE)
    return MatchedOperations(
        **{name: rows[name] for name in ("rank", "row", "op", "tag", "peer", "root", "begin", "end")},
        **{name: rows[name] for name in ("sent", "received")},
        comm=np.where(rows["comm"] == NONE, len(communicators.names) - 1, rows["comm"]),
        left=rows["left"] == 1,
        match=none,
        partner=none,
        ops=[*lists.ops],
        comms=[*communicators.names],
        members=[*communicators.members],
        sizes=communicators.sizes,
    )


def _match_messages(ops: MatchedOperations) -> tuple[Ints, Ints, int]:
    """Return the number of each message, its other end, and the number of ends without another."""
    match, partner = np.full(len(ops), NONE), np.full(len(ops), NONE)
    message = ops.is_of(POINT_TO_POINT) & ~ops.unnamed
    addressed = np.flatnonzero(message & (ops.peer != NONE))
    if not len(addressed):
        return match, partner, int(np.count_nonzero(message))
    sends = ops.sends[addressed]
    rank, other = ops.rank[addressed], ops.peer[addressed]
    sender, receiver = np.where(sends, rank, other), np.where(sends, other, rank)
    keys, key = numbered_rows(ops.comm[addressed], sender, receiver, ops.tag[addressed])
    order = position_in_group(key * 2 + sends)
    count = np.bincount(key * 2 + sends, minlength=2 * len(keys)).reshape(-1, 2)
    usable = count.min(axis=1)
    has_partner = order < usable[key]
    numbers = np.cumsum(usable) - usable
    number = numbers[key] + order
    both = np.full((int(usable.sum()), 2), NONE)
    both[number[has_partner & sends], 0] = addressed[has_partner & sends]
    both[number[has_partner & ~sends], 1] = addressed[has_partner & ~sends]
    match[both[:, 0]] = match[both[:, 1]] = np.arange(len(both))
    partner[both[:, 0]], partner[both[:, 1]] = both[:, 1], both[:, 0]
    return match, partner, int(np.count_nonzero(message)) - 2 * len(both)


def _match_collectives(ops: MatchedOperations) -> tuple[Ints, int, int]:
    """Return the number of each collective, and the counts of unmatched calls and those of absent ranks."""
    match = np.full(len(ops), NONE)
    collective_rows = np.flatnonzero(~ops.is_of(POINT_TO_POINT))
    if not len(collective_rows):
        return match, 0, 0
    numbers, lost, absent = 0, 0, 0
    for (number,), places in rows_by_key(ops.comm[collective_rows]):
        rows, members = collective_rows[places], ops.members[number]
        if ops.comms[number] is None or ops.sizes[number] > len(members):
            absent += len(rows)
            continue
        usable = rows[~ops.left[rows]]
        place = np.searchsorted(members, ops.rank[usable])
        order, least = position_in_group(place), int(np.bincount(place, minlength=len(members)).min())
        on_all_ranks = order < least
        table = np.empty((least, len(members)), np.int64)
        table[order[on_all_ranks], place[on_all_ranks]] = usable[on_all_ranks]
        same = (ops.op[table] == ops.op[table[:, :1]]).all(axis=1)
        # After the first difference, the order proves nothing.
        table = table[: least if same.all() else int(np.argmin(same))]
        match[table] = np.arange(numbers, numbers + len(table))[:, None]
        numbers += len(table)
        lost += len(rows) - table.size
    return match, lost, absent


def collective_tables(run: RunMpi) -> list[tuple[int, Ints]]:
    """Return the matched collectives by communicator and operation.

    Each has the number of the operation, and the positions of the operations of shape (m, n) for m
    collectives and the n ranks of the communicator.
    """
    ops = run.operations
    matched = np.flatnonzero((ops.match != NONE) & (ops.partner == NONE))
    if not len(matched):
        return []
    order = matched[np.lexsort((ops.rank[matched], ops.match[matched]))]
    return [
        (op, order[rows].reshape(-1, len(ops.members[comm])))
        for (comm, op), rows in rows_by_key(ops.comm[order], ops.op[order])
    ]


def aligned_by_mpi(
    lists: RunLists, see: Callable[[RunMpi], None] = lambda _: None, zeros: Mapping[int, int] | None = None
) -> list[Aligned]:
    """Return the clocks that the collectives and messages of a run align; ``see`` gets each window.

    1. ``zeros`` has the stamp of one moment by rank, for ranks that share the clock of a node. It aligns them
       if no rank receives, or leaves a collective, before its partners have begun.
    2. Otherwise collectives align the ranks (`align_ends`), and messages the ranks that share none.
    3. Ranks with ``zeros`` have one clock rate even if 1 fails, as in EZTrace's archives, which count from
       the start of each process. Their collectives align them by the quickest returns (`_quickest_returns`);
       fewer than `MIN_COLLECTIVES` are then enough for ranks that nothing else aligns.
    """
    collectives: dict[ClockKey, list[Ints]] = {}
    needs, early, communicators = 0, 0, lists.communicators
    for window in lists.windows():
        run = match_window(lists, window)
        see(run)
        if zeros:
            slack = _slack(run, zeros)
            needs, early = needs + len(slack), early + int(np.count_nonzero(slack < -NEAR_NS))
        calls, ops = run.calls, run.operations
        for op, rows in collective_tables(run):
            if ops.ops[op] not in ALIGNING or rows.shape[1] == 1:
                continue
            begin = ops.begin[rows]
            ending = begin[calls.counted[begin[:, 0]] & (begin == ops.end[rows]).all(axis=1)]
            comm = int(ops.comm[rows[0, 0]])
            key = communicators.names[comm], communicators.members[comm].tobytes()
            lengths = calls.length[ending]
            last = lengths.argmin(axis=1)[:, np.newaxis]
            shortest = np.take_along_axis(lengths, last, axis=1)
            collectives.setdefault(key, []).append(np.hstack([calls.own_end[ending], last, shortest]))
    if zeros and needs and early <= _MAX_EARLY_SHARE * needs:
        same_node = sorted(zeros)
        clock = one_clock([zeros[rank] for rank in same_node], needs, _SAME_CLOCK_NS)
        return [(same_node, replace(clock, of_node=True))]
    ends = {key: np.concatenate(parts) for key, parts in collectives.items()}
    same_rate = {
        key: _quickest_returns(end)
        for key, end in ends.items()
        if len(end) and {*np.frombuffer(key[1], np.int64).tolist()} <= {*(zeros or ())}
    }
    few = {key: clocks for key, clocks in same_rate.items() if clocks.collectives < MIN_COLLECTIVES}
    together = align_ends({key: [end[:, :-2]] for key, end in ends.items() if key not in same_rate})
    together |= {key: clocks for key, clocks in same_rate.items() if key not in few}
    del collectives, ends
    aligned = with_ranks(together)
    if any(len(ranks) == len(lists.ranks) for ranks, _ in aligned):
        return aligned
    parts = (_pairs(match_window(lists, window)) for window in lists.windows())
    pairs = sorted(chain.from_iterable(parts), key=itemgetter(0))
    between = grouped(((min(ranks), max(ranks)), messages) for ranks, messages in pairs)
    aligned = with_ranks(together, align_messages(between))
    return aligned + _between_parts(connect(aligned), with_ranks(few))


def _between_parts(parts: Sequence[Alignment], aligned: Sequence[Aligned]) -> list[Aligned]:
    """Return clocks of one rank of each part, the first one to return: others may lack a core."""
    clocks = {
        rank: (number, clock) for number, part in enumerate(parts) for rank, clock in part.clocks.items()
    }
    between: list[Aligned] = []
    for ranks, ends in aligned:
        first: dict[int, tuple[int, int, int]] = {}
        for rank, end in zip(ranks, ends.zero.tolist(), strict=True):
            number, clock = clocks.get(rank, (NONE - rank, RankClock.shifted(0)))
            moment = int(clock.to_common(np.array([end]))[0])
            first[number] = min((moment, rank, end), first.get(number, (moment, rank, end)))
        chosen = sorted((rank, end) for _, rank, end in first.values())
        if len(chosen) > 1:
            members, zeros = zip(*chosen, strict=True)
            between.append((members, one_clock(zeros, ends.collectives, float(ends.uncertainty[0]))))
    return between


def _quickest_returns(ends: Ints) -> AlignedClocks:
    """Return the clocks of n ranks of one clock rate that m collectives align; shape (m, n + 2).

    The columns are the ends of the calls, and the position of the rank whose call took least, with its time
    in ns. That rank came last, and the others return at about its end, or later if they lack a core: where
    one rank came last most often and was quick itself, the earliest return of each other rank counts.
    """
    *_, last, shortest = ends.T
    often = last == np.bincount(last).argmax()
    quick = ends[often & (shortest <= np.median(shortest[often]))]
    stamps, at = quick[:, :-2], int(quick[0, -2])
    after = stamps - stamps[:, [at]]
    earliest, error = after.min(axis=0), float(quick[:, -1].max())
    if len(quick) > 1:
        error = min(error, float(np.median((after - earliest).max(axis=1))))
    return one_clock((stamps[0, at] + earliest).tolist(), len(ends), error)


def _slack(run: RunMpi, zeros: Mapping[int, int]) -> Ints:
    """Return the time from the last begin of a partner to the end of each receive and collective, in ns."""
    calls, ops = run.calls, run.operations
    zero = np.array([zeros.get(rank, 0) for rank in range(int(ops.rank.max(initial=0)) + 1)], np.int64)
    begun = calls.own_start[ops.begin] - zero[ops.rank]
    completed = calls.own_end[ops.completes] - zero[ops.rank]
    receives = ops.matched_receives
    parts = [completed[receives] - begun[ops.partner[receives]]]
    for op, rows in collective_tables(run):
        name = ops.ops[op]
        if name in WAITING - ON_WINDOWS_AND_FILES:
            parts.append(completed[rows].min(axis=1) - begun[rows].max(axis=1))
        elif name in FROM_ROOT | TO_ROOT:
            pairs = [pair for _, pair in _rank_pairs(run, name, rows)]
            parts += [completed[pair[:, 1]] - begun[pair[:, 0]] for pair in pairs]
    return np.concatenate(parts)


def _pairs(run: RunMpi) -> Iterator[tuple[tuple[int, int], Messages]]:
    """Yield two ranks, and their messages; a receive ends after its send begins, and not before it ends."""
    calls, ops = run.calls, run.operations

    def messages(pair: Ints, sent: Ints) -> Messages:
        up, call = ops.rank[pair[:, 0]] < ops.rank[pair[:, 1]], ops.completes[pair]
        return Messages(sent, calls.own_end[call[:, 1]], calls.length[call], up)

    sends = ops.matched_sends
    sends = sends[ops.rank[sends] != ops.peer[sends]]
    both = np.column_stack([sends, ops.partner[sends]])
    for (sender, receiver), places in rows_by_key(*ops.rank[both].T):
        pair = both[places]
        yield (sender, receiver), messages(pair, calls.own_start[ops.begin[pair[:, 0]]])
    for op, rows in collective_tables(run):
        if ops.ops[op] in ALIGNING:
            # The others end together.
            rows = rows[(ops.begin[rows] != ops.completes[rows]).any(axis=1)]
        for key, pair in _rank_pairs(run, ops.ops[op], rows) if len(rows) else ():
            yield key, messages(*_sends_of_pairs(run, pair))


def _sends_of_pairs(run: RunMpi, pair: Ints) -> tuple[Ints, Ints]:
    """Return the pairs of a collective that align clocks, and when their senders send.

    Without a progress thread, a nonblocking collective may go on only when the sender comes to complete it.
    Receivers that wait longer than the sender then end after that moment, and hardly ever much sooner than
    usual. These alone count.
    """
    calls, ops = run.calls, run.operations
    begin, completes = ops.begin[pair], ops.completes[pair]
    waited = calls.length[completes[:, 1]] > MIN_WAIT_RATIO * calls.length[completes[:, 0]]
    waited &= begin[:, 0] < completes[:, 0]
    if np.count_nonzero(waited) >= MIN_COLLECTIVES:
        end, starts = calls.own_end[completes[waited, 1]], (completes[waited, 0], begin[waited, 0])
        after = [end - calls.own_start[call] for call in starts]
        early = [np.median(times) - times.min() for times in after]
        if early[0] <= max(NEAR_NS, early[1]):
            return pair[waited], calls.own_start[completes[waited, 0]]
    return pair, calls.own_start[begin[:, 0]]


def _rank_pairs(run: RunMpi, op: str, rows: Ints) -> Iterator[tuple[tuple[int, int], Ints]]:
    """Yield pairs of a sending and a receiving rank in collectives, with their operations.

    In a collective in which all wait, the rank that most often comes last and each other one receive from
    each other. In others, the root receives from all ranks, or all ranks receive from the root.
    """
    ops = run.operations
    ranks = ops.rank[rows[0]]
    if op in WAITING:
        last = int(np.bincount(run.calls.length[ops.completes[rows]].argmin(axis=1)).argmax())
        sides = [pair for at in range(len(ranks)) if at != last for pair in ((at, last), (last, at))]
        yield from (((int(ranks[a]), int(ranks[b])), rows[:, [a, b]]) for a, b in sides)
    elif op in FROM_ROOT | TO_ROOT:
        for root in distinct(ops.root[rows]).tolist():
            (place,) = np.flatnonzero(ranks == root).tolist() or [NONE]
            rooted = rows[(ops.root[rows] == root).all(axis=1)]
            for other in [*range(len(ranks))] if place != NONE and len(rooted) else []:
                sides = [place, other] if op in FROM_ROOT else [other, place]
                if other != place:
                    yield (int(ranks[sides[0]]), int(ranks[sides[1]])), rooted[:, sides]
