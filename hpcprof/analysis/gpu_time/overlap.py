"""Communication hidden behind compute."""

from __future__ import annotations

import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, nothing
from hpcprof.analysis.gpu_time.coverage import coverage
from hpcprof.profiles.timeline import Category, Timeline


def overlap(timeline: Timeline) -> Outcome:
    """Return how much of the communication time has compute running beside it.

    ``overlap_pct`` is 100 · \\|union(comp) ∩ union(comm)\\| / \\|union(comm)\\|, two decimals, on each
    device and summed over devices; None, with the reason, where there is no communication.
    """
    file = timeline.origin.path.name
    if not len(timeline.kernels) and not len(timeline.graphs):
        return nothing(f"no CUDA kernels in {file}")
    devices = coverage(timeline)
    communication = sum(device.of([Category.COMM]) for device in devices)
    overlapped = sum(device.of([Category.COMM, Category.COMP]) for device in devices)
    share = round(100 * overlapped / communication, 2) if communication else None
    row = {"comm_ns": communication, "overlapped_ns": overlapped}
    rows = pd.DataFrame([row]).assign(overlap_pct=pd.Series([share], dtype="object"))
    return Outcome(rows, "" if communication else f"no communication kernels in {file}")
