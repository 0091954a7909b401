"""The account of a step: every nanosecond of its wall time in exactly one part."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.common_clock import RankClock
from hpcprof.analysis.collectives.matches import RankWaits
from hpcprof.analysis.framework.outcome import Outcome, no_rows, none_in
from hpcprof.analysis.gpu_time.device_time import working_intervals
from hpcprof.analysis.operators.host_time import (
    host_communication,
    host_compute,
    measured_on_host,
    uses_device,
)
from hpcprof.analysis.steps import run_step
from hpcprof.analysis.steps.mpi_steps import main_thread_calls
from hpcprof.analysis.steps.step_ranges import no_steps, steps_of
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.common.memoize import computed_once
from hpcprof.common.units import named_ranks
from hpcprof.profiles.columns.intervals import Intervals, coverage, difference, intersection, union, union_of
from hpcprof.profiles.columns.unique import object_array
from hpcprof.profiles.timeline import PARTS_OF_WORK, Ints, Timeline

_MAX_NAMED = 8
_NEVER = np.empty(0, np.int64)
_NO_STEPS = "no rank has steps with work on the GPU"


@dataclass(frozen=True)
class BusyTime:
    """Busy time of the GPUs of a process, as exclusive sets of intervals; any of several GPUs counts.

    In a profile without work on a GPU, operators are compute, and collectives of the host communication. In
    one of a program with MPI, its calls are communication, and all else is compute.
    """

    exposed_communication: Intervals
    exposed_memory: Intervals
    """Communication outside compute; copies and sets outside both."""
    busy: Intervals
    """All work; outside the other two it is compute."""


@computed_once
def busy_time(timeline: Timeline) -> BusyTime:
    """Return the busy time of the GPUs of a timeline or, without GPUs, of its host."""
    if measured_on_host(timeline):
        computing = host_compute(timeline)
        communicating = difference(host_communication(timeline), computing)
        return BusyTime(communicating, (_NEVER, _NEVER), union_of(computing, communicating))
    if measured_by_mpi(timeline):
        return BusyTime(_in_mpi(timeline), (_NEVER, _NEVER), _whole_span(timeline))
    compute, communication, memory = (working_intervals(timeline, category) for category in PARTS_OF_WORK)
    working = union_of(compute, communication)
    return BusyTime(
        difference(communication, compute), difference(memory, working), union_of(working, memory)
    )


def measured_by_mpi(timeline: Timeline) -> bool:
    """Return whether the only record of a program without a GPU is its calls of MPI."""
    return not timeline.operation_count and not len(timeline.operators) and len(timeline.mpi_calls) > 0


def _in_mpi(timeline: Timeline) -> Intervals:
    calls = main_thread_calls(timeline)
    return union(calls.start, calls.end)


def _whole_span(timeline: Timeline) -> Intervals:
    steps, calls = step_intervals(timeline), timeline.mpi_calls
    start, end = (np.concatenate(pair) for pair in ((steps.start, calls.start), (steps.end, calls.end)))
    return np.array([start.min()]), np.array([end.max()])


def nothing_ran(timeline: Timeline) -> str:
    """Return the reason why the time of a timeline cannot be divided."""
    file = timeline.origin.path.name
    if uses_device(timeline):
        return f"the work of the device is not in {file}: without it, there is no account of the steps"
    return f"no CUDA kernels, memory operations or operators in {file}"


def step_parts(timeline: Timeline) -> Outcome:
    """Divide the wall time of each step by the activity of the GPU, without regard to the other ranks.

    Without work on a GPU, it is divided by the activity of the host (`BusyTime`).

    ``start_ns`` is the front of the step on the profile's clock. ``exposed_comm_ns`` includes the time in
    which the rank waits for others. The parts add up to ``wall_ns``.
    """
    times = step_intervals(timeline)
    if not len(times.start):
        return no_rows(no_steps(timeline))
    if not (timeline.operation_count or measured_on_host(timeline) or measured_by_mpi(timeline)):
        return no_rows(nothing_ran(timeline))
    busy = busy_time(timeline)
    sets = (busy.busy, busy.exposed_communication, busy.exposed_memory)
    working, communication, memory = (coverage(times.start, times.end, part) for part in sets)
    wall = times.end - times.start
    rows = {
        "step": steps_of(timeline).number,
        "start_ns": times.start,
        "wall_ns": wall,
        "compute_ns": working - communication - memory,
        "exposed_comm_ns": communication,
        "exposed_mem_ns": memory,
        "idle_ns": wall - working,
    }
    return Outcome(rows)


def exposed_communication(timeline: Timeline) -> Outcome:
    """List the intervals in which communication runs and compute does not, on the profile's clock.

    Those of MPI calls are in ``mpi_call_list``, and their waits in ``mpi_waits``.
    """
    if measured_by_mpi(timeline):
        return no_rows(f"the communication of {timeline.origin.path.name} is in its calls of MPI")
    start, end = busy_time(timeline).exposed_communication
    if not len(start):
        return none_in(timeline, "exposed communication")
    return Outcome({"start_ns": start, "end_ns": end})


class Divided(NamedTuple):
    """The steps of some ranks."""

    rows: pd.DataFrame
    """The rows of ``step_account``."""
    start: Ints
    """The front of each step: on the common clock for the ranks in ``aligned``, else on the rank's own; shape
    (rows,).
    """
    own_start: Ints
    """The same, on each rank's own clock."""
    aligned: set[int]
    unknown: set[int]
    """The ranks whose clocks communication aligned, and the ranks whose waiting is unknown."""


