"""Made exports of nsys with metrics of GPUs and NICs.

The tables have the columns that the documentation of nsys 2025 lists, and that its reports and recipes read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

MS = 1_000_000
TYPE = 0x0100_0000_0000_2100
"""A type id, whose last byte is the number of the GPU."""

CLOCK, ACTIVE = 4, 9
NIC, LIST, SENT, WAITS = 0x0200_0000_0000_0007, 3, 0, 2
THREAD = (7 << 24) + 7


RANGES = (
    "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER, "
    "domainId INTEGER"
)


def ranges(times: Iterable[tuple[int, int]]) -> list[tuple[Any, ...]]:
    """Return rows of ranges that mark steps with these times."""
    return [(*one, 59, f"step {step}", THREAD, None, 0) for step, one in enumerate(times)]


def write(path: Path, tables: dict[str, tuple[str, Sequence[Sequence[Any]]]]) -> Path:
    """Write an export with six steps of 10 ms, 2 ms apart, from 100 ms on, and with these tables."""
    steps = ranges(((100 + 12 * step) * MS, (110 + 12 * step) * MS) for step in range(6))
    tables = {
        "StringIds": ("id INTEGER PRIMARY KEY, value TEXT", [(1, "x")]),
        "NVTX_EVENTS": (RANGES, steps),
        **tables,
    }
    with sqlite3.connect(path) as connection:
        for name, (columns, rows) in tables.items():
            connection.execute(f"CREATE TABLE {name} ({columns})")
            marks = ", ".join("?" * (columns.count(",") + 1))
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    connection.close()
    return path


def gpu(rows: Sequence[Sequence[Any]]) -> dict[str, tuple[str, Sequence[Sequence[Any]]]]:
    """Return the tables about GPUs, with rows of time, GPU, metric and value."""
    names = [(CLOCK, "GPC Clock Frequency [MHz]"), (ACTIVE, "SMs Active [Throughput %]")]
    return {
        "GPU_METRICS": (
            "timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER",
            [(time, TYPE + number, metric, value) for time, number, metric, value in rows],
        ),
        "TARGET_INFO_GPU_METRICS": (
            "typeId INTEGER, sourceId INTEGER, typeName TEXT, metricId INTEGER, metricName TEXT",
            [(TYPE + number, 1, "GPU Metrics", *one) for number in range(2) for one in names],
        ),
    }


def nic(rows: Sequence[Sequence[Any]]) -> dict[str, tuple[str, Sequence[Sequence[Any]]]]:
    """Return the tables about a NIC, with rows of start, end, metric and value."""
    return {
        "NET_NIC_METRIC": (
            "start INTEGER, end INTEGER, globalId INTEGER, metricsListId INTEGER, metricsIdx INTEGER, "
            "value INTEGER",
            [(start, end, NIC, LIST, metric, value) for start, end, metric, value in rows],
        ),
        "NIC_ID_MAP": ("nicId INTEGER, globalId INTEGER", [(5, NIC)]),
        "TARGET_INFO_NIC_INFO": ("GUID INTEGER, nicId INTEGER, name TEXT", [(1234, 5, "mlx5_0")]),
        "TARGET_INFO_NETWORK_METRICS": (
            "metricsListId INTEGER, metricsIdx INTEGER, name TEXT, description TEXT, unit TEXT",
            [
                (LIST, SENT, "IB: Bytes sent", "", "bytes/ms"),
                (LIST, WAITS, "IB: Send waits", "", "ticks/ms"),
            ],
        ),
    }
