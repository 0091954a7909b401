"""Measures a collect of many MPI calls: ``python benchmarks/mpi.py [--ranks 64] [--calls 200000]``.

Writes nsys exports of a program that exchanges halos with its neighbours, waits for them, and reduces a
number, and collects them into an empty store. The output has the CPU and wall-clock times, their ratios to
the unit of `benchmarks.collect` on as many API calls as there are MPI calls, and the largest memory of one
process. ``--folder`` keeps the exports.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# For what lies beside this file's folder.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.collect import FETCH, HPCPROF, cost

Ints = NDArray[np.int64]

_CALLS_A_STEP = 6
_NAMES = ("MPI_Init", "MPI_Irecv", "MPI_Isend", "MPI_Waitall", "MPI_Allreduce", "MPI_Finalize")
_INIT, _IRECV, _ISEND, _WAITALL, _ALLREDUCE, _FINALIZE = range(len(_NAMES))
_MACHINE, _WORLD, _BYTES, _REQUESTS = 1 << 48, 94_806_952_604_320, 32_768, 94_807_206_440_448
_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE MPI_RANKS (globalTid INTEGER NOT NULL, rank INTEGER NOT NULL);
CREATE TABLE MPI_COMMUNICATORS (rank INTEGER, timestamp INTEGER, commHandle INTEGER, parentHandle INTEGER,
  localRank INTEGER, size INTEGER, groupRoot INTEGER, groupRootUid INTEGER, members TEXT);
CREATE TABLE MPI_OTHER_EVENTS (start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, textId INTEGER);
CREATE TABLE MPI_P2P_EVENTS (start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, textId INTEGER,
  commHandle INTEGER, tag INTEGER, remoteRank INTEGER, size INTEGER, requestHandle INTEGER);
CREATE TABLE MPI_START_WAIT_EVENTS (start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, textId INTEGER,
  requestHandle INTEGER);
CREATE TABLE MPI_COLLECTIVES_EVENTS (start INTEGER NOT NULL, end INTEGER, globalTid INTEGER, textId INTEGER,
  commHandle INTEGER, rootRank INTEGER, size INTEGER, recvSize INTEGER, requestHandle INTEGER);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
"""
_UNIT = """
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER,
  globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER);
"""


def write_exports(folder: Path, ranks: int, calls: int, seed: int = 0) -> None:
    """Write the export of each rank; each has about ``calls`` MPI calls, and its own clock."""
    steps = max(1, (calls - 2) // _CALLS_A_STEP)
    random = np.random.default_rng(seed)
    now = np.full(ranks, 1_000_000)
    times = np.empty((ranks, steps, _CALLS_A_STEP, 2), np.int64)
    for step in range(steps):
        now = now + random.integers(50_000, 60_000, ranks) + 20_000 * (random.random(ranks) < 0.02)
        for call in range(4):
            times[:, step, call, 0] = now
            now = now + random.integers(500, 900, ranks)
            times[:, step, call, 1] = now
        sent = np.maximum(np.roll(now, 1), np.roll(now, -1))
        times[:, step, 4, 0] = now
        now = np.maximum(now, sent) + random.integers(2_000, 4_000, ranks)
        times[:, step, 4, 1] = now
        now = now + random.integers(1_000, 2_000, ranks)
        times[:, step, 5, 0] = now
        now = now.max() + random.integers(3_000, 4_000, ranks)
        times[:, step, 5, 1] = now
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        ahead = int(random.integers(0, 1 << 30))
        _write(folder / f"rank{rank:05}.sqlite", rank, ranks, times[rank] + ahead)


def _write(path: Path, rank: int, ranks: int, times: Ints) -> None:
    """Write the export of a rank whose calls have these times, shape (steps, calls of a step, 2)."""
    thread = _MACHINE + ((1000 + rank) << 24) + 1000 + rank
    around = [(rank - 1) % ranks, (rank + 1) % ranks]
    first, last = int(times[0, 0, 0]), int(times[-1, -1, 1])
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as export, export:
        export.executescript(f"PRAGMA synchronous = OFF; {_SCHEMA}")
        export.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(_NAMES))
        export.execute("INSERT INTO MPI_RANKS VALUES (?, ?)", (thread, rank))
        export.execute(
            "INSERT INTO MPI_COMMUNICATORS VALUES (?, ?, ?, 0, ?, ?, NULL, NULL, NULL)",
            (rank, first, _WORLD, rank, ranks),
        )
        export.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, NULL, NULL)", (10**18,))
        export.executemany(
            "INSERT INTO MPI_OTHER_EVENTS VALUES (?, ?, ?, ?)",
            [(first - 900_000, first - 1, thread, _INIT), (last + 10, last + 900, thread, _FINALIZE)],
        )
        insert = "INSERT INTO MPI_P2P_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        export.executemany(insert, _messages(thread, around, times))
        waits = (
            (start, end, thread, _WAITALL, _REQUESTS + number)
            for start, end in times[:, 4].tolist()
            for number in range(4)
        )
        export.executemany("INSERT INTO MPI_START_WAIT_EVENTS VALUES (?, ?, ?, ?, ?)", waits)
        reductions = (
            (start, end, thread, _ALLREDUCE, _WORLD, None, 8 * ranks, 8 * ranks, None)
            for start, end in times[:, 5].tolist()
        )
        export.executemany(
            "INSERT INTO MPI_COLLECTIVES_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", reductions
        )