def divide(
    tables: Mapping[str, pd.DataFrame], waits: Mapping[int, RankWaits], clocks: Mapping[int, RankClock]
) -> Divided:
    """Divide the steps of some ranks.

    ``waits`` are those of each rank in all its communicators, ``clocks`` those that communication aligned.
    """
    parts = tables["step_parts"].reset_index(drop=True)
    rows = parts.drop(columns="start_ns").copy()
    waited = _waiting_for_peers(parts, tables["exposed_communication"], waits)
    rows["wait_for_peer_ns"] = object_array(waited)
    rows["exposed_comm_ns"] -= np.array([time or 0 for time in waited], np.int64)
    unknown = {rank for rank, time in zip(parts["rank"].tolist(), waited, strict=True) if time is None}
    own_start = parts["start_ns"].to_numpy(np.int64)
    start = own_start.copy()
    aligned = set(clocks).intersection(parts["rank"].tolist())
    for rank in aligned:
        on_rank = np.flatnonzero(parts["rank"] == rank)
        start[on_rank] = clocks[rank].to_common(start[on_rank])
    rows = rows if unknown else rows.astype({"wait_for_peer_ns": np.int64})
    return Divided(rows, start, own_start, aligned, unknown)


def step_account(divided: Sequence[Divided], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Divide the wall time of each step on each rank into exclusive parts, which add up to it exactly.

    ``compute_ns`` is the time in which any compute kernel runs. Exposed communication is the time of
    communication without compute. ``wait_for_peer_ns`` is its part in which all running collectives still
    wait for their last rank and all messages for their partner, by aligned clocks; ``exposed_comm_ns`` is the
    rest.
    ``exposed_mem_ns`` is the time of copies and sets outside both, and ``idle_ns`` what is left.
    ``wait_for_peer_ns`` is None, and counts as 0, where the arrivals of the other ranks are unknown. ``kind``
    is the number of the step's kind in ``step_kinds``, 0 if the steps are of one kind or not all ranks have
    the step.
    """
    joined_parts = _join_parts(divided)
    if not len(joined_parts.rows):
        return no_rows(_NO_STEPS)
    return Outcome(
        joined_parts.rows.assign(kind=run_step.kind_of_rows(joined_parts.rows)),
        why_unknown(joined_parts.unknown),
    )


def step_kinds(divided: Sequence[Divided], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Return the account of the step of the run, of all its steps and of each kind of them.

    ``kind`` 0 stands for all steps that every rank has. Its ``elapsed_ns`` is the mean time, on the aligned
    clock, from the begin of a step on the last rank to the begin of the next one there; without a common
    clock, it is that of the slowest rank. The last step has no next one, and counts only in a kind without
    another. If there is time between steps, all count, from the first begin to the last end.

    The kinds follow, the most frequent first, if there are several
    (`hpcprof.analysis.steps.run_step.kinds_of_steps`).

    Each part is a mean over these steps and all ranks. ``uneven_ns`` is the rest: ranks begin and end at
    different times, the slowest rank takes longer if clocks are not aligned, and steps that are measured on
    the host have time between them. ``wall_p50_ns`` is the median over the steps of the wall time on the
    slowest rank.
    """
    joined_parts = _join_parts(divided)
    if not len(joined_parts.rows):
        return no_rows(_NO_STEPS)
    rows = run_step.step_kinds(*joined_parts[:-1])
    return Outcome(pd.DataFrame(rows, dtype=object), why_unknown(joined_parts.unknown))


def _join_parts(divided: Sequence[Divided]) -> Divided:
    filled = [part for part in divided if len(part.rows)]
    return Divided(
        pd.concat([part.rows for part in filled], ignore_index=True) if filled else pd.DataFrame(),
        np.concatenate([_NEVER, *(part.start for part in filled)]),
        np.concatenate([_NEVER, *(part.own_start for part in filled)]),
        set[int]().union(*(part.aligned for part in filled)),
        set[int]().union(*(part.unknown for part in filled)),
    )


def why_unknown(ranks: Set[int]) -> str:
    """Return the reason why the waiting of some ranks is unknown; empty without any."""
    if not ranks:
        return ""
    return (
        f"the waiting of {named_ranks(sorted(ranks), _MAX_NAMED)} is unknown: no collectives on aligned "
        "clocks show when the last rank arrived; waits in MPI, if any, are in mpi_waits"
    )


def _waiting_for_peers(
    parts: pd.DataFrame, exposed: pd.DataFrame, waits: Mapping[int, RankWaits]
) -> list[int | None]:
    waited: list[int | None] = [None] * len(parts)
    alone = parts["exposed_comm_ns"].to_numpy() == 0
    bounds = [exposed[name].to_numpy() for name in ("start_ns", "end_ns")]
    rows_of_ranks = exposed.reset_index(drop=True).groupby("rank").indices
    begin, wall = (parts[name].to_numpy() for name in ("start_ns", "wall_ns"))
    for rank, rows in parts.reset_index(drop=True).groupby("rank").indices.items():
        start, rank_waits = begin[rows], waits.get(rank)
        length = np.zeros(len(rows), np.int64)
        if rank_waits:
            rank_rows = rows_of_ranks.get(rank, _NEVER)
            # Where one collective waits and another one transfers, the rank communicates.
            waiting = intersection((bounds[0][rank_rows], bounds[1][rank_rows]), difference(*rank_waits))
            length = coverage(start, start + wall[rows], waiting)
        for row, time in zip(rows.tolist(), length.tolist(), strict=True):
            waited[row] = time if rank_waits or alone[row] else None
    return waited
