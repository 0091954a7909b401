"""Communication hidden behind compute."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hpcprof.analysis.breakdown import of_category
from hpcprof.analysis.intervals import intersection, length
from hpcprof.analysis.outcome import Outcome, nothing
from hpcprof.timeline import Category, Operations, Timeline, concatenate


def overlap(timeline: Timeline) -> Outcome:
    """Return how much of the communication time has compute running beside it.

    ``overlap_pct`` is 100 · \\|union(comp) ∩ union(comm)\\| / \\|union(comm)\\|, two decimals, on each
    device and summed over devices; None, with the reason, where there is no communication.
    """
    file = timeline.origin.path.name
    kernels = concatenate(Operations, (timeline.kernels, timeline.graphs))
    if not len(kernels):
        return nothing(f"no CUDA kernels in {file}")
    communication = overlapped = 0
    for device in np.unique(kernels.device):
        own = kernels.take(kernels.device == device)
        comm = of_category(own, Category.COMM)
        communication += length(*comm)
        overlapped += length(*intersection(of_category(own, Category.COMP), comm))
    share = round(100 * overlapped / communication, 2) if communication else None
    row = {"comm_ns": communication, "overlapped_ns": overlapped}
    rows = pd.DataFrame([row]).assign(overlap_pct=pd.Series([share], dtype="object"))
    return Outcome(rows, "" if communication else f"no communication kernels in {file}")
