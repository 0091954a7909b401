"""Exports of many ranks in the real schema: ``python -m tests.data.many_ranks FOLDER RANKS KERNELS``.

Each rank trains for some steps: a forward range, a backward one whose work is launched by a second thread
and ends in an all-reduce, and an optimizer. Every kernel has its launch call. The ranks differ in their
clocks and by some nanoseconds in all they do, the same for the same numbers on every machine.
"""

from __future__ import annotations

import random
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).parent))

from tests.data.generated_exports import MACHINE, SCHEMA

_META = """
CREATE TABLE MPI_RANKS (globalTid INTEGER NOT NULL, rank INTEGER NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
"""
_TEXTS = [
    "void gemm<float, (int)128>(Params)",
    "elementwise_kernel",
    "layer_norm_kernel<float>",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "cudaLaunchKernel_v7000",
    "iteration",
    "forward",
    "backward",
    "optimizer",
]
_COMPUTE, _REDUCE, _CALL, _STEP, _PHASES = (1, 2, 3), 4, 5, 6, (7, 8, 9)
_KERNELS_A_STEP = 100
_PHASE_ENDS = (40, 90, _KERNELS_A_STEP)


def write(path: Path, rank: int, kernels: int) -> None:
    """Write one rank's export with about so many kernels, a hundred a step."""
    jitter = random.Random(rank)
    process = MACHINE + (1000 + rank) * 2**24
    main, autograd = process + 1, process + 2
    calls: list[tuple[object, ...]] = []
    launched: list[tuple[object, ...]] = []
    ranges: list[tuple[object, ...]] = []
    now = gpu = 10_000_000 + 1000 * rank
    for step in range(max(1, kernels // _KERNELS_A_STEP)):
        step_began = phase_began = now
        phase = 0
        for i in range(_KERNELS_A_STEP):
            last = i == _PHASE_ENDS[1] - 1
            correlation = step * _KERNELS_A_STEP + i + 1
            thread = autograd if phase == 1 else main
            calls.append((now, now + 3000, 0, thread, correlation, _CALL, 0))
            gpu = max(gpu, now + 4000) + 500
            end = gpu + (90_000 if last else 5000 + 1000 * (i % 7)) + jitter.randrange(200)
            name = _REDUCE if last else _COMPUTE[i % 3]
            launched.append(
                (
                    gpu,
                    end,
                    0,
                    1,
                    13 if last else 7,
                    correlation,
                    process,
                    name,
                    name,
                    i % 9 + 1,
                    1,
                    1,
                    256,
                    1,
                    1,
                )
            )
            gpu = end
            now += 5000 + jitter.randrange(100)
            if i + 1 == _PHASE_ENDS[phase]:
                ranges.append((phase_began, now, 59, *[None] * 4, main, None, _PHASES[phase], 0))
                phase_began, phase = now + 1, phase + 1
        # The optimizer waits for the GPU.
        now = gpu + 1000
        ranges.append((step_began, now, 59, *[None] * 4, main, None, _STEP, 0))
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as export, export:
        export.executescript("PRAGMA synchronous = OFF;" + SCHEMA + _META)
        tables: dict[str, list[tuple[object, ...]]] = {
            "StringIds": list(enumerate(_TEXTS, 1)),
            "CUPTI_ACTIVITY_KIND_RUNTIME": calls,
            "CUPTI_ACTIVITY_KIND_KERNEL": launched,
            "NVTX_EVENTS": ranges,
            "MPI_RANKS": [(main, rank)],
            "TARGET_INFO_SESSION_START_TIME": [(1_790_000_000_000_000_000 - 1000 * rank, None, None)],
        }
        for table, rows in tables.items():
            export.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)


def write_all(folder: Path, ranks: int, kernels: int) -> None:
    """Write the exports of all ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        write(folder / f"rank{rank:05d}.sqlite", rank, kernels)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
