"""Collectives of several ranks, matched, and the ranks' clocks, aligned by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.common.memoize import computed_once
from hpcprof.profiles.collective_operations import ALIGNING, POINT_TO_POINT
from hpcprof.profiles.columns.unique import distinct, numbered, numbered_rows
from hpcprof.profiles.timeline import Ints

Floats = NDArray[np.float64]

MINIMUM = 5
"""Fewer collectives than this align no clocks."""

_UNKNOWN = ""
_SENTENCES = 3
_BLOCK = 64
_UNCERTAINTY_PERCENTILE = 95
_COLUMNS = dict.fromkeys(("rank", "seq", "fused", "part", "start_ns", "end_ns", "exposed_ns"), np.int64) | (
    dict.fromkeys(("bytes", "comm_ranks", "step"), np.float64)
)


@dataclass(frozen=True)
class Matched:
    """The collectives of one operation in one communicator, matched over ranks.

    ``start``, ``end`` (on the ranks' own clocks), ``exposed`` and ``step`` (NaN outside steps) have
    shape (m, n): a row for each of m collectives in their order, a column for each of the n ranks.
    ``seq``, ``message`` (NaN if unknown), ``fused`` and ``part`` have shape (m,). ``size`` is the
    number of ranks of the communicator, which may be more than were profiled; None if unknown.
    """

    op: str
    comm_id: str | None
    ranks: Ints
    size: int | None
    seq: Ints
    message: Floats
    fused: Ints
    part: Ints
    start: Ints
    end: Ints
    exposed: Ints
    step: Floats


@computed_once
def match(rows: pd.DataFrame) -> tuple[list[Matched], list[str]]:
    """Match the rows of ``rank_collectives`` of all ranks by communicator, operation and order.

    Where communicators are unknown, all ranks are taken to share one. An operation of a communicator is
    matched only if its ranks made it equally often and with messages of equal size; the second value tells
    which are not. Sends and receives are not matched. O(n log n) in the number of rows.
    """
    world_is_there = _world_is_there(rows)
    comm, names = pd.factorize(rows["comm_id"], sort=True)
    op, ops = pd.factorize(rows["op"], sort=True)
    # What is missing has the number -1, which is the last one; an empty name tells nothing either.
    comms = [*names, _UNKNOWN]
    comm = np.array([-1 if name == _UNKNOWN else number for number, name in enumerate(comms)])[comm]
    chosen = np.flatnonzero(np.array([*(name not in POINT_TO_POINT for name in ops), False])[op])
    columns = {name: rows[name].to_numpy(kind) for name, kind in _COLUMNS.items()}
    pairs, _ = numbered_rows(comm, columns["rank"])
    by_comm = np.split(pairs[:, 1], np.flatnonzero(np.diff(pairs[:, 0])) + 1)
    members = dict(zip(distinct(comm).tolist(), by_comm, strict=True))
    group = (comm * len(ops) + op)[chosen]
    order = np.lexsort((columns["rank"][chosen], columns["seq"][chosen], group))
    columns = {name: values[chosen[order]] for name, values in columns.items()}
    groups, times = np.unique(group, return_counts=True)
    ends = np.cumsum(times)
    matched: list[Matched] = []
    problems: list[str] = []
    for number, low, high in zip(groups.tolist(), ends - times, ends, strict=True):
        c, o = divmod(number, len(ops))
        of_group = {name: values[low:high] for name, values in columns.items()}
        found = _match_one(ops[o], comms[c], of_group, members[c], world_is_there)
        if isinstance(found, str):
            problems.append(found)
        else:
            matched.append(found)
    if len(problems) > _SENTENCES:
        problems[_SENTENCES:] = [f"{len(problems) - _SENTENCES} more are not matched for such reasons"]
    return matched, problems


def _world_is_there(rows: pd.DataFrame) -> bool:
    """Return whether all ranks of the program were profiled; False where their number is unknown."""
    known = rows["world_ranks"].unique()
    return len(known) == 1 and rows["rank"].nunique() == known[0]


def _match_one(
    op: str, comm_id: str, columns: Mapping[str, NDArray[Any]], members: Ints, world_is_there: bool
) -> Matched | str:
    """Match one operation of one communicator, whose profiled ranks are ``members``.

    The rows are sorted by their order, then by rank.
    """
    name = f"{op} of " + ("an unknown communicator" if comm_id == _UNKNOWN else f"communicator {comm_id}")
    calls = np.zeros(len(members), np.int64)
    np.maximum.at(calls, np.searchsorted(members, columns["rank"]), columns["seq"] + 1)
    if calls.min() < calls.max():
        few, many = calls.argmin(), calls.argmax()
        return (
            f"{name} is not matched: rank {members[few]} recorded {calls[few]} and rank {members[many]} "
            f"{calls[many]} of them"
        )
    # A collective whose kernel one rank did not record is left out on all.
    _, place = numbered(columns["seq"])
    there = (np.bincount(place) == len(members))[place]
    by_rank = {key: values[there].reshape(-1, len(members)) for key, values in columns.items()}
    message = by_rank["bytes"]
    # Unknown ones (NaN) differ from nothing.
    if np.any((message < message[:, :1]) | (message > message[:, :1])):
        return f"{name} is not matched: its messages differ in size between ranks"
    sizes = by_rank["comm_ranks"][~np.isnan(by_rank["comm_ranks"])]
    size = int(sizes[0]) if len(sizes) and np.all(sizes == sizes[0]) else None
    if size is None and comm_id != _UNKNOWN and world_is_there:
        size = len(members)
    return Matched(
        op=op,
        comm_id=None if comm_id == _UNKNOWN else comm_id,
        ranks=members,
        size=size,
        seq=by_rank["seq"][:, 0],
        message=message[:, 0],
        fused=by_rank["fused"].max(axis=1),
        part=by_rank["part"][:, 0],
        start=by_rank["start_ns"],
        end=by_rank["end_ns"],
        exposed=by_rank["exposed_ns"],
        step=by_rank["step"],
    )


@dataclass(frozen=True)
class Clocks:
    """The clocks of a communicator's ranks, brought to one.

    ``zero`` is subtracted from each rank's stamps, shape (n,). ``offset`` is then what each clock is
    ahead by, shape (blocks, n), at ``moment``, of the same shape; between blocks it is interpolated.
    ``uncertainty`` is the rank's residual, shape (n,): the 95th percentile of how far its ends lie from
    the median of the other ranks' ends when the clocks are aligned. ``collectives`` aligned them.
    """

    zero: Ints
    moment: Floats
    offset: Floats
    uncertainty: Floats
    collectives: int

    def aligned(self, stamps: Ints) -> Floats:
        """Return stamps of shape (m, n) on the common clock, in nanoseconds since its zero."""
        own = (stamps - self.zero).astype(float)
        for rank in range(own.shape[1]):
            own[:, rank] -= np.interp(own[:, rank], self.moment[:, rank], self.offset[:, rank])
        return own


@computed_once
def clocks(rows: pd.DataFrame) -> dict[tuple[str | None, bytes], Clocks]:
    """Align the clocks of each communicator's ranks by the rows of ``rank_collectives``.

    The result is by `key`, without those of too few collectives.

    The ends of an all-reduce, all-gather or barrier lie close to each other on all ranks.
    So a clock is ahead by the median difference of its ends from the median rank's; the median over the
    collectives passes over the ranks that end a little later now and then. Clocks drift: from 128
    collectives on there is a median for each block of 64.
    """
    ends: dict[tuple[str | None, bytes], list[Ints]] = {}
    for one in match(rows)[0]:
        if one.op in ALIGNING and len(one.ranks) > 1:
            ends.setdefault(key(one), []).append(one.end[one.part == 0])
    stamps = {k: np.concatenate(parts) for k, parts in ends.items()}
    return {k: _clocks(end[np.argsort(end[:, 0])]) for k, end in stamps.items() if len(end) >= MINIMUM}


def key(matched: Matched) -> tuple[str | None, bytes]:
    """Return what tells one set of clocks: the communicator and its ranks."""
    return matched.comm_id, matched.ranks.tobytes()


def _clocks(end: Ints) -> Clocks:
    """Align by ends of shape (m, n), sorted by time."""
    zero = end[0]
    own = (end - zero).astype(float)
    blocks = np.array_split(np.arange(len(end)), max(1, len(end) // _BLOCK))
    moment = np.array([np.median(own[block], axis=0) for block in blocks])
    rough = Clocks(zero, moment, _medians(own - own[:, :1], blocks), np.zeros(len(zero)), len(end))
    # Now that the clocks agree roughly, the reference is the median rank and no longer the first.
    aligned = rough.aligned(end)
    apart = _medians(aligned - np.median(aligned, axis=1, keepdims=True), blocks)
    fine = Clocks(zero, moment, rough.offset + apart, rough.uncertainty, len(end))
    residual = np.abs(later_than_others(fine.aligned(end)))
    return Clocks(
        zero, moment, fine.offset, np.percentile(residual, _UNCERTAINTY_PERCENTILE, axis=0), len(end)
    )


def _medians(values: Floats, blocks: Sequence[Ints]) -> Floats:
    return np.array([np.median(values[block], axis=0) for block in blocks])


def later_than_others(stamps: Floats) -> Floats:
    """Return by how much each stamp lies after the median of the other ranks', of shape (m, n), n > 1."""
    count = stamps.shape[1]
    order = np.argsort(stamps, axis=1, kind="stable")
    place = np.argsort(order, axis=1, kind="stable")
    ordered = np.take_along_axis(stamps, order, axis=1)
    # In the order without a rank's own stamp, those from its place on stand one further.
    low, high = (count - 2) // 2, (count - 1) // 2
    middle = [np.take_along_axis(ordered, k + (place <= k), axis=1) for k in (low, high)]
    result: Floats = stamps - (middle[0] + middle[1]) / 2
    return result
