"""Hardware counters of kernels, by the names of both."""

from __future__ import annotations

import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.text_columns import object_array
from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.profiles.timeline import Timeline


def kernel_counters(timeline: Timeline) -> Outcome:
    """Summarize the values of each counter over the launches of each kernel."""
    table = timeline.counters
    if not len(table):
        return no_rows(f"no hardware counters of kernels in {timeline.origin.path.name}")
    groups, row = numbered_rows(table.name, table.counter)
    launches = np.bincount(row)
    total = np.bincount(row, table.value)
    least, most = np.full(len(groups), np.inf), np.full(len(groups), -np.inf)
    np.minimum.at(least, row, table.value)
    np.maximum.at(most, row, table.value)
    names, counters = groups.T
    return Outcome(
        {
            "name": object_array(timeline.names(names)),
            "counter": object_array(timeline.names(counters)),
            "count": launches,
            "total": total,
            "mean": total / launches,
            "min": least,
            "max": most,
        }
    )
