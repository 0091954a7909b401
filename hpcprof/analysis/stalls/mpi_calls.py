"""The collectives of MPI that a rank has ended, from its profile, and the one in which it hangs.

1. The native stack has the name of the call that hangs.
2. A profiler that is stopped before the program records this call too, as if it had ended then. If the
   program ended first, the profile lacks it, and often a few calls before it.
3. Its communicator is then that of the earlier call of this name with the longest common sequence of calls
   before it (`_predict_communicator`).
4. As the run stands still, a synchronizing collective that has ended on one rank has ended on all.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np

from hpcprof.analysis.stalls.evidence import LastCall, ProcessState, RankEvidence
from hpcprof.profiles.collective_operations import ON_WINDOWS_AND_FILES, POINT_TO_POINT, WAITING, mpi_function
from hpcprof.profiles.readers.flight_recorder import Entered, FlightRecord
from hpcprof.profiles.timeline import LATEST, Timeline

_WITHOUT_GROUP = POINT_TO_POINT | ON_WINDOWS_AND_FILES
"""Operations that are not known to be of all ranks of a communicator."""

_START_CALLS = frozenset({"MPI_Init", "MPI_Init_thread"})
_MAX_SHOWN_CALLS = 3
_MAX_COMPARED_CALLS = 64
"""Number of calls before the hanging call that are compared with the calls before earlier ones."""


class _Collective(NamedTuple):
    operation: str
    group: str
    ranks: int


def with_recorded_calls(
    ranks: Mapping[int, RankEvidence], profiles: Mapping[int, Timeline], stall_ns: int
) -> dict[int, RankEvidence]:
    """Return the evidence with the last calls of each profile, and the collectives of each communicator.

    The collectives are left out where they cannot be counted: a running rank has no profile from the start of
    MPI on, or the communicator in which a rank waits, or its ranks, are unknown. A profile's last call hangs
    if it takes ``stall_ns``.
    """
    profiled = {rank: _CallsOfRank(rank, profile, stall_ns) for rank, profile in profiles.items()}
    result = {
        rank: replace(facts, last_calls=profiled[rank].last_calls()) if rank in profiled else facts
        for rank, facts in ranks.items()
    }
    running = [rank for rank, facts in ranks.items() if facts.state is ProcessState.RUNNING]
    if not all(rank in profiled and profiled[rank].is_whole for rank in running):
        return result
    counts = {rank: Counter(call.group for call in profiled[rank].ended) for rank in running}
    most: Counter[str] = reduce(or_, counts.values(), Counter())
    sizes = {call.group: call.ranks for rank in running for call in profiled[rank].ended}
    members = {group: tuple(rank for rank in running if counts[rank][group]) for group in sizes}
    members |= {group: tuple(ranks) for group, size in sizes.items() if size == len(ranks)}
    counted = {}
    for rank in running:
        native, entered = ranks[rank].native, dict(most)
        call = native.call if native else ""
        function = mpi_function(call)
        operations: tuple[Entered, ...] = ()
        if function is not None and function.operation not in _WITHOUT_GROUP:
            group = profiled[rank].group_of(function.operation)
            if len(members.get(group, ())) != sizes.get(group):
                return result
            before = most if function.operation in WAITING else counts[rank]
            entered[group] = max(entered[group], before[group] + 1)
            frames = [*ranks[rank].stack] or ([native.frame] if native and native.frame else [])
            operations = (Entered((group, ""), call, collective_seq_id=before[group] + 1, frames=frames),)
        counted[rank] = replace(result[rank], record=FlightRecord("", members, {}, operations, entered))
    return result | counted


class _CallsOfRank:
    """The MPI calls of a rank in its profile: the collectives that it has ended, and those that hang."""

    def __init__(self, rank: int, profile: Timeline, stall_ns: int) -> None:
        self._rank, self._profile = rank, profile
        calls, rows, texts = profile.mpi_calls, profile.mpi_operations, [*profile.strings, ""]
        last = int(np.argmax(calls.start)) if len(calls) else -1
        hangs = len(calls) > 0 and calls.end[last] - calls.start[last] >= stall_ns
        self._stop = int(calls.end[last]) if hangs else LATEST
        self.is_whole = not profile.origin.captured and not _START_CALLS.isdisjoint(
            profile.strings[np.unique(calls.name)]
        )
        self.ended: list[_Collective] = []
        self.hanging: list[_Collective] = []
        for row in np.argsort(rows.start, kind="stable").tolist():
            op = _Collective(texts[rows.operation[row]], texts[rows.communicator[row]], int(rows.ranks[row]))
            if op.group and op.operation not in _WITHOUT_GROUP:
                (self.hanging if rows.end[row] >= self._stop else self.ended).append(op)

    def group_of(self, operation: str) -> str:
        """Return the communicator of the operation that hangs; empty if unknown."""
        groups = (call.group for call in self.hanging if call.operation == operation)
        return next(groups, "") or _predict_communicator(self.ended, operation)

    def last_calls(self) -> tuple[LastCall, ...]:
        """Return the calls that have ended last, the last one at the end."""
        profile, calls = self._profile, self._profile.mpi_calls
        texts, rows, zero = [*profile.strings, ""], profile.mpi_operations, profile.origin.start_utc_ns
        calls_of_rank = []
        order = np.argsort(calls.end, kind="stable")
        for row in order[calls.end[order] < self._stop][-_MAX_SHOWN_CALLS:].tolist():
            begun = np.flatnonzero((rows.start == calls.start[row]) & (rows.thread == calls.thread[row]))
            group = texts[rows.communicator[begun[0]]] if len(begun) else ""
            ended = datetime.fromtimestamp(((zero or 0) + int(calls.end[row])) / 1e9, timezone.utc)
            moment = None if zero is None else ended.isoformat(timespec="milliseconds")
            calls_of_rank.append(LastCall(self._rank, texts[calls.name[row]], group, moment))
        return tuple(calls_of_rank)


def _predict_communicator(ended: Sequence[_Collective], operation: str) -> str:
    """Return the communicator of an operation after these; empty if the rank had none like it before."""
    best, group = -1, ""
    for place in reversed(range(len(ended))):
        if ended[place].operation != operation:
            continue
        before = 0
        while before < min(place, _MAX_COMPARED_CALLS) and ended[place - 1 - before] == ended[-1 - before]:
            before += 1
        if before > best:
            best, group = before, ended[place].group
        if before == _MAX_COMPARED_CALLS:
            break
    return group
