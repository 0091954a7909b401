"""How long each part of one profile's collect takes: ``python benchmarks/analyses.py PROFILE``.

Prints the seconds of the reading and of every analysis of one rank, in one process, and the peak memory.
"""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import Timeline


def main() -> None:
    """Read, analyse, and print a table."""
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/analyses.py PROFILE")
    began = time.perf_counter()
    timeline = read_profile(Path(sys.argv[1]))
    if not isinstance(timeline, Timeline):
        sys.exit(f"{sys.argv[1]} holds measured kernels, not a timeline")
    print(f"{time.perf_counter() - began:8.3f} s  reading")
    for name, analysis in ANALYSES.items():
        if analysis.scope is Scope.RANK:
            began = time.perf_counter()
            rows = len(analyze_rank(analysis, timeline, 0).rows)
            print(f"{time.perf_counter() - began:8.3f} s  {name} ({rows} rows)")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(timeline.kernels):,} kernels, {len(timeline.calls):,} API calls; peak {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
