"""The tables about the MPI calls of a run: calls, messages, waits and efficiencies."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.common_clock import RankClock
from hpcprof.analysis.framework.outcome import Outcome, Values, columns_of, no_rows
from hpcprof.analysis.mpi.declarations import NO_CALLS
from hpcprof.analysis.mpi.efficiencies import Efficiencies, with_branches
from hpcprof.analysis.mpi.matching import RunMpi, Unmatched, match_window
from hpcprof.analysis.mpi.run_lists import NONE, RunLists
from hpcprof.analysis.mpi.waits import PATTERNS, Causes, Waits, causes_of, delaying_ranges, find_waits
from hpcprof.analysis.statistics.grouped import sums
from hpcprof.common.units import listed, named_ranks
from hpcprof.profiles.collective_operations import POINT_TO_POINT, MpiFunction, mpi_function
from hpcprof.profiles.columns.unique import numbered_rows, rows_by_key
from hpcprof.profiles.timeline import LATEST, Ints

_SIZES = (0, 64, 1 << 10, 16 << 10, 256 << 10, 4 << 20)
SIZE_CLASSES = ("0 B", "to 64 B", "to 1 KiB", "to 16 KiB", "to 256 KiB", "to 4 MiB", "over 4 MiB")
"""The classes of the bytes of a call."""

_PARTNERLESS = ("MPI_Win_start", "MPI_Win_complete", "MPI_Win_wait")
"""Calls that wait for a group of ranks, which profilers do not record."""

MpiTables = Mapping[str, Outcome]


def mpi_tables(
    lists: RunLists,
    regions: Iterable[pd.DataFrame],
    clocks: Mapping[int, RankClock],
    nodes: Mapping[int, str | None],
) -> MpiTables:
    """Compute the tables of the MPI calls of a run, by their names; empty without MPI calls.

    ``lists`` has the calls and operations of all ranks, ``regions`` batches of rows of ``mpi_regions``,
    ``clocks`` the aligned clocks, and ``nodes`` the host of each rank.
    """
    if not lists.ranks:
        return {}
    apart = [] if len(lists.ranks) == 1 else [rank for rank in lists.ranks if rank not in clocks]
    efficiencies = Efficiencies(regions)
    sums = _Sums(aligned=not apart)
    unmatched = Unmatched()
    for window in lists.windows():
        run = match_window(lists, window).on_common_clock(clocks)
        unmatched += run.unmatched
        sums.add(run)
        if not apart:
            efficiencies.add(run, last=window.last)
    reasons = unmatched.problems()
    if alone := sums.names_without_partners(several=len(lists.ranks) > 1):
        reasons.append(f"waits in {', '.join(alone)} count as transfer: their partners are not recorded")
    if apart:
        clocks_apart = f"the clocks of {named_ranks(apart)} are not aligned with the others"
        reasons.append(f"waits are unknown: {clocks_apart}")
    reason = "; ".join(reasons)
    waits, delays, matrix = sums.waits_table(), sums.delays_table(), sums.matrix(nodes)
    why_empty = reason or ("" if waits else "no call of MPI waited")
    return {
        "mpi_calls": Outcome(sums.calls_table(), reason),
        "mpi_matrix": Outcome(
            matrix,
            reason if matrix else _without_messages(sums.names) or reason or "no messages between ranks",
        ),
        "mpi_waits": Outcome(waits, why_empty),
        "mpi_delays": Outcome(delays, why_empty),
        "pop": no_rows(reason) if apart else Outcome(columns_of(efficiencies.rows()), reason),
    }


def _without_messages(names: Iterable[str]) -> str:
    """Return the reason why calls of these names have no messages; empty if none of them has a partner."""
    calls = [name for name, item in _functions(names) if item.operation in POINT_TO_POINT]
    if not calls:
        return ""
    return f"no valid record of a message between ranks, though the program calls {listed(calls, 4)}"


def _functions(names: Iterable[str]) -> Iterator[tuple[str, MpiFunction]]:
    """Yield the known functions of MPI among some names."""
    for name in sorted(names):
        if item := mpi_function(name):
            yield name, item


def pop(parts: Sequence[MpiTables], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Return the efficiencies of the run and its parts; no rows for GPU programs that hardly call MPI."""
    efficiencies = next((part["pop"] for part in parts if part), no_rows(NO_CALLS))
    if len(efficiencies) and len(results["breakdown"]) and not len(results["offload"]):
        return no_rows("hardly a step calls MPI: `breakdown` tells how the GPUs spend their time")
    return with_branches(efficiencies, results["offload"])


