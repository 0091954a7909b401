"""Kernel launches: the call, the time in the queue, the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.analysis.api import without_version
from hpcprof.analysis.joins import matches, pair_keys
from hpcprof.analysis.outcome import Outcome, nothing
from hpcprof.analysis.summary import by_text, objects, summarize, texts
from hpcprof.timeline import NO_CORRELATION, NO_PROCESS, Ints, Timeline

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
    table = table.take((table.process != NO_PROCESS) & (table.correlation != NO_CORRELATION))
    kernel, call = matches(*pair_keys((table.process, table.correlation), (calls.process, calls.correlation)))
    if not len(kernel):
        return nothing(f"no kernel of {file} has a recorded launch call")
    table, calls = table.take(kernel), calls.take(call)
    names, name = by_text(timeline, table.name)
    functions, function = _functions(timeline, calls.name)
    columns = (calls.process & _PID, calls.thread, table.device, function, name)
    keys, group = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
    queue = table.start - calls.end
    waited = queue >= 0
    total = summarize(group, np.maximum(table.end, calls.end) - calls.start, len(keys))
    rows = pd.DataFrame(
        {
            "name": texts(names[keys[:, 4]]),
            "api_name": texts(functions[keys[:, 3]]),
            "pid": keys[:, 0],
            "tid": keys[:, 1],
            "device": keys[:, 2],
            "count": total.count,
            "queue_count": np.bincount(group[waited], minlength=len(keys)),
            **total.columns("total_"),
            **summarize(group, calls.end - calls.start, len(keys)).columns("api_"),
            **_where_any(group[waited], queue[waited], len(keys)),
            **summarize(group, table.end - table.start, len(keys)).columns("kernel_"),
        }
    )
    order = np.argsort(-rows["total_avg_ns"].to_numpy(), kind="stable")
    return Outcome(rows.iloc[order].reset_index(drop=True))


def _functions(timeline: Timeline, ids: Ints) -> tuple[NDArray[np.object_], Ints]:
    """Number the names of functions without their version: here two versions of one are the same."""
    named, row = by_text(timeline, ids)
    plain = [without_version(name) for name in named]
    distinct = sorted(set(plain), key=lambda name: (name is not None, name or ""))
    return objects(distinct), np.array([distinct.index(name) for name in plain], np.int64)[row]


def _where_any(group: Ints, queue: Ints, groups: int) -> dict[str, Any]:
    """Return the columns of the time in the queue; None for a group that never waited, deviation 0."""
    present, number = np.unique(group, return_inverse=True)
    columns = {}
    for name, values in summarize(number, queue, len(present)).columns("queue_").items():
        column = objects([0.0 if name == "queue_stddev_ns" else None] * groups)
        column[present] = values.tolist()
        columns[name] = pd.Series(column, dtype="object")
    return columns
