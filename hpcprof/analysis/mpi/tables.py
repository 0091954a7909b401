"""The tables about the MPI calls of a run: calls, messages, waits and efficiencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.common_clock import RankClock
from hpcprof.analysis.framework.outcome import Outcome, Values, columns_of, no_rows
from hpcprof.analysis.framework.text_columns import object_array
from hpcprof.analysis.mpi.declarations import BETWEEN
from hpcprof.analysis.mpi.efficiencies import efficiencies
from hpcprof.analysis.mpi.matching import NONE, RunMpi, match_mpi
from hpcprof.analysis.mpi.waits import PATTERNS, Causes, Waits, causes_of, find_waits
from hpcprof.analysis.statistics.grouped import summarize, sums
from hpcprof.common.units import named_ranks
from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.profiles.timeline import Ints

_NO_CALLS = "no profile has MPI calls"
_SIZES = (0, 64, 1 << 10, 16 << 10, 256 << 10, 4 << 20)
SIZE_CLASSES = ("0 B", "to 64 B", "to 1 KiB", "to 16 KiB", "to 256 KiB", "to 4 MiB", "over 4 MiB")
"""The classes of the bytes of a call."""

Tables = Mapping[str, Outcome]


def mpi_tables(
    tables: Mapping[str, pd.DataFrame], clocks: Mapping[int, RankClock], nodes: Mapping[int, str | None]
) -> Tables:
    """Compute the tables of the MPI calls of a run, by their names; empty without MPI calls.

    Parameters
    ----------
    tables : mapping of str to DataFrame
        The rows of all ranks of ``mpi_call_list``, ``mpi_operation_list`` and ``mpi_regions``.
    clocks : mapping of int to RankClock
        The clocks that communication aligned.
    nodes : mapping of int to str or None
        The host of each rank.
    """
    run = match_mpi(tables["mpi_call_list"], tables["mpi_operation_list"])
    if run is None:
        return {}
    run = run.on_common_clock(clocks)
    apart = [] if len(run.ranks) == 1 else [rank for rank in run.ranks if rank not in clocks]
    problems = "; ".join(run.problems)
    if apart:
        reason = f"the clocks of {named_ranks(apart)} are not aligned with the others"
        unknown = no_rows("; ".join(filter(None, [problems, f"waits are unknown: {reason}"])))
        return {
            "mpi_calls": Outcome(_calls_table(run, None), unknown.reason),
            "mpi_matrix": Outcome(_matrix(run, nodes, aligned=False), unknown.reason),
            "mpi_waits": unknown,
            "mpi_delays": unknown,
            "pop": no_rows(unknown.reason),
        }
    waits = find_waits(run)
    causes = causes_of(run, waits)
    none = problems or ("" if len(waits.call) else "no call of MPI waited")
    return {
        "mpi_calls": Outcome(_calls_table(run, waits), problems),
        "mpi_matrix": Outcome(_matrix(run, nodes, aligned=True), problems),
        "mpi_waits": Outcome(_waits_table(run, waits, causes), none),
        "mpi_delays": Outcome(_delays_table(run, waits, causes), none),
        "pop": Outcome(columns_of(efficiencies(run, tables["mpi_regions"])), problems),
    }


def _of(parts: Sequence[Tables], name: str) -> Outcome:
    return parts[0][name] if parts and parts[0] else no_rows(_NO_CALLS)


def mpi_calls(parts: Sequence[Tables], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Summarize the calls of each rank by name and size, with their waits."""
    return _of(parts, "mpi_calls")


