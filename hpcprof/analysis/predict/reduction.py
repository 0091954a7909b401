"""Reduces the timelines of a run to a table of operations.

Communication keeps its rows: collectives and messages of NCCL, of the host's process groups, and of MPI.
The computation of a rank between them becomes one operation, which ends where communication begins, or where
the
rank waits for it. Gaps within belong to it; the host may have caused them. Where a rank computes nothing
between two operations of communication, the operation takes no time, so that all steps have the same ones.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pandas as pd

from hpcprof.analysis.account.step_account import busy_time, measured_by_mpi
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.common.errors import HpcprofError
from hpcprof.common.units import named_ranks
from hpcprof.profiles.collective_operations import POINT_TO_POINT
from hpcprof.profiles.columns.intervals import Intervals, difference
from hpcprof.profiles.timeline import NO_PEER, Ints, Timeline

_MIN_COMPUTING_NS = 1_000
"""Minimum length of computing between two operations of communication."""
_LEAST_WAIT_NS = 20_000
"""Minimum length of a wait for communication."""
_PROMPT_NS, _PROMPT_SHARE = 10_000, 0.1
"""Maximum delay of what waits for communication after its end: in ns, or as a share of the wait."""
_COLUMNS = ("rank", "step", "name", "kind", "start_ns", "duration_ns", "group", "peer", "bytes")


def operations_of_timelines(inputs: ExplainInputs) -> pd.DataFrame:
    """Return the operations of all ranks of a run on their common clock.

    Raises HpcprofError if a rank has no steps, or the clocks of ranks are not aligned.
    """
    apart = [rank for rank in inputs.ranks if rank not in inputs.aligned]
    if apart and len(inputs.ranks) > 1:
        raise HpcprofError(f"no communication aligns the clocks of {named_ranks(apart)} with the others.")
    if inputs.coverage:
        raise HpcprofError(f"a prediction needs the profiles of all ranks: {inputs.coverage}.")
    collectives = inputs.tables["rank_collectives"]
    parts = []
    for rank in inputs.ranks:
        timeline = inputs.read(rank)
        if not len(steps_of(timeline)):
            raise HpcprofError(f"rank {rank} has no steps (hpcprof report --analysis step_ranges).")
        rows = pd.DataFrame(_rows(timeline, collectives[collectives["rank"] == rank]), columns=_COLUMNS[1:])
        if rank in inputs.aligned:
            rows["start_ns"] = inputs.clocks[rank].to_common(rows["start_ns"].to_numpy(np.int64))
        parts.append(rows.assign(rank=rank))
    table: pd.DataFrame = pd.concat(parts, ignore_index=True)[[*_COLUMNS]]
    whole = table.groupby("step")["rank"].nunique() == len(inputs.ranks)
    table = table[table["step"].map(whole)].assign(stage=-1, microbatch=-1, chunk=-1, replica=-1)
    by = ["rank", "step", "start_ns", "duration_ns", "name"]
    ordered: pd.DataFrame = table.sort_values(by, kind="stable", ignore_index=True)
    return ordered


def _rows(timeline: Timeline, collectives: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    """Yield the operations of a rank, on its own clock."""
    communication = _of_mpi(timeline) if measured_by_mpi(timeline) else _of_collectives(collectives)
    busy = busy_time(timeline)
    talking = busy.exposed_communication
    computing = difference(busy.busy, talking)
    times, numbers = step_intervals(timeline), steps_of(timeline).number
    start = communication["start_ns"].to_numpy(np.int64)
    step = np.searchsorted(times.start, start, side="right") - 1
    inside = (step >= 0) & (start < times.end[step])
    for row, number in zip(communication[inside].itertuples(index=False), step[inside].tolist(), strict=True):
        yield (int(numbers[number]), *row)
    for number, (begin, end) in enumerate(zip(times.start.tolist(), times.end.tolist(), strict=True)):
        in_step = communication[inside & (step == number)]
        for first, last in _pieces(computing, in_step, begin, end):
            yield (int(numbers[number]), "compute", "compute", first, last - first, "", NO_PEER, -1)


def _pieces(
    computing: Intervals, communication: pd.DataFrame, begin: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yield the spans of computing in a step, divided where communication begins or is waited for."""
    starts, ends = computing
    inside = (ends > begin) & (starts < end)
    starts, ends = np.maximum(starts[inside], begin), np.minimum(ends[inside], end)
    cuts = np.unique(communication["start_ns"].to_numpy(np.int64))
    over = communication["start_ns"].to_numpy(np.int64) + communication["duration_ns"].to_numpy(np.int64)
    gaps = _waits(starts, ends, over)
    for at, first in enumerate([begin, *cuts.tolist()]):
        last = int(cuts[at]) if at < len(cuts) else end
        chosen = (ends > first) & (starts < last)
        low, high = np.maximum(starts[chosen], first), np.minimum(ends[chosen], last)
        if not len(low):
            yield first, first
            continue
        breaks = np.flatnonzero(gaps[np.flatnonzero(chosen)][1:])
        edges = [0, *(breaks + 1).tolist(), len(low)]
        for last_low, other in pairwise(edges):
            if len(edges) == 2 or high[other - 1] - low[last_low] >= _MIN_COMPUTING_NS:
                yield int(low[last_low]), int(high[other - 1])


def _waits(starts: Ints, ends: Ints, moments: Ints) -> np.ndarray:
    """Return whether the gap before each interval is a wait: it ends soon after one of some moments."""
    before = np.append(np.iinfo(np.int64).min // 2, ends[:-1])
    ordered = np.sort(moments)
    at = np.searchsorted(ordered, starts, side="right") - 1
    last = ordered[np.maximum(at, 0)] if len(ordered) else before
    soon = np.maximum(_PROMPT_NS, _PROMPT_SHARE * (starts - before))
    wait: np.ndarray = (
        (at >= 0) & (last > before) & (starts - last <= soon) & (starts - before >= _LEAST_WAIT_NS)
    )
    return wait


def _of_collectives(rows: pd.DataFrame) -> pd.DataFrame:
    messages = {"Send": "send", "Recv": "recv"}
    peers = rows["peer"].fillna(NO_PEER).astype(np.int64)
    operations: pd.DataFrame = pd.DataFrame(
        {
            "name": rows["op"].astype(str),
            "kind": [messages.get(op, "collective") for op in rows["op"]],
            "start_ns": rows["start_ns"].astype(np.int64),
            "duration_ns": (rows["end_ns"] - rows["start_ns"]).astype(np.int64),
            "group": np.where(rows["op"].isin(POINT_TO_POINT), "", rows["comm_id"].fillna("").astype(str)),
            "peer": peers,
            "bytes": rows["bytes"].fillna(-1).astype(np.int64),
        }
    )
    return operations


def _of_mpi(timeline: Timeline) -> pd.DataFrame:
    table = timeline.mpi_operations
    names = np.array(timeline.names(table.operation), object)
    peer = np.where(table.peer == NO_PEER, table.comm_peer, table.peer)
    kind = np.array([{"Send": "send", "Recv": "recv"}.get(name, "collective") for name in names], object)
    communicators = np.array([text or "" for text in timeline.names(table.communicator)], object)
    operations: pd.DataFrame = pd.DataFrame(
        {
            "name": names,
            "kind": kind,
            "start_ns": table.start,
            "duration_ns": table.end - table.start,
            "group": np.where(kind == "collective", communicators, ""),
            "peer": peer,
            "bytes": table.bytes,
        }
    )
    return operations
