"""Kernel launches: the call, the time in the queue, the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.analysis.api import without_version
from hpcprof.analysis.joins import launch_pairs
from hpcprof.analysis.outcome import Outcome, nothing
from hpcprof.analysis.summary import by_text, objects, summarize, texts
from hpcprof.numbering import numbered, numbered_rows
from hpcprof.timeline import Ints, Timeline

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
    kernels = operation < len(table)
    kernel, call = operation[kernels], call[kernels]
    if not len(kernel):
        return nothing(f"no kernel of {file} has a recorded launch call")
    columns, group = _groups(timeline, kernel, call)
    groups = len(columns["name"])
    start, end = table.start[kernel], table.end[kernel]
    called, returned = calls.start[call], calls.end[call]
    queue = start - returned
    waited = queue >= 0
    total = summarize(group, np.maximum(end, returned) - called, groups)
    rows = pd.DataFrame(
        {
            **columns,
            "count": total.count,
            "queue_count": np.bincount(group[waited], minlength=groups),
            **total.columns("total_"),
            **summarize(group, returned - called, groups).columns("api_"),
            **_where_any(group[waited], queue[waited], groups),
            **summarize(group, end - start, groups).columns("kernel_"),
        }
    )
    order = np.argsort(-rows["total_avg_ns"].to_numpy(), kind="stable")
    return Outcome(rows.iloc[order].reset_index(drop=True))


def _groups(timeline: Timeline, kernel: Ints, call: Ints) -> tuple[dict[str, Any], Ints]:
    """Return the columns that tell groups of launches apart, and the number of each launch's group."""
    table, calls = timeline.kernels, timeline.calls
    names, name = by_text(timeline, table.name[kernel])
    functions, function = _functions(timeline, calls.name[call])
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


def _functions(timeline: Timeline, ids: Ints) -> tuple[NDArray[np.object_], Ints]:
    """Number the names of functions without their version: here two versions of one are the same."""
    named, row = by_text(timeline, ids)
    plain = [without_version(name) for name in named]
    distinct = sorted(set(plain), key=lambda name: (name is not None, name or ""))
    return objects(distinct), np.array([distinct.index(name) for name in plain], np.int64)[row]


def _where_any(group: Ints, queue: Ints, groups: int) -> dict[str, Any]:
    """Return the columns of the time in the queue; None for a group that never waited, deviation 0."""
    present, number = numbered(group)
    columns = {}
    for name, values in summarize(number, queue, len(present)).columns("queue_").items():
        column = objects([0.0 if name == "queue_stddev_ns" else None] * groups)
        column[present] = values.tolist()
        columns[name] = pd.Series(column, dtype="object")
    return columns
