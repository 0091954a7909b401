"""Reduces the timelines of a run to a table of operations.

1. Communication keeps its rows: collectives and messages of NCCL, of the host's process groups, and of MPI.
   A kernel that sends to all ranks of its communicator and receives from all is one all-to-all.
2. The computation of a rank between them becomes one operation, which ends where communication begins, or
   where the rank waits for it. Gaps within belong to it; the host may have caused them.
3. All ranks and steps with the same communication have the same operations, since whether a rank waits
   depends on its times: between two operations of communication there are as many as in most steps. Where a
   step has fewer, or computes nothing, an operation takes no time.
"""

from collections.abc import Iterator
from itertools import chain, pairwise
from statistics import median_low
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.account.step_account import busy_time, measured_by_mpi
from hpcprof.analysis.collectives.pair_matching import partner_ranks
from hpcprof.analysis.explain.inputs import ExplainInputs
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.common.errors import HpcprofError
from hpcprof.common.grouping import grouped
from hpcprof.common.units import named_ranks
from hpcprof.profiles.collective_operations import POINT_TO_POINT
from hpcprof.profiles.columns.intervals import Intervals, difference
from hpcprof.profiles.timeline import NO_PEER, Ints, Timeline

_MIN_COMPUTING_NS = 1_000
"""Minimum length of computing between two operations of communication."""
_MIN_WAIT_NS = 20_000
"""Minimum length of a wait for communication."""
_PROMPT_NS, _PROMPT_SHARE = 10_000, 0.1
"""Maximum delay of computing after the communication for which it waits: in ns, or as a share of the wait."""
_COLUMNS = ("rank", "step", "name", "kind", "start_ns", "duration_ns", "group", "peer", "bytes")
_Pieces = list[tuple[int, int]]
"""Begin and end of computing between two operations of communication."""


def operations_of_timelines(inputs: ExplainInputs) -> pd.DataFrame:
    """Return the operations of all ranks of a run on their common clock.

    Raises HpcprofError if a rank has no steps, or the clocks of ranks are not aligned.
    """
    if inputs.coverage:
        raise HpcprofError(f"a prediction needs the profiles of all ranks: {inputs.coverage}.")
    collectives = with_all_to_alls(inputs.tables["rank_collectives"])
    rows: list[tuple[object, ...]] = []
    steps: dict[tuple[int, int], tuple[tuple[str, ...], list[_Pieces]]] = {}
    for rank in inputs.ranks:
        timeline = inputs.read(rank)
        if not len(steps_of(timeline)):
            raise HpcprofError(f"rank {rank} has no steps (hpcprof report --analysis step_ranges).")
        for step, communication, pieces in _steps(timeline, collectives[collectives["rank"] == rank]):
            rows.extend((rank, step, *row) for row in communication.itertuples(index=False))
            steps[rank, step] = (tuple(communication["name"]), pieces)
    apart = [rank for rank in inputs.ranks if rank not in inputs.aligned]
    if apart and len(inputs.ranks) > 1:
        raise HpcprofError(f"no communication aligns the clocks of {named_ranks(apart)} with the others.")
    make_alike([*steps.values()])
    rows += [
        (rank, step, "compute", "compute", first, last - first, "", NO_PEER, -1)
        for (rank, step), (_, pieces) in steps.items()
        for first, last in chain.from_iterable(pieces)
    ]
    table = pd.DataFrame(rows, columns=_COLUMNS)
    for rank in inputs.aligned:
        here = (table["rank"] == rank).to_numpy()
        table.loc[here, "start_ns"] = inputs.clocks[rank].to_common(
            table["start_ns"].to_numpy(np.int64)[here]
        )
    whole = table.groupby("step")["rank"].nunique() == len(inputs.ranks)
    table = table[table["step"].map(whole)].assign(stage=-1, microbatch=-1, chunk=-1, replica=-1)
    by = ["rank", "step", "start_ns", "duration_ns", "name"]
    ordered: pd.DataFrame = table.sort_values(by, kind="stable", ignore_index=True)
    return ordered