def _messages(thread: int, around: list[int], times: Ints) -> Iterator[tuple[int, ...]]:
    """Yield the receives and sends of each step; a message to the right has the tag 1."""
    calls = ((_IRECV, around[0], 1), (_IRECV, around[1], 2), (_ISEND, around[1], 1), (_ISEND, around[0], 2))
    for step in times[:, :4].tolist():
        for number, ((name, peer, tag), (start, end)) in enumerate(zip(calls, step, strict=True)):
            yield start, end, thread, name, _WORLD, tag, peer, _BYTES, _REQUESTS + number


def write_unit(path: Path, calls: int) -> None:
    """Write an export with so many API calls, for the unit."""
    with closing(sqlite3.connect(path)) as export, export:
        export.executescript(f"PRAGMA synchronous = OFF; {_UNIT}")
        rows = ((n * 3000, n * 3000 + 900, 0, _MACHINE + 77, n, 5, 0) for n in range(calls))
        export.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--calls", type=int, default=200_000, help="of each rank")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the exports are or go")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        profiles = (given.folder or folder / "profiles").absolute()
        if not profiles.exists():
            write_exports(profiles, given.ranks, given.calls)
        write_unit(folder / "unit.sqlite", given.ranks * given.calls)
        fetch = [sys.executable, "-c", FETCH, str(folder / "unit.sqlite")]
        fresh = ["sh", "-c", 'rm -rf store; mkdir store; exec "$@"', "sh"]
        collect = [*fresh, *HPCPROF, "collect", "--db", "store/hpcprof.db", "--jobs", str(given.jobs)]
        units, collects = [], []
        for _ in range(given.rounds):
            units.append(cost(fetch, folder))
            collects.append(cost([*collect, str(profiles)], folder))
    unit, best = (min(every, key=lambda one: one.cpu) for every in (units, collects))
    print(
        f"{given.ranks} ranks of {given.calls:,} MPI calls, {os.cpu_count()} cores, least of {given.rounds}"
    )
    print(f"unit     {unit.cpu:8.1f} s CPU {unit.wall:8.1f} s")
    print(f"collect  {best.cpu:8.1f} s CPU {best.wall:8.1f} s, largest process {best.memory:,.0f} MiB")
    print(f"ratio    {best.cpu / unit.cpu:8.2f} (CPU) {best.wall / unit.wall:.2f} (wall clock)")


if __name__ == "__main__":
    main()
