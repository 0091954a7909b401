"""Small timelines for tests, written as rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hpcprof.profiles.timeline import (
    NO_BYTES,
    NO_NAME,
    NO_PEER,
    UNKNOWN_RANKS,
    ApiCalls,
    Category,
    Collectives,
    Kernels,
    MemoryOperations,
    Origin,
    Ranges,
    Style,
    Timeline,
)

COMP, COMM, MEM = Category.COMP, Category.COMM, Category.MEM
PUSH_POP = Style.PUSH_POP


def _column(rows: list[dict[str, Any]], name: str, default: int) -> Any:
    return np.array([row.get(name, default) for row in rows], np.int64)


def timeline(
    operations: list[tuple[Any, ...]] = [],  # noqa: B006 - never changed
    ranges: list[tuple[Any, ...]] = [],  # noqa: B006
    collectives: list[tuple[Any, ...]] = [],  # noqa: B006
    world: int | None = None,
) -> Timeline:
    """Build a timeline.

    An operation is (start, end, category, launch, thread, device, stream), of which the last four may
    be left out: a launch is the moment of its API call, None where it was not recorded. A range is
    (start, end, name, thread). A collective is (start, end, operation, communicator, bytes, thread,
    ranks, peer, comm_peer), from the fourth on optional.
    """
    strings: dict[str, int] = {"kernel": 0, "call": 1}
    rows = [
        dict(
            zip(("start", "end", "category", "launch", "thread", "device", "stream"), row, strict=False),
            correlation=i,
        )
        for i, row in enumerate(operations)
    ]
    kernels = [row for row in rows if row["category"] != MEM]
    memory = [row for row in rows if row["category"] == MEM]
    launched = [row for row in rows if row.get("launch") is not None]

    def common(table: list[dict[str, Any]]) -> dict[str, Any]:
        names = ("start", "end", "category", "device", "stream", "correlation")
        columns = {name: _column(table, name, 0) for name in names}
        zeros = np.zeros(len(table), np.int64)
        return columns | {"name": zeros, "process": zeros}

    shape = np.ones((len(kernels), 3), np.int64)
    moment = _column(launched, "launch", 0)
    marks = [dict(zip(("start", "end", "name", "thread"), row, strict=False)) for row in ranges]
    names = [strings.setdefault(m["name"], len(strings)) if m["name"] else NO_NAME for m in marks]
    ones = np.ones(len(marks), np.int64)
    columns = ("start", "end", "operation", "communicator", "bytes", "thread", "ranks", "peer", "comm_peer")
    asked = [dict(zip(columns, row, strict=False)) for row in collectives]
    for row in asked:
        for key in ("operation", "communicator"):
            text = row.get(key)
            row[key] = NO_NAME if text is None else strings.setdefault(text, len(strings))
    texts = np.empty(len(strings), object)
    texts[:] = list(strings)
    return Timeline(
        origin=Origin(Path("rank00000.sqlite"), "nsys", world_size=world),
        strings=texts,
        kernels=Kernels(**common(kernels), grid=shape, block=shape),
        memops=MemoryOperations(**common(memory), bytes=np.zeros(len(memory), np.int64)),
        calls=ApiCalls(
            start=moment,
            end=moment,
            process=np.zeros(len(launched), np.int64),
            thread=_column(launched, "thread", 0),
            name=np.ones(len(launched), np.int64),
            correlation=_column(launched, "correlation", 0),
        ),
        ranges=Ranges(
            start=_column(marks, "start", 0),
            end=_column(marks, "end", 0),
            process=0 * ones,
            thread=_column(marks, "thread", 0),
            name=np.array(names, np.int64),
            domain=NO_NAME * ones,
            style=int(PUSH_POP) * ones,
            closed=ones,
            one_thread=ones,
        ),
        collectives=Collectives(
            start=_column(asked, "start", 0),
            end=_column(asked, "end", 0),
            process=np.zeros(len(asked), np.int64),
            thread=_column(asked, "thread", 0),
            operation=_column(asked, "operation", NO_NAME),
            communicator=_column(asked, "communicator", NO_NAME),
            bytes=_column(asked, "bytes", NO_BYTES),
            ranks=_column(asked, "ranks", UNKNOWN_RANKS),
            peer=_column(asked, "peer", NO_PEER),
            comm_peer=_column(asked, "comm_peer", NO_PEER),
        ),
    )
