"""The GPU's busy time by the set of classes that run at once."""

from __future__ import annotations

from itertools import combinations

import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, nothing
from hpcprof.analysis.gpu_time.coverage import coverage
from hpcprof.analysis.summaries.grouped_statistics import texts
from hpcprof.profiles.timeline import Category, Timeline

_SETS = [chosen for size in (1, 2, 3) for chosen in combinations(Category, size)]


def kernel_classes(timeline: Timeline) -> Outcome:
    """Divide the busy time into exclusive buckets, one for each set of classes running together.

    ``classes`` joins them by ``+``: ``comp+comm`` is time in which compute and communication run and
    memory operations do not. ``pct`` is percent of the busy time, two decimals; sets that never occur have
    no row. With several devices the figures are sums over devices. The buckets are those of
    HolisticTraceAnalysis' kernel breakdown.
    """
    devices = coverage(timeline)
    if not devices:
        return nothing(f"no CUDA kernels or memory operations in {timeline.origin.path.name}")
    total = {
        chosen: sum(device.of(chosen, not_running=set(Category) - set(chosen)) for device in devices)
        for chosen in _SETS
    }
    busy = sum(total.values())
    present = {chosen: time for chosen, time in total.items() if time}
    if not present:
        return nothing(f"the operations in {timeline.origin.path.name} take no time")
    rows = pd.DataFrame(
        {
            "classes": texts("+".join(c.name.lower() for c in chosen) for chosen in present),
            "ns": list(present.values()),
            "pct": [round(100 * time / busy, 2) for time in present.values()],
        }
    )
    return Outcome(rows)
