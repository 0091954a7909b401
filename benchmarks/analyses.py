"""The cost of each part of one profile's collect: ``python benchmarks/analyses.py PROFILE``.

Prints for the reading, for each table of an nsys export within it, and for every analysis of one rank the
seconds of CPU time, its share, and how much memory it needs beyond what was there. Everything runs in one
process. CPU time and memory are measured in two passes, because Python's measure of memory takes time.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.readers.nsys.export import ExportTable
from hpcprof.profiles.timeline import Timeline

Measure = Callable[[str, Callable[[], Any]], Any]


def run(path: Path, measured: Measure) -> int:
    """Read a profile and run the analyses of a rank, each under its name; return the number of its events."""
    timeline = measured("reading", lambda: read_profile(path, threads=1))
    if not isinstance(timeline, Timeline):
        sys.exit(f"{path} holds measured kernels, not a timeline")
    for name, analysis in ANALYSES.items():
        if analysis.scope is Scope.RANK:
            measured(name, partial(analyze_rank, analysis, timeline, 0))
    return len(timeline.kernels) + len(timeline.calls)


def main() -> None:
    """Measure twice, and print a table."""
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/analyses.py PROFILE")
    path = Path(sys.argv[1])
    cpu: dict[str, float] = defaultdict(float)
    memory: dict[str, float] = {}
    from_pages = ExportTable._decode_columns

    def timed(name: str, function: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = function()
        cpu[name] += time.process_time() - began
        return result

    def table(self: ExportTable, *wanted: Any) -> Any:
        began = time.thread_time()
        result = from_pages(self, *wanted)
        cpu[f"  table {self.name}"] += time.thread_time() - began
        return result

    def weighed(name: str, function: Callable[[], Any]) -> Any:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        result = function()
        memory[name] = (tracemalloc.get_traced_memory()[1] - before) / 2**20
        return result

    with patch.object(ExportTable, "_decode_columns", table):
        events = run(path, timed)
    tracemalloc.start()
    run(path, weighed)
    whole = sum(seconds for name, seconds in cpu.items() if not name.startswith(" "))
    print(f"{events:,} kernels and API calls, {whole:.2f} s")
    for name, seconds in sorted(cpu.items(), key=lambda item: -item[1]):
        print(f"{seconds:8.3f} s {100 * seconds / whole:5.1f} % {memory.get(name, 0):6.0f} MiB  {name}")


if __name__ == "__main__":
    main()
