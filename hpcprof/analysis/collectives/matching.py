"""Matches the collectives of several ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.collective_operations import POINT_TO_POINT
from hpcprof.profiles.columns.unique import distinct, numbered, numbered_rows
from hpcprof.profiles.timeline import Ints

_UNKNOWN = ""
_SENTENCES = 3
_COLUMNS = dict.fromkeys(("rank", "seq", "fused", "part", "start_ns", "end_ns", "exposed_ns"), np.int64) | (
    dict.fromkeys(("bytes", "comm_ranks", "step"), np.float64)
)


@dataclass(frozen=True)
class MatchedCollectives:
    """The m collectives of one operation in one communicator, matched across n ranks.

    Attributes
    ----------
    op : str
    comm_id : str or None
        None if the communicator is unknown.
    ranks : ndarray of int64, shape (n,)
    size : int or None
        The number of ranks of the communicator, profiled or not; None if unknown.
    seq, fused, part : ndarray of int64, shape (m,)
    message : ndarray of float64, shape (m,)
        In bytes; NaN if unknown.
    start, end : ndarray of int64, shape (m, n)
        On each rank's own clock.
    exposed : ndarray of int64, shape (m, n)
    before : ndarray of int64, shape (m, n)
        How long each rank communicated exposed before in all communicators, since the capture began, in ns.
    step : ndarray of float64, shape (m, n)
        NaN outside steps.
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
    before: Ints
    step: Floats


@computed_once
def match_collectives(rows: pd.DataFrame) -> tuple[list[MatchedCollectives], list[str]]:
    """Match the rows of ``rank_collectives`` of all ranks by communicator, operation and order.

    If communicators are unknown, all ranks are assumed to share one. An operation of a communicator is
    matched only if its ranks recorded it equally often and with messages of equal size; the second value has
    a sentence for each operation that is not matched. Sends and receives are matched by
    `hpcprof.analysis.collectives.pair_matching.match_pairs`. The time is O(n log n) in the number of rows.
    """
    whole_world = is_whole_world(rows)
    comm, names = pd.factorize(rows["comm_id"], sort=True)
    op, ops = pd.factorize(rows["op"], sort=True)
    # Missing names have the number -1 and so select the last element; empty names are unknown too.
    comms = [*names, _UNKNOWN]
    comm = np.array([-1 if name == _UNKNOWN else number for number, name in enumerate(comms)])[comm]
    chosen = np.flatnonzero(np.array([*(name not in POINT_TO_POINT for name in ops), False])[op])
    columns = {name: rows[name].to_numpy(kind) for name, kind in _COLUMNS.items()}
    columns["before"] = rows["before"].to_numpy() if "before" in rows else exposed_before(columns)
    pairs, _ = numbered_rows(comm, columns["rank"])
    by_comm = np.split(pairs[:, 1], np.flatnonzero(np.diff(pairs[:, 0])) + 1)
    members = dict(zip(distinct(comm).tolist(), by_comm, strict=True))
    group = (comm * len(ops) + op)[chosen]
    order = np.lexsort((columns["rank"][chosen], columns["seq"][chosen], group))
    columns = {name: values[chosen[order]] for name, values in columns.items()}
    groups, times = np.unique(group, return_counts=True)
    ends = np.cumsum(times)
    matched: list[MatchedCollectives] = []
    problems: list[str] = []
    for number, low, high in zip(groups.tolist(), ends - times, ends, strict=True):
        c, o = divmod(number, len(ops))
        of_group = {name: values[low:high] for name, values in columns.items()}
        found = _match_one(ops[o], comms[c], of_group, members[c], whole_world)
        if isinstance(found, str):
            problems.append(found)
        else:
            matched.append(found)
    return matched, problems


def exposed_before(columns: Mapping[str, Any]) -> Ints:
    """Return the exposed communication of each row's rank in the rows that begin earlier, in ns."""
    order = np.lexsort((columns["part"], columns["start_ns"], columns["rank"]))
    # Collectives that share a kernel count once.
    exposed = np.where(columns["part"] == 0, columns["exposed_ns"], 0)[order]
    total = np.cumsum(exposed) - exposed
    rank = columns["rank"][order]
    first = np.searchsorted(rank, rank)
    result = np.empty_like(total)
    result[order] = total - total[first]
    return result


def in_few_sentences(problems: list[str]) -> list[str]:
    """Return the first sentences about what is not matched, and how many there are more."""
    problems = sorted(problems)
    more = len(problems) - _SENTENCES
    rest = [f"{more} more are not matched for similar reasons"] if more > 0 else []
    return problems[:_SENTENCES] + rest


def is_whole_world(rows: pd.DataFrame) -> bool:
    """Return whether all ranks of the program were profiled; False if their number is unknown."""
    known = rows["world_ranks"].unique()
    return len(known) == 1 and profiled_ranks(rows) == known[0]


def profiled_ranks(rows: pd.DataFrame) -> int:
    """Return how many ranks were profiled; the rows of some communicators say so in a column."""
    return int(rows["profiled"].iloc[0]) if "profiled" in rows else int(rows["rank"].nunique())


def _match_one(
    op: str, comm_id: str, columns: Mapping[str, NDArray[Any]], members: Ints, whole_world: bool
) -> MatchedCollectives | str:
    """Match one operation of one communicator, whose profiled ranks are ``members``.

    The rows are sorted by ``seq``, then by rank.
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
    # A collective whose kernel a rank did not record is left out on all ranks.
    _, place = numbered(columns["seq"])
    there = (np.bincount(place) == len(members))[place]
    by_rank = {key: values[there].reshape(-1, len(members)) for key, values in columns.items()}
    message = by_rank["bytes"]
    # Unknown sizes are NaN, which no comparison finds different.
    if np.any((message < message[:, :1]) | (message > message[:, :1])):
        return f"{name} is not matched: the size of its messages differs between ranks"
    sizes = by_rank["comm_ranks"][~np.isnan(by_rank["comm_ranks"])]
    size = int(sizes[0]) if len(sizes) and np.all(sizes == sizes[0]) else None
    if size is None and comm_id != _UNKNOWN and whole_world:
        size = len(members)
    return MatchedCollectives(
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
        before=by_rank["before"],
        step=by_rank["step"],
    )
