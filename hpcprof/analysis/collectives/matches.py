"""Matched operations: the rows of different ranks that belong together, and the waits between ranks."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.collectives.clock_alignment import AlignedClocks, clock_key
from hpcprof.analysis.collectives.communication import Communication
from hpcprof.analysis.collectives.matching import MatchedCollectives
from hpcprof.analysis.collectives.waiting_balance import partner_waits
from hpcprof.profiles.collective_operations import WAITING
from hpcprof.profiles.columns.intervals import Intervals, union_of
from hpcprof.profiles.columns.unique import numbered_rows, object_array
from hpcprof.profiles.timeline import Ints, Mask, Table

UNKNOWN = -1
"""Stands for the partner of a collective, and for an unknown arrival."""

MESSAGE = "message"
"""The operation of a group of messages."""

_NO_COLUMNS: defaultdict[str, NDArray[Any]] = defaultdict(lambda: np.empty(0, np.int64))
_NO_COLUMNS |= {"op": np.empty(0, object), "sends": np.empty(0, bool)}


@dataclass(frozen=True)
class Matches(Table):
    """The n rows of ``rank_collectives`` that have a counterpart on other ranks; arrays of shape (n,)."""

    rank: Ints
    row: Ints
    """The rank, and the position among its rows."""
    group: Ints
    """The number of the operation of a communicator, or of the messages from one rank to another in it."""
    match: Ints
    """The number that a collective, or a message, has in common on all of its ranks."""
    op: NDArray[np.object_]
    """The name of the collective, or `MESSAGE`."""
    part: Ints
    """The position among the collectives that share a kernel."""
    start: Ints
    end: Ints
    """Begin and end of the kernel, or of the call on the host, on the clock of the rank."""
    peer: Ints
    """The partner of a message by its rank in the program, `UNKNOWN` for a collective."""
    sends: Mask
    """True for the end of a message that sends."""
    arrived: Ints
    """Arrival of the last rank at a collective in which all wait for it, or of the partner of a message, on
    the clock of the rank; `UNKNOWN` where clocks are not aligned, or ranks are missing.
    """

    @classmethod
    def concatenate(cls, parts: "Sequence[Matches]") -> "Matches":
        """Return the rows of several parts, with consecutive numbers of groups and matches."""
        arrays: dict[str, list[NDArray[Any]]] = {field.name: [] for field in fields(cls)}
        first = {"group": 0, "match": 0}
        for part in parts:
            for name, columns in arrays.items():
                values = getattr(part, name)
                columns.append(values + first[name] if name in first else values)
            for name in first:
                first[name] += int(getattr(part, name).max(initial=-1)) + 1
        return cls(
            **{name: np.concatenate(row) if row else _NO_COLUMNS[name] for name, row in arrays.items()}
        )


class MatchedGroup(NamedTuple):
    """The m collectives of one operation in one communicator of n ranks, or the m messages between two."""

    op: str
    """The name of the collective, or `MESSAGE`."""
    ranks: Ints
    """Ranks that take part; for messages the sender and the receiver; shape (n,)."""
    part: Ints
    """Shape (m,)."""
    start: Ints
    """On each rank's own clock; shape (m, n)."""
    others_late: Ints
    """Delay of a later rank that all of these wait for, after the last of these, in ns; shape (m,)."""
    aligned: bool
    """True if the clocks of these ranks are aligned."""


def matches_of(matched: Communication) -> Matches:
    """Return the matched operations of some ranks, by group and in the order of the matches."""
    parts = [_collective_rows(calls, matched.clocks.get(clock_key(calls))) for calls in matched.collectives]
    for pair in matched.pairs:
        count = len(pair.seq)
        ranks = np.array([pair.sender, pair.receiver])
        arrived = np.full((count, 2), UNKNOWN)
        if pair.ranks in matched.pair_clocks:
            waits = partner_waits(pair, matched.pair_clocks[pair.ranks])
            arrived = pair.start + np.rint(waits).astype(np.int64)
        peer = np.broadcast_to(ranks[::-1], (count, 2))
        sends = np.broadcast_to([True, False], (count, 2))
        part = np.zeros(count, np.int64)
        parts.append(_rows(MESSAGE, ranks, pair.rows, part, pair.start, pair.end, peer, sends, arrived))
    return Matches.concatenate(parts)