def _steps(
    timeline: Timeline, collectives: pd.DataFrame
) -> Iterator[tuple[int, pd.DataFrame, list[_Pieces]]]:
    """Yield the number, the communication and the computing of each step of a rank, on its own clock."""
    communication = (
        _mpi_communication(timeline) if measured_by_mpi(timeline) else _collective_communication(collectives)
    )
    communication = communication.sort_values(["start_ns", "name"], kind="stable")
    busy = busy_time(timeline)
    if not len(communication) and len(busy.exposed_communication[0]):
        file = timeline.origin.path.name
        raise HpcprofError(
            f"a prediction needs collectives, and {file} has kernels that communicate, but neither the sizes "
            "nor the groups of collectives."
        )
    computing = difference(busy.busy, busy.exposed_communication)
    times, numbers = step_intervals(timeline), steps_of(timeline).number
    start = communication["start_ns"].to_numpy(np.int64)
    for number, begin, end in zip(numbers.tolist(), times.start.tolist(), times.end.tolist(), strict=True):
        in_step = communication[(start >= begin) & (start < end)]
        yield int(number), in_step, pieces_of_step(computing, in_step, begin, end)


def make_alike(steps: list[tuple[tuple[str, ...], list[_Pieces]]]) -> None:
    """Give all steps with the same communication equal numbers of pieces between the same operations.

    ``steps`` has the names of communication, and the pieces before, between and after them. The number is the
    median. Superfluous pieces are joined over the shortest gap, and missing ones are empty.
    """
    alike = grouped(((names, len(pieces)), pieces) for names, pieces in steps)
    for group in alike.values():
        for between in zip(*group, strict=True):
            count = median_low(map(len, between))
            for pieces in between:
                while len(pieces) > count:
                    gaps = [second[0] - first[1] for first, second in pairwise(pieces)]
                    at = gaps.index(min(gaps))
                    pieces[at : at + 2] = [(pieces[at][0], pieces[at + 1][1])]
                pieces.extend([(pieces[-1][1], pieces[-1][1])] * (count - len(pieces)))


def pieces_of_step(computing: Intervals, communication: pd.DataFrame, begin: int, end: int) -> list[_Pieces]:
    """Return the pieces of computing of a step before, between and after the begins of communication.

    They are divided where communication is waited for; there is at least one, which may be empty.
    """
    starts, ends = computing
    inside = (ends > begin) & (starts < end)
    starts, ends = np.maximum(starts[inside], begin), np.minimum(ends[inside], end)
    cuts = np.unique(communication["start_ns"].to_numpy(np.int64))
    finish = communication["start_ns"].to_numpy(np.int64) + communication["duration_ns"].to_numpy(np.int64)
    gaps = _waits(starts, ends, finish)
    divided = []
    for first, last in pairwise([begin, *cuts.tolist(), end]):
        overlapping = (ends > first) & (starts < last)
        low, high = np.maximum(starts[overlapping], first), np.minimum(ends[overlapping], last)
        breaks = np.flatnonzero(gaps[np.flatnonzero(overlapping)][1:])
        edges = [0, *(breaks + 1).tolist(), len(low)]
        pieces = [(int(low[at]), int(high[other - 1])) for at, other in pairwise(edges) if other > at]
        long = [piece for piece in pieces if piece[1] - piece[0] >= _MIN_COMPUTING_NS]
        divided.append(long or pieces[:1] or [(first, first)])
    return divided


