"""The cost of starting workers for each phase of a collect: ``python benchmarks/workers.py [JOBS [ROUNDS]]``.

Runs phases whose tasks only import what the analyses over ranks need, in JOBS workers (by default 16), and
prints the CPU time of all processes for one phase, for four by the same workers, and for four whose workers
start anew, with the cost of each worker that starts.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from contextlib import nullcontext
from importlib import import_module

_SUBREAPER = 36
"""Of ``prctl``: this process gets the orphans, such as the fork server, when the first process has ended."""


def phase(task: int) -> int:
    """Need what a task over ranks needs."""
    import_module("hpcprof.results.collect.over_ranks")
    return task


def phases(jobs: int, count: int, anew: bool) -> None:
    """Run some phases, by the same workers unless they start anew."""
    from hpcprof.results.collect.executors.processes import Processes
    from hpcprof.results.collect.rank_task import PRELOAD

    processes = Processes(jobs, PRELOAD)
    with nullcontext() if anew else processes:
        for _ in range(count):
            list(processes(phase, range(jobs)))


def cpu_seconds(jobs: int, count: int, anew: bool) -> float:
    """Return the CPU time of all processes of some phases."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    kind = "--anew" if anew else "--phases"
    subprocess.run([sys.executable, __file__, str(jobs), kind, str(count)], check=True)
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
    kinds = ((1, False), (4, False), (4, True))
    measured = [[cpu_seconds(jobs, *kind) for kind in kinds] for _ in range(rounds)]
    one, four, anew = (min(times) for times in zip(*measured, strict=True))
    each = 1e3 * (anew - one) / (3 * jobs)
    print(
        f"{jobs} workers: one phase {one:.2f} s, four {four:.2f} s; with workers that start anew "
        f"{anew:.2f} s, a further worker {each:.0f} ms"
    )


if __name__ == "__main__":
    if sys.argv[2:3] in (["--phases"], ["--anew"]):
        phases(int(sys.argv[1]), int(sys.argv[3]), sys.argv[2] == "--anew")
    else:
        main()
