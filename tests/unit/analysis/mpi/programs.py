"""MPI programs whose calls are given one by one, as timelines with known waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.common_clock import RankClock
from hpcprof.analysis.framework.outcome import Outcome, analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.mpi.matching import RunMpi, match_window
from hpcprof.analysis.mpi.run_lists import MAX_CALLS, RunLists
from hpcprof.analysis.mpi.tables import mpi_tables
from hpcprof.profiles.timeline import (
    ApiCalls,
    Kernels,
    MemoryOperations,
    MpiCalls,
    MpiOperations,
    Origin,
    OsCalls,
    Ranges,
    StepRange,
    Timeline,
)

WORLD = "world"
_LISTS = ("mpi_call_list", "mpi_operation_list", "mpi_regions")


def match_mpi(calls: pd.DataFrame, operations: pd.DataFrame) -> RunMpi | None:
    """Match the messages and collectives of all ranks, given by rank; None without calls."""
    lists = RunLists(most_calls=len(calls))
    for rank in np.unique(calls["rank"].to_numpy(np.int64)).tolist():
        lists.add(rank, *(rows[rows["rank"] == rank] for rows in (calls, operations)))
    if not lists.ranks:
        return None
    (whole,) = lists.windows()
    return match_window(lists, whole)


@dataclass
class Program:
    """Calls of MPI by rank; times are in ns on one clock, shifted by ``ahead`` on each rank's own."""

    ranks: int
    ahead: dict[int, int] = field(default_factory=dict)
    calls: list[tuple[int, str, int, int]] = field(default_factory=list)
    operations: list[dict[str, Any]] = field(default_factory=list)
    ranges: list[tuple[int, str, int, int]] = field(default_factory=list)
    os_calls: list[tuple[int, str, int, int]] = field(default_factory=list)

    def call(self, rank: int, name: str, start: int, end: int, *operations: dict[str, Any]) -> None:
        """Add a call with the operations that begin in it; they end in it unless they say otherwise."""
        self.calls.append((rank, name, start, end))
        for one in operations:
            # By default an operation ends in the call in which it begins.
            self.operations.append({"rank": rank, "start": start, "end": end, "begin": end - start, **one})

    def everywhere(self, name: str, op: str, starts: list[int], end: int, root: int = -1) -> None:
        """Add a collective of all ranks, which all leave at one moment."""
        for rank, start in enumerate(starts):
            self.call(rank, name, start, end, {"op": op, "root": root, "bytes": 8})

    def timeline(self, rank: int) -> Timeline:
        """Return the timeline of a rank."""
        texts: list[str] = []

        def number(text: str | None) -> int:
            if text is None:
                return -1
            if text not in texts:
                texts.append(text)
            return texts.index(text)

        shift = self.ahead.get(rank, 0)
        calls, os_calls = (
            np.array(
                [(s + shift, e + shift, 1, 1, number(n)) for r, n, s, e in table if r == rank], np.int64
            ).reshape(-1, 5)
            for table in (self.calls, self.os_calls)
        )
        rows = []
        for one in self.operations:
            if one["rank"] == rank:
                own = {
                    "comm": WORLD,
                    "ranks": self.ranks,
                    "peer": -1,
                    "root": -1,
                    "tag": -1,
                    "wait": 0,
                    **one,
                }
                own = {"bytes": -1, "received": -1, **own}
                rows.append(
                    [
                        *(own["start"] + shift, own["end"] + shift, 1, 1, number(own["op"])),
                        *(number(own["comm"]), own["ranks"], own["peer"], -1, own["root"], own["tag"]),
                        *(own["bytes"], own["received"], own["begin"], own["wait"]),
                    ]
                )
        operations = np.array(rows, np.int64).reshape(-1, 15)
        marked = [
            (s + shift, e + shift, 1, 1, number(n), -1, 0, 1, 1) for r, n, s, e in self.ranges if r == rank
        ]
        ranges = np.array(marked, np.int64).reshape(-1, 9)
        strings = np.empty(len(texts), object)
        strings[:] = texts
        return Timeline(
            origin=Origin(Path(f"rank{rank:05d}.sqlite"), "nsys", rank=rank),
            strings=strings,
            kernels=Kernels.empty(),
            memops=MemoryOperations.empty(),
            calls=ApiCalls.empty(),
            ranges=Ranges(*ranges.T),
            mpi_calls=MpiCalls(*calls.T),
            mpi_operations=MpiOperations(*operations.T),
            os_calls=OsCalls(*os_calls.T),
            step_range=StepRange("step"),
        )

    def lists(self) -> dict[str, pd.DataFrame]:
        """Return the rows of the analyses by rank that the others read."""
        found, timelines = {}, [self.timeline(rank) for rank in range(self.ranks)]
        for name in _LISTS:
            parts = [analyze_rank(ANALYSES[name], one, rank).frame for rank, one in enumerate(timelines)]
            found[name] = pd.concat([one for one in parts if len(one)] or parts[:1], ignore_index=True)
        return found

    def matched(self) -> RunMpi:
        """Return the matched calls."""
        lists = self.lists()
        found = match_mpi(lists["mpi_call_list"], lists["mpi_operation_list"])
        assert found is not None
        return found

    def tables(
        self, most_calls: int = MAX_CALLS, lists: dict[str, pd.DataFrame] | None = None
    ) -> dict[str, Outcome]:
        """Return the tables of the run, on the clock of the program, from windows of so many calls."""
        clocks = {rank: RankClock.shifted(self.ahead.get(rank, 0)) for rank in range(self.ranks)}
        nodes = {rank: f"node{rank // 2}" for rank in range(self.ranks)}
        lists = lists or self.lists()
        return dict(mpi_tables(run_lists(lists, most_calls), [lists["mpi_regions"]], clocks, nodes))


def run_lists(tables: dict[str, pd.DataFrame], most_calls: int = MAX_CALLS) -> RunLists:
    """Return the calls and operations of all ranks."""
    lists = RunLists(most_calls)
    calls, operations = (tables[name] for name in _LISTS[:2])
    for rank in sorted(set(calls["rank"])):
        own = operations[operations["rank"] == rank] if len(operations) else operations
        lists.add(rank, calls[calls["rank"] == rank], own)
    return lists


def send(peer: int, tag: int = 0, **others: int) -> dict[str, Any]:
    """Return a message to a rank."""
    return {"op": "Send", "peer": peer, "tag": tag, "bytes": 100, **others}


def receive(peer: int, tag: int = 0, **others: int) -> dict[str, Any]:
    """Return a message from a rank."""
    return {"op": "Recv", "peer": peer, "tag": tag, "received": 100, **others}