def mpi_matrix(parts: Sequence[Tables], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Summarize the messages from each rank to each other."""
    return _of(parts, "mpi_matrix")


def mpi_waits(parts: Sequence[Tables], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Summarize the waits by rank, call and pattern, with the ranks that caused them."""
    return _of(parts, "mpi_waits")


def mpi_delays(parts: Sequence[Tables], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Summarize the waits by the ranks that caused them, and the places in which these were."""
    return _of(parts, "mpi_delays")


def pop(parts: Sequence[Tables], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Return the efficiencies of the run, the step and its phases."""
    return _of(parts, "pop")


def _calls_table(run: RunMpi, waits: Waits | None) -> pd.DataFrame:
    calls, found = run.calls, run.operations
    size = np.full(len(calls), NONE)
    known = np.maximum(found.sent, found.received)
    rows = np.flatnonzero(known >= 0)
    size[found.begin[rows]] = 0
    np.add.at(size, found.begin[rows], known[rows])
    kind = np.where(size < 0, NONE, np.searchsorted(_SIZES, size))
    keys, group = numbered_rows(calls.rank, calls.name, kind)
    wait = np.zeros(len(calls), np.int64)
    if waits is not None:
        np.add.at(wait, waits.call, waits.length)
    count = len(keys)
    lengths, waited = summarize(group, calls.length), sums(group, wait, count)
    first = np.flatnonzero(np.diff(calls.rank, prepend=NONE))
    extent = np.maximum.reduceat(calls.own_end, first) - np.minimum.reduceat(calls.own_start, first)
    extent = np.maximum(extent, 1)[np.searchsorted(calls.rank[first], keys[:, 0])]
    table: pd.DataFrame = pd.DataFrame(
        {
            "rank": keys[:, 0],
            "call": [calls.names[one] for one in keys[:, 1].tolist()],
            "size_class": [None if one < 0 else SIZE_CLASSES[one] for one in keys[:, 2].tolist()],
            "calls": lengths.count,
            "bytes": sums(group, np.maximum(size, 0), count),
            "total_ns": lengths.total,
            "median_ns": np.rint(lengths.median).astype(np.int64),
            "wait_ns": waited if waits is not None else None,
            "transfer_ns": lengths.total - waited if waits is not None else None,
            "share_pct": np.round(100 * lengths.total / extent, 2),
        }
    )
    return table


def _matrix(run: RunMpi, nodes: Mapping[int, str | None], *, aligned: bool) -> dict[str, Values]:
    """Return the messages by sender and receiver.

    The transfer of a message is the time inside the call that receives it, from when both ends have begun.
    """
    calls, found = run.calls, run.operations
    receives = found.matched_receives
    sends = found.partner[receives]
    last = found.completes[receives]
    begun = np.maximum(calls.start[found.begin[sends]], calls.start[last])
    transfer = np.clip(calls.end[last] - begun, 0, calls.length[last])
    size = np.maximum(found.sent[sends], found.received[receives])
    size = np.maximum(np.where(size < 0, found.sent[receives], size), 0)
    if not len(receives):
        return {}
    keys, group = numbered_rows(found.rank[sends], found.rank[receives])
    sender, receiver = keys.T.tolist()
    return {
        "sender": sender,
        "receiver": receiver,
        "sender_node": [nodes.get(one) for one in sender],
        "receiver_node": [nodes.get(one) for one in receiver],
        "messages": np.bincount(group),
        "bytes": sums(group, size, len(keys)),
        "transfer_ns": sums(group, transfer, len(keys)) if aligned else [None] * len(keys),
    }


def _delays_table(run: RunMpi, waits: Waits, causes: Causes) -> dict[str, Values]:
    delaying, place = _delaying_ranges(run, causes.before)
    keys, group = numbered_rows(causes.rank, place)
    if not len(keys):
        return {}
    by_rank, _ = numbered_rows(group, run.calls.rank[waits.call])
    total = sums(group, waits.length, len(keys))
    return {
        "delaying_rank": [None if one == NONE else one for one in keys[:, 0].tolist()],
        "delaying_range": [delaying[one] for one in keys[:, 1].tolist()],
        "ranks": np.bincount(by_rank[:, 0]),
        "waits": np.bincount(group),
        "wait_ns": total,
        "share_pct": np.round(100 * total / total.sum(), 2),
    }


def _waits_table(run: RunMpi, waits: Waits, causes: Causes) -> pd.DataFrame | dict[str, Values]:
    calls = run.calls
    delaying, place = _delaying_ranges(run, causes.before)
    columns = (calls.rank[waits.call], calls.name[waits.call], waits.pattern, calls.range[waits.call])
    keys, group = numbered_rows(*columns, causes.rank, place)
    if not len(keys):
        return {}
    table: pd.DataFrame = pd.DataFrame(
        {
            "rank": keys[:, 0],
            "call": [calls.names[one] for one in keys[:, 1].tolist()],
            "pattern": [PATTERNS[one] for one in keys[:, 2].tolist()],
            "range": [calls.ranges[one] for one in keys[:, 3].tolist()],
            "wait_ns": sums(group, waits.length, len(keys)),
            "delaying_rank": object_array(None if one == NONE else one for one in keys[:, 4].tolist()),
            "delaying_range": [delaying[one] for one in keys[:, 5].tolist()],
        }
    )
    return table


def _delaying_ranges(run: RunMpi, before: Ints) -> tuple[list[str | None], Ints]:
    """Return names of the places before some calls, and the number of each: its range, else its calls."""
    calls = run.calls
    known = before != NONE
    at = np.where(known, before, 0)
    ranges = np.where(known, calls.before[at], NONE)
    unnamed = known & (ranges == NONE)
    previous = np.where(unnamed, calls.name[np.maximum(at - 1, 0)], NONE)
    keys, number = numbered_rows(ranges, previous, np.where(unnamed, calls.name[at], NONE))
    return [
        f"{BETWEEN}{calls.names[one]} and {calls.names[other]}" if one != NONE else calls.ranges[name]
        for name, one, other in keys.tolist()
    ], number
