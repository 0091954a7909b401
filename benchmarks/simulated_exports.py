"""Writes what simulated programs leave as exports in the schema of Nsight Systems."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from hpcprof.profiles.timeline import Operations, Timeline
from tests.data.generated_exports import MACHINE, SCHEMA

_PUSH_POP, _TO_DEVICE = 59, 1
_TABLES = """
CREATE TABLE MPI_RANKS (globalTid INTEGER NOT NULL, rank INTEGER NOT NULL);
CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
"""


def write_export(path: Path, rank: int, timeline: Timeline, ranks: int) -> None:
    """Write kernels, copies, calls and ranges of a rank; the waits of streams are left out."""
    process = MACHINE + (1000 + rank) * 2**24
    thread = process + 1
    calls, spans, copies = timeline.calls, timeline.ranges, timeline.memops
    kernels = zip(_operations(timeline.kernels, process), timeline.kernels.name.tolist(), strict=True)
    tables: dict[str, list[tuple[Any, ...]]] = {
        "StringIds": list(enumerate(timeline.strings.tolist(), 1)),
        "CUPTI_ACTIVITY_KIND_KERNEL": [(*row, name + 1, name + 1, *[1] * 6) for row, name in kernels],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [(*row, 1 << 20, _TO_DEVICE) for row in _operations(copies, process)],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            (start, end, 0, thread, correlation, name + 1, 0)
            for start, end, correlation, name in _columns(calls, "start", "end", "correlation", "name")
        ],
        "NVTX_EVENTS": [
            (start, end, _PUSH_POP, *[None] * 4, thread, None, name + 1, 0)
            for start, end, name in _columns(spans, "start", "end", "name")
        ],
        "ENUM_CUDA_MEMCPY_OPER": [(_TO_DEVICE, "HTOD", "Host-to-Device")],
        "MPI_RANKS": [(thread, rank)],
        "META_DATA_CAPTURE": [("ENVIRONMENT_VARIABLE", f"WORLD_SIZE={ranks}")],
    }
    with closing(sqlite3.connect(path)) as export, export:
        export.executescript(SCHEMA + _TABLES)
        for name, rows in ((name, rows) for name, rows in tables.items() if rows):
            marks = ", ".join("?" * len(rows[0]))
            export.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)


def _operations(work: Operations, process: int) -> list[tuple[int, ...]]:
    return [
        (start, end, device, 1, stream, correlation, process)
        for start, end, device, stream, correlation in _columns(
            work, "start", "end", "device", "stream", "correlation"
        )
    ]


def _columns(table: object, *names: str) -> Sequence[tuple[int, ...]]:
    return [*zip(*(getattr(table, name).tolist() for name in names), strict=True)]
