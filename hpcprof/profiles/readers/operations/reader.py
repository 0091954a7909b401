"""Reads a table of operations as the timelines of its ranks.

Operations that compute are operators of the host, which has no GPU to show, and communication is the host's.
Each step is a range.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from hpcprof.profiles.collective_operations import operation
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.readers.declaration import ProfilePart, SeveralRanks
from hpcprof.profiles.readers.operations import OPERATIONS, TABLE_STEP
from hpcprof.profiles.readers.operations.table import (
    UNKNOWN,
    OperationTable,
    communicates,
    lacks_partners,
    read_table,
)
from hpcprof.profiles.readers.string_table import StringTable
from hpcprof.profiles.timeline import (
    NO_BYTES,
    UNKNOWN_RANKS,
    ApiCalls,
    Collectives,
    Kernels,
    MemoryOperations,
    Operators,
    Origin,
    Ranges,
    Timeline,
)

_MESSAGES = {"send": "Send", "recv": "Recv"}
_HOST = ("host", "wait")


def identify_rank(path: Path) -> int | None:
    """Return the rank of a table that has only one."""
    ranks = read_table(path).rows["rank"].unique()
    return int(ranks[0]) if len(ranks) == 1 else None


def several_ranks(path: Path) -> SeveralRanks | None:
    """Return the ranks of a table, each as a process of its own; None if it has one."""
    ranks = tuple(sorted(map(int, read_table(path).rows["rank"].unique())))
    return SeveralRanks(tuple((rank,) for rank in ranks), ranks) if len(ranks) > 1 else None


def read(path: Path, part: ProfilePart | None = None) -> Timeline:
    """Read the operations of the ranks of ``part``, by default of all.

    Each name of communication is a thread of its own, because sends and receives overlap computing.
    """
    whole = read_table(path)
    table = whole.rows
    world = int(table["rank"].nunique())
    lacks_others = lacks_partners(table)
    if part is not None:
        table = table[table["rank"].isin(part.processes)]
    lost = _losses(whole, {*table["rank"]}, part is None or part.first)
    strings = StringTable()
    threads = {name: 1 + number for number, name in enumerate(sorted(table["name"].unique()))}
    computing = table[table["kind"] == "compute"]
    ranges = _ranges(table, strings)
    operators = Operators(**_spans(computing), name=strings.add_all(computing["name"]))
    communication = _communication(table[communicates(table)], strings, threads)
    return Timeline(
        origin=Origin(
            path=path,
            kind=OPERATIONS.name,
            rank=int(table["rank"].iloc[0]) if table["rank"].nunique() == 1 else None,
            world_size=None if lacks_others else world,
            start_utc_ns=0,
            losses=tuple(lost),
        ),
        strings=strings.array(),
        kernels=Kernels.empty(),
        memops=MemoryOperations.empty(),
        calls=ApiCalls.empty(),
        ranges=ranges,
        operators=operators,
        host_collectives=communication,
    )


def _losses(table: OperationTable, ranks: set[int], first: bool) -> list[Loss]:
    """Return the losses of some ranks; those of rows without a rank are the ``first`` ones'."""
    all_ranks = {*table.rows["rank"]}
    damaged: Counter[str] = Counter()
    for (rank, wrong), rows in table.damaged.items():
        if rank in ranks or (first and rank not in all_ranks):
            damaged[wrong] += rows
    repeated = sum(table.repeated[rank] for rank in ranks)
    count = int(table.rows["rank"].isin(ranks).sum()) + damaged.total() + repeated
    return [
        *losses(LossKind.ROW, Subject.TABLE_ROW, damaged, count),
        *losses(LossKind.REPEATED, Subject.TABLE_ROW, {"": repeated}, count),
    ]


def _spans(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    start = rows["start_ns"].to_numpy(np.int64)
    return {
        "start": start,
        "end": start + rows["duration_ns"].to_numpy(np.int64),
        "process": rows["rank"].to_numpy(np.int64),
        "thread": np.zeros(len(rows), np.int64),
    }


def _ranges(rows: pd.DataFrame, strings: StringTable) -> Ranges:
    """Return a range for each step, and one for each operation of the host and each wait."""
    ends = rows.assign(end_ns=rows["start_ns"] + rows["duration_ns"])
    steps = ends.groupby(["rank", "step"], as_index=False).agg(
        start_ns=("start_ns", "min"), end_ns=("end_ns", "max")
    )
    steps["duration_ns"] = steps["end_ns"] - steps["start_ns"]
    steps["name"] = [f"{TABLE_STEP} {step}" for step in steps["step"]]
    whole = pd.concat([steps, rows[rows["kind"].isin(_HOST)]], ignore_index=True)
    return Ranges(**_spans(whole), name=strings.add_all(whole["name"]))


def _communication(rows: pd.DataFrame, strings: StringTable, threads: dict[str, int]) -> Collectives:
    spans = _spans(rows)
    spans["thread"] = rows["name"].map(threads).to_numpy(np.int64)
    kinds = zip(rows["kind"], rows["name"], strict=True)
    named = (_MESSAGES.get(kind) or operation(name) or "AllReduce" for kind, name in kinds)
    communicator = strings.add_all(text or None for text in rows["group"].to_numpy())
    return Collectives(
        **spans,
        operation=strings.add_all(named),
        communicator=communicator,
        bytes=np.where(rows["bytes"] == UNKNOWN, NO_BYTES, rows["bytes"]).astype(np.int64),
        ranks=np.full(len(rows), UNKNOWN_RANKS),
        peer=rows["peer"].to_numpy(np.int64),
    )
