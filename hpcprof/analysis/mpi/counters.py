"""Instructions and cycles of the CPU in the useful time of programs with MPI."""

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, none_in
from hpcprof.analysis.mpi.efficiencies import run_limits
from hpcprof.analysis.mpi.per_rank import regions_of
from hpcprof.analysis.steps.mpi_steps import main_thread_calls
from hpcprof.profiles.columns.intervals import coverage, difference, union
from hpcprof.profiles.timeline import CYCLES, INSTRUCTIONS, Ints, Timeline


def useful_counters(timeline: Timeline) -> Outcome:
    """Return the time of the main thread outside MPI, and its counters there, by scope as in ``pop``.

    The main thread is the one with the most calls of MPI. Between two readings a counter grows evenly;
    Score-P reads them where a region begins or ends. A counter that was not recorded is null.
    """
    if not len(timeline.mpi_calls):
        return none_in(timeline, "MPI calls")
    calls = main_thread_calls(timeline)
    counters = timeline.cpu_counters
    counters = counters.take((counters.process == calls.process[0]) & (counters.thread == calls.thread[0]))
    if not len(counters):
        return none_in(timeline, "instructions and cycles")
    regions = pd.DataFrame(regions_of(timeline), columns=["scope", "name", "start_ns", "end_ns"])
    starts, ends = (regions[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    first, last = run_limits(timeline.names(calls.name[[0, -1]]), calls.start, calls.end, starts, ends)
    mpi_time = union(calls.start, np.maximum(calls.start, calls.end))
    names = np.array(timeline.names(counters.counter))
    totals: list[dict[str, str | int | None]] = []
    groups = [(("run", ""), np.array([first]), np.array([last]))]
    groups += [
        ((scope, name), starts[index], ends[index])
        for (scope, name), index in regions.groupby(["scope", "name"], sort=False).indices.items()
    ]

    def growth(counter: str, spans: tuple[Ints, Ints]) -> int | None:
        samples = counters.take(names == counter)
        length = np.maximum(samples.end - samples.start, 1)
        inside = coverage(samples.start, samples.end, spans)
        return int(np.rint((samples.grown * (inside / length)).sum())) if len(samples) else None

    for (scope, name), begin, end in groups:
        useful = difference(union(begin, end), mpi_time)

        time = int((useful[1] - useful[0]).sum())
        counts = {"instructions": growth(INSTRUCTIONS, useful), "cycles": growth(CYCLES, useful)}
        totals.append({"scope": scope, "name": name, "useful_ns": time, **counts})
    return Outcome(pd.DataFrame(totals, dtype=object))
