"""Kernel launches: the call, the time in the queue, the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, nothing
from hpcprof.analysis.summaries.api_calls import without_version
from hpcprof.analysis.summaries.grouped_statistics import Summary, by_text, objects, summarize, texts
from hpcprof.profiles.columns.joins import launch_pairs
from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.profiles.timeline import Ints, Timeline

_PID = 0xFFFFFF


def launches(timeline: Timeline) -> Outcome:
    """Summarize each kernel's launches, as ``nsys stats`` does in cuda_kern_exec_sum.

    ``api`` is the duration of the launch call, ``queue`` the time from its end to the kernel's start
    where that is not negative (``queue_count`` of the launches), ``kernel`` the kernel's duration, and
    ``total`` runs from the call's start to the later of both ends. Rows are ordered by average total.
    """
    table, calls = timeline.kernels, timeline.calls
    file = timeline.origin.path.name
    for part, what in ((table, "CUDA kernels"), (calls, "CUDA API calls")):
        if not len(part):
            return nothing(f"no {what} in {file}")
    operation, call = launch_pairs(timeline)
    # The operations begin with the kernels.
    launched = np.searchsorted(operation, len(table))
    kernel, call = operation[:launched], call[:launched]
    if not len(kernel):
        return nothing(f"no kernel of {file} has a recorded launch call")
    # Most often each kernel has one launch, and views need no time.
    chosen = slice(None) if np.array_equal(kernel, np.arange(len(table))) else kernel
    columns, group = _groups(timeline, chosen, call)
    start, end = table.start[chosen], table.end[chosen]
    called, returned = calls.start[call], calls.end[call]
    total = summarize(group, np.maximum(end, returned) - called)
    waited = start >= returned
    queue = summarize(group[waited], (start - returned)[waited])
    queued = np.zeros(len(total.group), np.int64)
    queued[queue.group] = queue.count
    rows = pd.DataFrame(
        {
            **columns,
            "count": total.count,
            "queue_count": queued,
            **total.columns("total_"),
            **summarize(group, returned - called).columns("api_"),
            **_where_any(queue, len(queued)),
            **summarize(group, end - start).columns("kernel_"),
        }
    )
    return Outcome(rows)


def _groups(timeline: Timeline, kernel: Ints | slice, call: Ints) -> tuple[dict[str, Any], Ints]:
    """Return the columns that tell groups of launches apart, and the number of each launch's group."""
    table, calls = timeline.kernels, timeline.calls
    names, name = by_text(timeline, table.name[kernel])
    functions, function = by_text(timeline, calls.name[call], without_version)
    keys, group = numbered_rows(
        calls.process[call] & _PID, calls.thread[call], table.device[kernel], function, name
    )
    columns = {
        "name": texts(names[keys[:, 4]]),
        "api_name": texts(functions[keys[:, 3]]),
        "pid": keys[:, 0],
        "tid": keys[:, 1],
        "device": keys[:, 2],
    }
    return columns, group


def _where_any(queue: Summary, groups: int) -> dict[str, Any]:
    """Return the columns of the time in the queue; None for a group that never waited, deviation 0."""
    columns = {}
    for name, values in queue.columns("queue_").items():
        column = objects([0.0 if name == "queue_stddev_ns" else None] * groups)
        column[queue.group] = values.tolist()
        columns[name] = pd.Series(column, dtype="object")
    return columns