def _waits(starts: Ints, ends: Ints, moments: Ints) -> np.ndarray:
    """Return a mask of the intervals after a wait: a gap that ends soon after one of some moments."""
    before = np.append(np.iinfo(np.int64).min // 2, ends[:-1])
    ordered = np.sort(moments)
    at = np.searchsorted(ordered, starts, side="right") - 1
    last = ordered[np.maximum(at, 0)] if len(ordered) else before
    soon = np.maximum(_PROMPT_NS, _PROMPT_SHARE * (starts - before))
    wait: np.ndarray = (
        (at >= 0) & (last > before) & (starts - last <= soon) & (starts - before >= _MIN_WAIT_NS)
    )
    return wait


def with_all_to_alls(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``rank_collectives`` with one row for each all-to-all that sends and receives make.

    A kernel is an all-to-all if it sends to all other ranks of its communicator and receives from all. A
    communicator of two ranks exchanges such messages too, so there the kernel has to send to its own rank.
    ``peer`` is the rank of the program. Messages of a rank to itself are left out.
    """
    rows = rows.assign(peer=partner_ranks(rows)).reset_index(drop=True)
    rows["to_self"] = rows["peer"] == rows["rank"]
    # Empty columns have no numbers.
    if not len(rows):
        return rows
    rows["members"] = rows["comm_id"].map(rows.groupby("comm_id")["rank"].nunique())
    fused = rows[(rows["fused"] > 1) & rows["op"].isin(("Send", "Recv")) & (rows["peer"] >= 0)]
    fused = fused.assign(kernel=fused.groupby(["rank", "comm_id", "start_ns", "end_ns"]).ngroup())
    kernels = fused.groupby("kernel")[["to_self", "members"]].max()
    for op in ("Send", "Recv"):
        partners = fused[(fused["op"] == op) & ~fused["to_self"]].groupby("kernel")["peer"].nunique()
        kernels = kernels[partners.reindex(kernels.index) == kernels["members"] - 1]
    kernels = kernels[kernels["to_self"] | (kernels["members"] > 2)]
    merged = fused[fused["kernel"].isin(kernels.index)]
    sent = merged[merged["op"] == "Send"].groupby("kernel")["bytes"].sum(min_count=1)
    # The size of an all-to-all includes the part that a rank keeps.
    sent *= np.where(kernels["to_self"], 1.0, kernels["members"] / (kernels["members"] - 1))
    whole = merged.drop_duplicates("kernel").set_index("kernel")
    whole = whole.assign(op="AlltoAll", bytes=sent, peer=NO_PEER)
    messages = rows[~rows["to_self"] & ~rows.index.isin(merged.index)]
    table: pd.DataFrame = pd.concat([messages, whole], ignore_index=True)
    return table


def _collective_communication(rows: pd.DataFrame) -> pd.DataFrame:
    groups = np.where(rows["op"].isin(POINT_TO_POINT), "", rows["comm_id"].fillna("").astype(str))
    sizes = rows["bytes"].fillna(-1)
    return _rows(rows["op"], rows["start_ns"], rows["end_ns"] - rows["start_ns"], groups, rows["peer"], sizes)


def _mpi_communication(timeline: Timeline) -> pd.DataFrame:
    table = timeline.mpi_operations
    names = np.array(timeline.names(table.operation), object)
    peers = np.where(table.peer == NO_PEER, table.comm_peer, table.peer)
    communicators = np.array([text or "" for text in timeline.names(table.communicator)], object)
    groups = np.where(np.isin(names, ("Send", "Recv")), "", communicators)
    return _rows(names, table.start, table.end - table.start, groups, peers, table.bytes)


def _rows(names: Any, *columns: Any) -> pd.DataFrame:
    """Return rows of communication: names, begins, durations, groups, peers and bytes."""
    kinds = [{"Send": "send", "Recv": "recv"}.get(name, "collective") for name in names]
    values = (np.asarray(names, object), kinds, *map(np.asarray, columns))
    table: pd.DataFrame = pd.DataFrame(dict(zip(_COLUMNS[2:], values, strict=True)))
    table = table.astype(dict.fromkeys(("start_ns", "duration_ns", "peer", "bytes"), np.int64))
    return table