def groups_of(matches: Matches) -> Iterator[MatchedGroup]:
    """Yield the groups of all ranks that have matches."""
    order = np.lexsort((matches.rank, ~matches.sends, matches.match, matches.group))
    group, match = matches.group[order], matches.match[order]
    bounds = np.flatnonzero(np.diff(group, prepend=-1, append=-1)).tolist()
    for low, high in pairwise(bounds):
        rows = order[low:high]
        count = 1 + int(np.count_nonzero(np.diff(match[low:high])))
        size = len(rows) // count
        start = matches.start[rows].reshape(count, size)
        is_known = matches.arrived[rows] != UNKNOWN
        waited = np.where(is_known, matches.arrived[rows] - matches.start[rows], 0)
        yield MatchedGroup(
            matches.op[rows[0]],
            matches.rank[rows[:size]],
            matches.part[rows[::size]],
            start,
            np.maximum(waited.reshape(count, size).min(axis=1), 0),
            bool(is_known.any()),
        )


class Arrivals(msgspec.Struct, frozen=True):
    """The last rank at each of n operations that ranks have in common, and the ranks of each group of them.

    Operations with an unknown arrival are left out.
    """

    last: Ints
    """The rank for which the others waited; shape (n,)."""
    waited: Ints
    longest: Ints
    """The waits of the others: their sum, and the longest, in ns; shape (n,)."""
    collective: Mask
    """True for all but messages; shape (n,)."""
    group: Ints
    member: Ints
    """The number of a group, and a rank in it; groups with unknown arrivals are listed too."""


def arrivals_of(batches: Iterable[Matches]) -> Arrivals:
    """Summarize matches of some communicators, which may be any number of rows at a time."""
    # By match: its number, the rank that waits least, its wait, the sum of all waits, and the longest.
    rows, collective = np.empty((5, 0), np.int64), np.empty(0, bool)
    members = [np.empty((0, 2), np.int64)]
    for batch in batches:
        members.append(numbered_rows(batch.group, batch.rank)[0])
        timed = batch.take(batch.arrived != UNKNOWN)
        waited = np.maximum(timed.arrived - timed.start, 0)
        both = np.concatenate((rows, np.stack((timed.match, timed.rank, waited, waited, waited))), axis=1)
        order = np.lexsort((both[2], both[0]))
        first = np.flatnonzero(np.diff(both[0][order], prepend=UNKNOWN))
        collective = np.concatenate((collective, timed.op != MESSAGE))[order][first]
        if len(first):
            summed = np.add.reduceat(both[3][order], first), np.maximum.reduceat(both[4][order], first)
            rows = np.stack((*both[:3, order[first]], *summed))
    return Arrivals(rows[1], rows[3], rows[4], collective, *np.concatenate(members).T)


class RankWaits(NamedTuple):
    """The times in which collectives and messages of a rank wait for others, on its own clock."""

    before: Intervals
    after: Intervals


def rank_waits(matches: Matches) -> RankWaits | None:
    """Return the waits of a rank from its matches; None if all arrivals are unknown."""
    is_known = matches.arrived != UNKNOWN
    if not is_known.any():
        return None
    start, end = matches.start[is_known], matches.end[is_known]
    moment = np.clip(matches.arrived[is_known], start, end)
    return RankWaits(union_of((start, moment)), union_of((moment, end)))


def _collective_rows(calls: MatchedCollectives, clock: AlignedClocks | None) -> Matches:
    arrived = np.full(calls.start.shape, UNKNOWN)
    is_complete = (calls.size or len(calls.ranks)) <= len(calls.ranks)
    if clock is not None and calls.op in WAITING and is_complete:
        start = clock.aligned(calls.start)
        arrived = calls.start + np.rint(start.max(axis=1, keepdims=True) - start).astype(np.int64)
    peer, sends = np.broadcast_to(UNKNOWN, calls.start.shape), np.broadcast_to(False, calls.start.shape)
    return _rows(calls.op, calls.ranks, calls.row, calls.part, calls.start, calls.end, peer, sends, arrived)


def _rows(
    op: str,
    ranks: Ints,
    row: Ints,
    part: Ints,
    start: Ints,
    end: Ints,
    peer: Ints,
    sends: Mask,
    arrived: Ints,
) -> Matches:
    """Return the rows of one group; all but the first and third have the shape (m, n), or (n,) and (m,)."""
    count, size = row.shape
    return Matches(
        rank=np.tile(ranks, count),
        row=row.ravel(),
        group=np.zeros(count * size, np.int64),
        match=np.repeat(np.arange(count), size),
        op=np.repeat(object_array([op]), count * size),
        part=np.repeat(part, size),
        start=start.ravel(),
        end=end.ravel(),
        peer=peer.ravel(),
        sends=sends.ravel(),
        arrived=arrived.ravel(),
    )
