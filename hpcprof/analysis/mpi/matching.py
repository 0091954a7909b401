"""The MPI calls of all ranks of a run as one table, with their messages and collectives matched.

MPI's own rules match them: the n-th message with a tag from one rank to another in a communicator is the
n-th that is received with it, and the n-th collective of a communicator is the same on all of its ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.analysis.collectives.clock_alignment import align_clocks
from hpcprof.analysis.collectives.common_clock import Aligned, RankClock, with_ranks
from hpcprof.analysis.collectives.matching import MatchedCollectives
from hpcprof.analysis.collectives.pair_clocks import align_pairs
from hpcprof.analysis.collectives.pair_matching import MatchedPairs
from hpcprof.profiles.collective_operations import ALIGNING, POINT_TO_POINT
from hpcprof.profiles.columns.unique import distinct, numbered_rows, position_in_group
from hpcprof.profiles.timeline import Ints

NONE = -1
"""Stands for no call, no partner and no match."""

_STARTS = ("MPI_Init", "MPI_Init_thread")
_SENDS = frozenset({"Send"})


@dataclass(frozen=True)
class Calls:
    """The n calls of all ranks by rank, thread and start; arrays of shape (n,).

    Attributes
    ----------
    rank : ndarray of int64
    sequence : ndarray of int64
        The number of the rank's thread among those of all ranks: its calls follow each other.
    main : ndarray of bool
        Whether the thread is the one with the most calls of its rank.
    name, range, before : ndarray of int64
        The numbers in ``names`` and ``ranges`` of the call, of the range around it, and of the range in the
        time since the call before it.
    start : ndarray of int64
        On the common clock.
    own_start : ndarray of int64
        On the clock of the rank.
    length : ndarray of int64
        In ns, on the clock of the rank.
    names, ranges : list
        Texts; the last range is None.
    """

    rank: Ints
    sequence: Ints
    main: NDArray[np.bool_]
    name: Ints
    range: Ints
    before: Ints
    start: Ints
    own_start: Ints
    length: Ints
    names: list[str]
    ranges: list[str | None]

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self.rank)

    @property
    def end(self) -> Ints:
        """When each call ends on the common clock."""
        return self.start + self.length

    @property
    def own_end(self) -> Ints:
        """When each call ends on the clock of the rank."""
        return self.own_start + self.length

    @property
    def gap(self) -> Ints:
        """The time outside MPI before each call, since the call before it of the same thread, in ns."""
        found: Ints = np.maximum(self.own_start - np.append(0, self.own_end[:-1]), 0)
        found[self.first[:-1]] = 0
        return found

    @property
    def first(self) -> Ints:
        """The position of the first call of each sequence, and the number of all calls."""
        return np.append(np.flatnonzero(np.diff(self.sequence, prepend=NONE)), len(self))


@dataclass(frozen=True)
class Operations:
    """The m messages and collectives of all ranks in the order of their calls; arrays of shape (m,).

    Attributes
    ----------
    rank, op, comm, tag : ndarray of int64
        ``op`` and ``comm`` are numbers in ``ops`` and ``comms``.
    peer, root : ndarray of int64
        Ranks of the program, or `NONE`.
    begin, end : ndarray of int64
        Positions of calls; ``end`` is `NONE` if the profile does not have the call.
    sent, received : ndarray of int64
        In bytes, -1 if unknown.
    match : ndarray of int64
        The number of the message or of the collective that both or all ends share, or `NONE`.
    partner : ndarray of int64
        The position of the other end of a message, or `NONE`.
    ops, comms : list
    members : list of ndarray
        The ranks that took part in something of each communicator.
    sizes : ndarray of int64, shape (comms,)
    """

    rank: Ints
    op: Ints
    comm: Ints
    tag: Ints
    peer: Ints
    root: Ints
    begin: Ints
    end: Ints
    sent: Ints
    received: Ints
    match: Ints
    partner: Ints
    ops: list[str]
    comms: list[str | None]
    members: list[Ints]
    sizes: Ints

    def __len__(self) -> int:
        """Return the number of operations."""
        return len(self.rank)

    def is_of(self, names: frozenset[str]) -> NDArray[np.bool_]:
        """Return which operations have one of some names."""
        return np.array([*(name in names for name in self.ops), False])[self.op]

    @property
    def sends(self) -> NDArray[np.bool_]:
        """Whether each operation is the end of a message that sends."""
        return self.is_of(_SENDS)

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
        """The call in which each operation ends, else the one in which it begins."""
        return np.where(self.end == NONE, self.begin, self.end)


@dataclass(frozen=True)
class RunMpi:
    """The MPI calls of a run, its operations, and why some of these are not matched."""

    calls: Calls
    operations: Operations
    problems: list[str]

    @property
    def ranks(self) -> list[int]:
        """The ranks with MPI calls."""
        found: list[int] = distinct(self.calls.rank).tolist()
        return found

    def on_common_clock(self, clocks: Mapping[int, RankClock]) -> RunMpi:
        """Return the same with the calls on the common clock."""
        start = self.calls.own_start.copy()
        for rank in self.ranks:
            own = self.calls.rank == rank
            if rank in clocks:
                start[own] = clocks[rank].to_common(start[own])
        return replace(self, calls=replace(self.calls, start=start))


def match_mpi(calls: pd.DataFrame, operations: pd.DataFrame) -> RunMpi | None:
    """Match the messages and collectives of all ranks; None without calls.

    Parameters
    ----------
    calls, operations : DataFrame
        The rows of ``mpi_call_list`` and ``mpi_operation_list`` of all ranks, by rank.
    """
    if not len(calls):
        return None
    table = _calls(calls)
    found = _operations(operations, table)
    # Counts of a rank whose capture began later cannot be compared.
    started = distinct(table.rank[np.isin(table.name, _places(table.names, _STARTS))])
    match, partner, problems = _match_messages(found, started)
    together, other_problems = _match_collectives(found, started)
    match = np.where(together == NONE, match, together + match.max(initial=NONE) + 1)
    return RunMpi(table, replace(found, match=match, partner=partner), problems + other_problems)


def _places(names: list[str], wanted: tuple[str, ...]) -> list[int]:
    return [place for place, name in enumerate(names) if name in wanted]


def _ints(rows: pd.DataFrame, name: str) -> Ints:
    return rows[name].to_numpy(np.int64)


def _calls(rows: pd.DataFrame) -> Calls:
    name, names = pd.factorize(rows["call"])
    both = pd.concat([rows["range"], rows["range_before"]], ignore_index=True)
    # Missing texts have the number -1 and so select the last element.
    number, ranges = pd.factorize(both)
    rank, thread, start = (_ints(rows, column) for column in ("rank", "thread", "start_ns"))
    _, sequence = numbered_rows(rank, thread)
    return Calls(
        rank=rank,
        sequence=sequence,
        main=thread == 0,
        name=name.astype(np.int64),
        range=number[: len(rows)].astype(np.int64),
        before=number[len(rows) :].astype(np.int64),
        start=start,
        own_start=start,
        length=_ints(rows, "end_ns") - start,
        names=[str(one) for one in names],
        ranges=[*ranges, None],
    )


def _operations(rows: pd.DataFrame, calls: Calls) -> Operations:
    op, ops = pd.factorize(rows["op"], sort=True)
    comm, comms = pd.factorize(rows["comm_id"], sort=True)
    comm = np.where(comm < 0, len(comms), comm).astype(np.int64)
    rank = _ints(rows, "rank")
    offset = np.searchsorted(calls.rank, rank)
    begin, end = _ints(rows, "begin_call"), _ints(rows, "end_call")
    sizes = np.full(len(comms) + 1, NONE)
    np.maximum.at(sizes, comm, _ints(rows, "comm_ranks"))
    pairs, _ = numbered_rows(comm, rank) if len(rows) else (np.empty((0, 2), np.int64), None)
    members = [pairs[pairs[:, 0] == number, 1] for number in range(len(sizes))]
    peer = _ints(rows, "peer")
    within = _ints(rows, "comm_peer")
    by_comm = _in_program(within, comm, members, sizes)
    return Operations(
        rank=rank,
        op=op.astype(np.int64),
        comm=comm,
        tag=_ints(rows, "tag"),
        peer=np.where(peer == NONE, by_comm, peer),
        root=_in_program(_ints(rows, "root"), comm, members, sizes),
        begin=begin + offset,
        end=np.where(end == NONE, NONE, end + offset),
        sent=_ints(rows, "bytes"),
        received=_ints(rows, "received_bytes"),
        match=np.full(len(rows), NONE),
        partner=np.full(len(rows), NONE),
        ops=[str(one) for one in ops],
        comms=[*comms, None],
        members=members,
        sizes=sizes,
    )


def _in_program(within: Ints, comm: Ints, members: list[Ints], sizes: Ints) -> Ints:
    """Return the ranks in the program of ranks in communicators whose ranks all have a profile, or `NONE`."""
    result = np.full(len(within), NONE)
    for number, ranks in enumerate(members):
        if len(ranks) and sizes[number] in (NONE, len(ranks)):
            inside = np.flatnonzero((comm == number) & (within >= 0) & (within < len(ranks)))
            result[inside] = ranks[within[inside]]
    return result


def _match_messages(found: Operations, started: Ints) -> tuple[Ints, Ints, list[str]]:
    """Return the number of each message, its other end, and why some have none."""
    match, partner = np.full(len(found), NONE), np.full(len(found), NONE)
    message = found.is_of(POINT_TO_POINT)
    chosen = np.flatnonzero(message & (found.peer != NONE))
    if not len(chosen):
        return match, partner, []
    sends = found.sends[chosen]
    own, other = found.rank[chosen], found.peer[chosen]
    sender, receiver = np.where(sends, own, other), np.where(sends, other, own)
    keys, key = numbered_rows(found.comm[chosen], sender, receiver, found.tag[chosen])
    order = position_in_group(key * 2 + sends)
    count = np.bincount(key * 2 + sends, minlength=2 * len(keys)).reshape(-1, 2)
    whole = np.isin(keys[:, 1], started) & np.isin(keys[:, 2], started)
    usable = np.where(whole, count.min(axis=1), np.where(count[:, 0] == count[:, 1], count[:, 0], 0))
    kept = order < usable[key]
    numbers = np.cumsum(usable) - usable
    number = numbers[key] + order
    both = np.full((int(usable.sum()), 2), NONE)
    both[number[kept & sends], 0] = chosen[kept & sends]
    both[number[kept & ~sends], 1] = chosen[kept & ~sends]
    match[both[:, 0]] = match[both[:, 1]] = np.arange(len(both))
    partner[both[:, 0]], partner[both[:, 1]] = both[:, 1], both[:, 0]
    lost = int(np.count_nonzero(message)) - 2 * len(both)
    problems = [f"{lost:,} sends and receives are not matched"] if lost else []
    return match, partner, problems


def _match_collectives(found: Operations, started: Ints) -> tuple[Ints, list[str]]:
    """Return the number of each collective, and why some have none."""
    match = np.full(len(found), NONE)
    chosen = np.flatnonzero(~found.is_of(POINT_TO_POINT))
    if not len(chosen):
        return match, []
    comm = found.comm[chosen]
    _, key = numbered_rows(comm, found.rank[chosen])
    order = position_in_group(key)
    numbers, lost, absent = 0, 0, 0
    by_comm = np.argsort(comm, kind="stable")
    bounds = np.searchsorted(comm[by_comm], np.arange(len(found.members) + 1))
    for number, members in enumerate(found.members):
        rows = by_comm[bounds[number] : bounds[number + 1]]
        if not len(rows):
            continue
        if found.comms[number] is None or found.sizes[number] > len(members):
            absent += len(rows)
            continue
        place = np.searchsorted(members, found.rank[chosen[rows]])
        count = np.bincount(place, minlength=len(members))
        least = int(count.min())
        if count.max() > least and not np.isin(members, started).all():
            least = 0
        kept = rows[order[rows] < least]
        table = np.empty((least, len(members)), np.int64)
        table[order[kept], np.searchsorted(members, found.rank[chosen[kept]])] = chosen[kept]
        same = (found.op[table] == found.op[table[:, :1]]).all(axis=1)
        # After one that differs, the order says nothing.
        table = table[: least if same.all() else int(np.argmin(same))]
        match[table] = np.arange(numbers, numbers + len(table))[:, None]
        numbers += len(table)
        lost += len(rows) - table.size
    problems = []
    if lost:
        problems.append(f"{lost:,} calls of collectives are not matched")
    if absent:
        problems.append(
            f"{absent:,} calls of collectives are not matched, because their communicator is unknown or has "
            "ranks without a profile"
        )
    return match, problems


def collective_tables(run: RunMpi) -> list[tuple[int, Ints]]:
    """Return the matched collectives by communicator and operation.

    Each has the number of the operation, and the positions of the operations of shape (m, n) for m
    collectives and the n ranks of the communicator.
    """
    found = run.operations
    chosen = np.flatnonzero((found.match != NONE) & (found.partner == NONE))
    if not len(chosen):
        return []
    order = chosen[
        np.lexsort((found.rank[chosen], found.match[chosen], found.op[chosen], found.comm[chosen]))
    ]
    kind = found.comm[order] * (len(found.ops) + 1) + found.op[order]
    cuts = np.flatnonzero(np.diff(kind)) + 1
    return [
        (int(found.op[rows[0]]), rows.reshape(-1, len(found.members[int(found.comm[rows[0]])])))
        for rows in np.split(order, cuts)
    ]


def aligned_by_mpi(run: RunMpi) -> list[Aligned]:
    """Return the clocks that the collectives and messages of a run align."""
    calls, found = run.calls, run.operations
    start, end = calls.own_start, calls.own_end
    collectives = []
    for op, rows in collective_tables(run):
        if found.ops[op] in ALIGNING and rows.shape[1] > 1:
            blocking = (found.begin[rows] == found.end[rows]).all(axis=1)
            collectives.append(_collective(run, op, rows[blocking], start, end))
    together = align_clocks(collectives)
    aligned = with_ranks(together)
    if any(len(ranks) == len(run.ranks) for ranks, _ in aligned):
        return aligned
    return with_ranks(together, align_pairs(_pairs(run, start, end)))


def _collective(run: RunMpi, op: int, rows: Ints, start: Ints, end: Ints) -> MatchedCollectives:
    found = run.operations
    number = int(found.comm[rows[0, 0]]) if len(rows) else 0
    nothing, no = np.zeros(rows.shape, np.int64), np.zeros(len(rows), np.int64)
    return MatchedCollectives(
        op=found.ops[op],
        comm_id=found.comms[number],
        ranks=np.ascontiguousarray(found.members[number]),
        size=len(found.members[number]),
        seq=np.arange(len(rows)),
        message=no.astype(float),
        fused=no,
        part=no,
        row=rows,
        start=start[found.begin[rows]],
        end=end[found.begin[rows]],
        exposed=nothing,
        before=nothing,
        step=nothing.astype(float),
    )


def _pairs(run: RunMpi, start: Ints, end: Ints) -> list[MatchedPairs]:
    """Return the messages of each two ranks. A receive ends after its send begins, and not before it ends."""
    found = run.operations
    sends = found.matched_sends
    sends = sends[found.rank[sends] != found.peer[sends]]
    both = np.column_stack([sends, found.partner[sends]])
    sides = found.rank[both]
    order = np.lexsort((sides[:, 1], sides[:, 0]))
    both, sides = both[order], sides[order]
    cuts = np.flatnonzero(np.any(np.diff(sides, axis=0) != 0, axis=1)) + 1
    pairs = []
    for rows in np.split(both, cuts) if len(both) else []:
        no, nothing = np.zeros(len(rows), np.int64), np.zeros(rows.shape, np.int64)
        pairs.append(
            MatchedPairs(
                comm_id=None,
                sender=int(found.rank[rows[0, 0]]),
                receiver=int(found.rank[rows[0, 1]]),
                seq=np.arange(len(rows)),
                message=no.astype(float),
                rows=rows,
                start=start[found.begin[rows]],
                end=end[found.completes[rows]],
                exposed=nothing,
                step=nothing.astype(float),
                fused=nothing,
                alone=np.zeros(rows.shape, bool),
            )
        )
    return pairs
