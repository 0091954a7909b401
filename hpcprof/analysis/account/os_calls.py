"""The time that the thread of the steps spends in calls of the operating system's runtime."""

import numpy as np

from hpcprof.analysis.account.host_activity import marking_thread
from hpcprof.analysis.framework.outcome import Outcome, columns_of, no_rows
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.profiles.columns.intervals import coverage, difference, outermost, union
from hpcprof.profiles.columns.unique import rows_by_key
from hpcprof.profiles.os_calls import kind_of_call
from hpcprof.profiles.timeline import AFTER_ALL, Timeline


def os_calls(timeline: Timeline) -> Outcome:
    """Return the calls in steps by name, on the thread that marks the steps, and their time outside MPI.

    Calls inside others do not count, and neither does the polling of an MPI library. Without steps, the
    calls are those of the first thread in the whole capture, and no time is per step.
    """
    calls, file = timeline.os_calls, timeline.origin.path.name
    if not len(calls):
        return no_rows(f"no calls of the OS runtime in {file}; nsys records them with --trace=osrt")
    steps = steps_of(timeline)
    if len(steps):
        process, thread = marking_thread(timeline)
        in_steps = union(steps.ranges.start, steps.ranges.end)
    else:
        # The first thread has the lowest number; calls of no thread have 0.
        first = int(np.argmin(np.where(calls.thread > 0, calls.thread, AFTER_ALL)))
        process, thread = int(calls.process[first]), int(calls.thread[first])
        in_steps = union(calls.start.min(keepdims=True), calls.end.max(keepdims=True))
    calls = calls.take((calls.process == process) & (calls.thread == thread))
    calls = calls.take(outermost(calls.start, calls.end))
    mpi = timeline.mpi_calls
    time = coverage(calls.start, calls.end, difference(in_steps, union(mpi.start, mpi.end)))
    table = []
    for (name,), rows in rows_by_key(calls.name):
        (text,) = timeline.names(np.array([name]))
        total, number = int(time[rows].sum()), int(np.count_nonzero(time[rows]))
        if number and text is not None:
            call = {"call": text, "kind": kind_of_call(text), "calls": number, "total_ns": total}
            per_step = round(total / len(steps)) if len(steps) else None
            times = {"ns_per_step": per_step, "max_ns": int(time[rows].max())}
            table.append(call | times)
    if not table:
        return no_rows(f"no calls of the OS runtime in steps of {file}")
    reason = f"{file} has no steps: calls are those of its first thread in the whole capture"
    return Outcome(columns_of(table), "" if len(steps) else reason)
