"""Measures what the sampler of a node costs: its own CPU time, and that of work beside it.

Run it as ``python benchmarks/telemetry.py [SECONDS] [RANKS]``. The ranks sleep. The work, with the sampler
and without in turns, counts its CPU time, which other programs hardly change.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from hpcprof.node import telemetry

ROUNDS = 5
SAMPLE = """\
import sys
from hpcprof.node.telemetry import Sampler
Sampler(*sys.argv[1:3], int(sys.argv[3])).run()
"""
"""The program of a sampler, with the arguments FOLDER NODE RANKS."""
STEP = 200_000


def sampled(folder: Path, seconds: float) -> tuple[float, int]:
    """Return the CPU time of a sampler, in seconds, and the bytes that it writes; its start is part of it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    sampler = subprocess.Popen([sys.executable, "-c", SAMPLE, str(folder), "node", "0"])
    time.sleep(seconds)
    sampler.send_signal(signal.SIGTERM)
    sampler.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return cpu, (folder / telemetry.FOLDER / "node.jsonl").stat().st_size


def steps(seconds: float) -> float:
    """Return the CPU time of a step of work, in microseconds."""
    until, done, began = time.monotonic() + seconds, 0, time.process_time()
    while time.monotonic() < until:
        sum(range(STEP))
        done += 1
    return (time.process_time() - began) / done * 1e6


def main() -> None:
    """Measure and print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "state").mkdir()
        programs = [
            subprocess.Popen(
                ["sleep", "3600"],
                env={"PATH": os.defpath, "HPCPROF_RUN_DIR": name, "HPCPROF_RANK": str(rank)},
            )
            for rank in range(ranks)
        ]
        try:
            start, _ = sampled(folder, 0.5)
            cpu, size = sampled(folder, seconds)
            differences = []
            for _ in range(ROUNDS):
                times = []
                for with_sampler in (False, True, True, False):
                    arguments = [sys.executable, "-c", SAMPLE, name, "node", "0"]
                    sampler = subprocess.Popen(arguments) if with_sampler else None
                    time.sleep(0.5)
                    times.append(steps(seconds / 8))
                    if sampler is not None:
                        sampler.terminate()
                        sampler.wait()
                a, b, c, d = times
                differences.append(100 * ((b + c) / (a + d) - 1))
        finally:
            for program in programs:
                program.kill()
                program.wait()
    share = 100 * (cpu - start) / (seconds - 0.5)
    print(f"the sampler uses {share:.2f} % of a core for {ranks} ranks, and {1e3 * start:.0f} ms to start")
    print(f"it writes {size / seconds / 1e3:.1f} kB/s")
    print(
        f"work beside it takes {median(differences):+.2f} % CPU time, from {min(differences):+.2f} to "
        f"{max(differences):+.2f} % (n = {ROUNDS} blocks A B B A)"
    )


if __name__ == "__main__":
    main()
