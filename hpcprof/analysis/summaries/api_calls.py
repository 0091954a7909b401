"""API calls of CUDA or HIP by name, and the kernels that they launch."""

from typing import Any

import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, no_rows, none_in
from hpcprof.analysis.statistics.grouped import GroupStatistics, summarize
from hpcprof.profiles.columns.joins import launch_pairs
from hpcprof.profiles.columns.unique import number_texts, numbered_rows, object_array
from hpcprof.profiles.timeline import Ints, Timeline

_PID_BITS = 0xFFFFFF
"""The bits of a process number of nsys that are the process id."""


def api(timeline: Timeline) -> Outcome:
    """Summarize the durations of CUDA runtime and driver calls, as cuda_api_sum of ``nsys stats`` does.

    Calls are grouped by their full name and shown without the version: ``f_v3020`` and ``f_v4000``
    are two rows named ``f``.
    """
    calls = timeline.calls
    if not len(calls):
        return none_in(timeline, "CUDA or HIP API calls")
    summary = summarize(calls.name, calls.end - calls.start)
    rows = {
        "name": object_array(map(without_version, timeline.names(summary.group))),
        **summary.table("num_calls"),
    }
    return Outcome(rows)


def launches(timeline: Timeline) -> Outcome:
    """Summarize each kernel's launches, as cuda_kern_exec_sum of ``nsys stats`` does.

    ``api`` is the duration of the launch call and ``kernel`` that of the kernel. ``queue`` is the time from
    the end of the call to the start of the kernel, over the ``queue_count`` launches where it is not
    negative. ``total`` runs from the start of the call to the later of both ends.
    """
    table, calls = timeline.kernels, timeline.calls
    file = timeline.origin.path.name
    for part, events in ((table, "CUDA kernels"), (calls, "CUDA or HIP API calls")):
        if not len(part):
            return none_in(timeline, events)
    operation, call = launch_pairs(timeline)
    # The operations begin with the kernels.
    launched = np.searchsorted(operation, len(table))
    kernel, call = operation[:launched], call[:launched]
    if not len(kernel):
        return no_rows(f"no kernel of {file} has a recorded launch call")
    columns, group = _groups(timeline, kernel, call)
    start, end = table.start[kernel], table.end[kernel]
    called, returned = calls.start[call], calls.end[call]
    total = summarize(group, np.maximum(end, returned) - called)
    waited = start >= returned
    queue = summarize(group[waited], (start - returned)[waited])
    queued = np.zeros(len(total.group), np.int64)
    queued[queue.group] = queue.count
    rows = {
        **columns,
        "count": total.count,
        "queue_count": queued,
        **total.columns("total_"),
        **summarize(group, returned - called).columns("api_"),
        **_queue_columns(queue, len(queued)),
        **summarize(group, end - start).columns("kernel_"),
    }
    return Outcome(rows)


def _groups(timeline: Timeline, kernel: Ints, call: Ints) -> tuple[dict[str, Any], Ints]:
    table, calls = timeline.kernels, timeline.calls
    names, name = number_texts(timeline, table.name[kernel])
    functions, function = number_texts(timeline, calls.name[call], without_version)
    keys, group = numbered_rows(
        calls.process[call] & _PID_BITS, calls.thread[call], table.device[kernel], function, name
    )
    columns = {
        "name": object_array(names[keys[:, 4]]),
        "api_name": object_array(functions[keys[:, 3]]),
        "pid": keys[:, 0],
        "tid": keys[:, 1],
        "device": keys[:, 2],
    }
    return columns, group


def _queue_columns(queue: GroupStatistics, groups: int) -> dict[str, Any]:
    """Return the statistics of the time in the queue; of a group that never waited None, and deviation 0."""
    columns = {}
    for name, values in queue.columns("queue_").items():
        column = object_array([0.0 if name == "queue_stddev_ns" else None] * groups)
        column[queue.group] = values.tolist()
        columns[name] = column
    return columns


def without_version(name: str | None) -> str | None:
    """Drop ``_vNNNN``. Five digits stay (``_v11010``), because nsys looks only six characters back."""
    return name[:-6] if name and name[-6:-4] == "_v" else name