class _Sums:
    """The sums over the windows of a run.

    ``aligned`` is True if the calls are on one clock, so that waits are known.
    """

    def __init__(self, *, aligned: bool) -> None:
        self._aligned = aligned
        self._lengths: dict[tuple[int, str, int], list[Ints]] = {}
        self._extent: dict[int, tuple[int, int]] = {}
        self._calls: list[pd.DataFrame] = []
        self._waits: list[pd.DataFrame] = []
        self._messages: list[pd.DataFrame] = []
        self._with_operations: set[str] = set()

    def add(self, run: RunMpi) -> None:
        """Add a window whose calls are on the common clock, if there is one."""
        waits = find_waits(run) if self._aligned else None
        wait = np.zeros(len(run.calls), np.int64)
        if waits is not None:
            np.add.at(wait, waits.call, waits.length)
        self._add_calls(run, wait)
        self._add_messages(run, wait)
        if waits is not None:
            causes = causes_of(run, waits)
            counted = np.flatnonzero(run.calls.counted[waits.call])
            self._add_waits(run, waits.take(counted), causes.take(counted))

    def _add_calls(self, run: RunMpi, wait: Ints) -> None:
        calls, ops = run.calls, run.operations
        size = np.full(len(calls), NONE)
        maximum = np.maximum(ops.sent, ops.received)
        rows = np.flatnonzero(maximum >= 0)
        size[ops.begin[rows]] = 0
        named = np.unique(calls.name[np.concatenate([ops.begin, ops.completes])])
        self._with_operations.update(calls.names[name] for name in named.tolist())
        np.add.at(size, ops.begin[rows], maximum[rows])
        kind = np.where(size < 0, NONE, np.searchsorted(_SIZES, size))
        counted = np.flatnonzero(calls.counted)
        keys, group = numbered_rows(calls.rank[counted], calls.name[counted], kind[counted])
        count = np.bincount(group, minlength=len(keys))
        values = {"bytes": np.maximum(size, 0), "total_ns": calls.length, "wait_ns": wait}
        totals = {name: sums(group, column[counted], len(keys)) for name, column in values.items()}
        names = [calls.names[name] for name in keys[:, 1].tolist()]
        kinds = {"rank": keys[:, 0], "call": names, "size": keys[:, 2]}
        self._calls.append(pd.DataFrame({**kinds, "calls": count, **totals}))
        order = np.argsort(group, kind="stable")
        # Medians need every length: 4 bytes a call, unless one lasts longer than 4 s.
        lengths = calls.length[counted][order]
        if lengths.max(initial=0) <= np.iinfo(np.uint32).max:
            lengths = lengths.astype(np.uint32)
        parts = np.split(lengths, np.cumsum(count[:-1]))
        for (rank, _, size_class), name, part in zip(keys.tolist(), names, parts, strict=True):
            self._lengths.setdefault((rank, name, size_class), []).append(part)
        for (rank,), places in rows_by_key(calls.rank[counted]):
            low, high = self._extent.get(rank, (LATEST, -LATEST))
            start, end = calls.own_start[counted[places]].min(), calls.own_end[counted[places]].max()
            self._extent[rank] = min(low, int(start)), max(high, int(end))

    @property
    def names(self) -> set[str]:
        """The names of the calls."""
        return {name for _, name, _ in self._lengths}

    def names_without_partners(self, *, several: bool) -> list[str]:
        """Return the names of calls that wait for ranks which the profiles do not record.

        Messages of a run that has not ``several`` ranks go to no rank.
        """
        blocking = {
            name
            for name, item in _functions(self.names)
            if several and item.operation in POINT_TO_POINT and not item.nonblocking and not item.persistent
        }
        return sorted((blocking - self._with_operations) | (self.names & {*_PARTNERLESS}))

    def calls_table(self) -> dict[str, Values]:
        """Return the rows of ``mpi_calls``."""
        columns = _sums_by(self._calls, ["rank", "call", "size"], "calls bytes total_ns wait_ns", sort=True)
        keys = [*zip(*(columns[name].tolist() for name in ("rank", "call", "size")), strict=True)]
        medians = [float(np.median(np.concatenate(self._lengths[key]))) for key in keys]
        extent = np.array([max(1, high - low) for low, high in (self._extent[rank] for rank, _, _ in keys)])
        total, wait, unknown = columns["total_ns"], columns["wait_ns"], [None] * len(keys)
        return columns | {
            "size_class": [None if size_class < 0 else SIZE_CLASSES[size_class] for _, _, size_class in keys],
            "median_ns": np.rint(medians).astype(np.int64),
            "wait_ns": wait if self._aligned else unknown,
            "transfer_ns": total - wait if self._aligned else unknown,
            "share_pct": np.round(100 * total / extent, 2),
        }

    def _add_messages(self, run: RunMpi, wait: Ints) -> None:
        """Add the messages by sender and receiver, with the transfer time of the calls that receive them."""
        calls, ops = run.calls, run.operations
        receives = ops.matched_receives
        if not len(receives):
            return
        sends = ops.partner[receives]
        last = ops.completes[receives]
        transfer = calls.length[last] - wait[last]
        size = np.maximum(ops.sent[sends], ops.received[receives])
        size = np.maximum(np.where(size < 0, ops.sent[receives], size), 0)
        keys, group = numbered_rows(ops.rank[sends], ops.rank[receives])
        sizes, transfers = (sums(group, values, len(keys)) for values in (size, transfer))
        pairs = {"sender": keys[:, 0], "receiver": keys[:, 1], "messages": np.bincount(group)}
        self._messages.append(pd.DataFrame({**pairs, "bytes": sizes, "transfer_ns": transfers}))

    def matrix(self, nodes: Mapping[int, str | None]) -> dict[str, Values]:
        """Return the rows of ``mpi_matrix``; ``nodes`` has the host of each rank."""
        columns = _sums_by(self._messages, ["sender", "receiver"], "messages bytes transfer_ns", sort=True)
        if not columns:
            return {}
        for side in ("sender", "receiver"):
            columns[f"{side}_node"] = [nodes.get(rank) for rank in columns[side].tolist()]
        if not self._aligned:
            columns["transfer_ns"] = [None] * len(columns["sender"])
        return columns

    def _add_waits(self, run: RunMpi, waits: Waits, causes: Causes) -> None:
        if not len(waits.call):
            return
        calls = run.calls
        delaying, place = delaying_ranges(run, causes.before)
        columns = (calls.rank[waits.call], calls.name[waits.call], waits.pattern, calls.range[waits.call])
        keys, group = numbered_rows(*columns, causes.rank, place)
        rank, name, pattern, where, cause, before = keys.T.tolist()
        rows = {
            "rank": rank,
            "call": [calls.names[number] for number in name],
            "pattern": [PATTERNS[number] for number in pattern],
            "range": [calls.ranges[number] for number in where],
            "delaying_rank": cause,
            "delaying_range": [delaying[number] for number in before],
            "waits": np.bincount(group),
            "wait_ns": sums(group, waits.length, len(keys)),
        }
        self._waits.append(pd.DataFrame(rows))

    def waits_table(self) -> dict[str, Values]:
        """Return the rows of ``mpi_waits``."""
        return _sums_by(self._waits, ["rank", "call", "pattern", "range", *_DELAYING], "wait_ns")

    def delays_table(self) -> dict[str, Values]:
        """Return the rows of ``mpi_delays``."""
        columns = _sums_by(self._waits, [*_DELAYING], "waits wait_ns", ranks=("rank", "nunique"))
        if not columns:
            return {}
        waits = columns["wait_ns"].tolist()
        total_wait = sum(waits)
        return columns | {"share_pct": [round(100 * wait / total_wait, 2) for wait in waits]}


_DELAYING = ("delaying_rank", "delaying_range")


def _sums_by(
    parts: Sequence[pd.DataFrame],
    keys: list[str],
    summed: str,
    *,
    sort: bool = False,
    **aggregates: tuple[str, str],
) -> dict[str, Any]:
    """Return columns summed over windows by keys, in the order of the keys' first rows unless ``sort``.

    ``aggregates`` are more columns, each by a column and the name of its function in pandas.
    """
    if not parts:
        return {}
    aggregates |= {name: (name, "sum") for name in summed.split()}
    grouped = pd.concat(parts, ignore_index=True).groupby(keys, sort=sort, dropna=False)
    table = grouped.agg(**aggregates).reset_index().replace({np.nan: None})
    columns = {name: table[name].to_numpy() for name in table}
    if "delaying_rank" in columns:
        columns["delaying_rank"] = np.where(columns["delaying_rank"] == NONE, None, columns["delaying_rank"])
    return columns
