"""The account of a step: every nanosecond of its wall time in exactly one part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.matches import RankWaits
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.text_columns import object_array
from hpcprof.analysis.gpu_time.device_time import working_intervals
from hpcprof.analysis.operators.host_time import host_communication, host_compute, measured_on_host
from hpcprof.analysis.steps.step_ranges import no_steps
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.intervals import Intervals, coverage, difference, intersection, union_of
from hpcprof.profiles.timeline import Category, Timeline

_NEVER = np.empty(0, np.int64)


@dataclass(frozen=True)
class BusyTime:
    """When the GPUs of a process work, as exclusive sets of intervals; of several GPUs, when any does.

    In a profile without work on a GPU, operators are compute, and collectives of the host communication.

    Attributes
    ----------
    exposed_communication, exposed_memory : tuple of ndarray
        Communication outside compute; copies and sets outside both.
    busy : tuple of ndarray
        All work; outside the other two it is compute.
    """

    exposed_communication: Intervals
    exposed_memory: Intervals
    busy: Intervals


@computed_once
def busy_time(timeline: Timeline) -> BusyTime:
    """Return when the GPUs of a timeline work, and on what; without GPUs, what the host does."""
    if measured_on_host(timeline):
        computing = host_compute(timeline)
        talking = difference(host_communication(timeline), computing)
        return BusyTime(talking, (_NEVER, _NEVER), union_of(computing, talking))
    compute, communication, memory = (working_intervals(timeline, category) for category in Category)
    working = union_of(compute, communication)
    return BusyTime(
        difference(communication, compute), difference(memory, working), union_of(working, memory)
    )


def nothing_ran(timeline: Timeline) -> str:
    """Return the reason why the time of a timeline cannot be divided."""
    return f"no CUDA kernels, memory operations or PyTorch operators in {timeline.origin.path.name}"


def step_parts(timeline: Timeline) -> Outcome:
    """Divide the wall time of each step by what the GPU does in it, without regard to the other ranks.

    Without work on a GPU, it is divided by what the host does (`BusyTime`).

    ``start_ns`` is the front of the step on the profile's clock. ``exposed_comm_ns`` includes the time in
    which the rank waits for others. The parts add up to ``wall_ns``.
    """
    times = step_intervals(timeline)
    if not len(times.start):
        return no_rows(no_steps(timeline))
    if not timeline.operation_count and not measured_on_host(timeline):
        return no_rows(nothing_ran(timeline))
    busy = busy_time(timeline)
    sets = (busy.busy, busy.exposed_communication, busy.exposed_memory)
    working, communication, memory = (coverage(times.start, times.end, one) for one in sets)
    wall = times.end - times.start
    rows = {
        "step": np.arange(len(wall)),
        "start_ns": times.start,
        "wall_ns": wall,
        "compute_ns": working - communication - memory,
        "exposed_comm_ns": communication,
        "exposed_mem_ns": memory,
        "idle_ns": wall - working,
    }
    return Outcome(rows)


def exposed_communication(timeline: Timeline) -> Outcome:
    """List the intervals in which communication runs and compute does not, on the profile's clock."""
    start, end = busy_time(timeline).exposed_communication
    if not len(start):
        return no_rows(f"no exposed communication in {timeline.origin.path.name}")
    return Outcome({"start_ns": start, "end_ns": end})


class Divided(NamedTuple):
    """The rows of some ranks, and those ranks of which the waiting is unknown."""

    rows: pd.DataFrame
    unknown: set[int]


def divide(tables: Mapping[str, pd.DataFrame], waits: Mapping[int, RankWaits]) -> Divided:
    """Divide the steps of some ranks; ``waits`` are those of each in all its communicators."""
    parts = tables["step_parts"]
    rows = parts.drop(columns="start_ns").copy()
    waited = _waiting_for_peers(parts, tables["exposed_communication"], waits)
    rows["wait_for_peer_ns"] = object_array(waited)
    rows["exposed_comm_ns"] -= np.array([time or 0 for time in waited], np.int64)
    unknown = {rank for rank, time in zip(parts["rank"].tolist(), waited, strict=True) if time is None}
    return Divided(rows if unknown else rows.astype({"wait_for_peer_ns": np.int64}), unknown)


def step_account(divided: Sequence[Divided], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Divide the wall time of each step on each rank into exclusive parts, which add up to it exactly.

    ``compute_ns`` is the time in which any compute kernel runs. Exposed communication is the time in which
    communication runs and compute does not: ``wait_for_peer_ns`` is its part in which every collective that
    runs still waits for its last rank, and every message for its partner, by aligned clocks, and
    ``exposed_comm_ns`` the rest.
    ``exposed_mem_ns`` is the time of copies and sets outside both, and ``idle_ns`` what is left.
    ``wait_for_peer_ns`` is None, and counts as 0, where the arrivals of the other ranks are unknown.
    """
    filled = [one.rows for one in divided if len(one.rows)]
    if not filled:
        return no_rows("no rank has steps with work on the GPU")
    unknown = set[int]().union(*(one.unknown for one in divided))
    return Outcome(pd.concat(filled, ignore_index=True), why_unknown(unknown))


def why_unknown(ranks: Set[int]) -> str:
    """Return why the waiting of some ranks is unknown; empty without any."""
    if not ranks:
        return ""
    first = ", ".join(map(str, sorted(ranks)[:8]))
    named = f"rank{'' if len(ranks) == 1 else 's'} {first}{' and others' if len(ranks) > 8 else ''}"
    return f"the waiting of {named} is unknown: no aligned clocks show when the last rank arrived"


def _waiting_for_peers(
    parts: pd.DataFrame, exposed: pd.DataFrame, waits: Mapping[int, RankWaits]
) -> list[int | None]:
    """Return the time in each row of ``parts`` that its rank waits for another one; None if unknown."""
    waited: list[int | None] = [None] * len(parts)
    alone = parts["exposed_comm_ns"].to_numpy() == 0
    bounds = [exposed[name].to_numpy() for name in ("start_ns", "end_ns")]
    of_rank = exposed.reset_index(drop=True).groupby("rank").indices
    begin, wall = (parts[name].to_numpy() for name in ("start_ns", "wall_ns"))
    for rank, rows in parts.reset_index(drop=True).groupby("rank").indices.items():
        start, found = begin[rows], waits.get(rank)
        length = np.zeros(len(rows), np.int64)
        if found:
            own = of_rank.get(rank, _NEVER)
            # Where one collective waits and another one transfers, the rank communicates.
            waiting = intersection((bounds[0][own], bounds[1][own]), difference(*found))
            length = coverage(start, start + wall[rows], waiting)
        for row, time in zip(rows.tolist(), length.tolist(), strict=True):
            waited[row] = time if found or alone[row] else None
    return waited
