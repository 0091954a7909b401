"""The cost of starting workers for each phase of a collect: ``python benchmarks/workers.py [JOBS [ROUNDS]]``.

Runs phases whose tasks only import what the analyses over ranks need, in JOBS workers (by default 16), and
prints the CPU time of all processes for one phase and for four, and the difference for each worker.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from importlib import import_module

_SUBREAPER = 36
"""Of ``prctl``: this process gets the orphans, such as the fork server, when the first process has ended."""


def phase(task: int) -> int:
    """Need what a task over ranks needs."""
    import_module("hpcprof.results.over_ranks")
    return task


def phases(jobs: int, count: int) -> None:
    """Run some phases."""
    from hpcprof.results.executors.processes import Processes
    from hpcprof.results.rank_task import PRELOAD

    processes = Processes(jobs, PRELOAD)
    for _ in range(count):
        list(processes(phase, range(jobs)))


def cpu_seconds(jobs: int, count: int) -> float:
    """Return the CPU time of all processes of some phases."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, __file__, str(jobs), "--phases", str(count)], check=True)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print."""
    jobs, rounds = (int(text) for text in (sys.argv[1:] + ["16", "3"][len(sys.argv) - 1 :]))
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    measured = [(cpu_seconds(jobs, 1), cpu_seconds(jobs, 4)) for _ in range(rounds)]
    one, four = (min(times) for times in zip(*measured, strict=True))
    each = 1e3 * (four - one) / (3 * jobs)
    print(f"{jobs} workers: one phase {one:.2f} s, four {four:.2f} s; a further worker {each:.0f} ms")


if __name__ == "__main__":
    if "--phases" in sys.argv:
        phases(int(sys.argv[1]), int(sys.argv[3]))
    else:
        main()
