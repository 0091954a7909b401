"""The host and device branches of the efficiencies, as TALP defines them for programs with GPUs.

Host: useful is the time outside MPI and outside calls that launch work, copy, or wait for a GPU. Device:
useful is the time of kernels, active also that of copies and of kernels that communicate (Rahimi et al.,
"Hardware-agnostic and insightful efficiency metrics for accelerated systems", 2026; and DLB's TALP).
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, columns_of, no_rows, none_in
from hpcprof.analysis.mpi.efficiencies import DIGITS, pct, run_limits
from hpcprof.analysis.mpi.per_rank import regions_of
from hpcprof.analysis.steps.mpi_steps import main_thread_calls
from hpcprof.profiles.columns.intervals import Intervals, coverage, union, union_of
from hpcprof.profiles.columns.unique import numbered
from hpcprof.profiles.timeline import Category, Timeline

_MIN_CALLING_STEPS = 0.1
"""Minimum share of steps that call MPI."""
_BRANCHES = (
    "host_efficiency_pct",
    "offload_efficiency_pct",
    "device_efficiency_pct",
    "device_load_balance_pct",
    "device_communication_efficiency_pct",
    "device_orchestration_efficiency_pct",
)


def offload(timeline: Timeline) -> Outcome:
    """Return the time of the main thread and of the GPUs of a rank in the run, its steps and its phases.

    The main thread is the one with the most calls of MPI. The times of several GPUs are added. Work of a
    GPU counts where it happens, not where it was launched. Without calls of MPI in one step of ten, there
    are no rows: these efficiencies say nothing about such a program, and take a while.
    """
    if not len(timeline.mpi_calls):
        return none_in(timeline, "MPI calls")
    if not timeline.operation_count:
        return no_rows("without work on GPUs, there is no branch of devices")
    calls = main_thread_calls(timeline)
    in_mpi = union(calls.start, np.maximum(calls.start, calls.end))
    regions = pd.DataFrame(regions_of(timeline), columns=["scope", "name", "start_ns", "end_ns"])
    starts, ends = (regions[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
    steps = regions["scope"] == "step"
    if steps.any() and np.mean(coverage(starts, ends, in_mpi)[steps] > 0) < _MIN_CALLING_STEPS:
        return no_rows(f"hardly a step calls MPI in {timeline.origin.path.name}")
    process, number = int(calls.process[0]), int(calls.thread[0])
    all_calls = timeline.calls
    thread_calls = np.flatnonzero((all_calls.process == process) & (all_calls.thread == number))
    start = all_calls.start[thread_calls]
    in_calls = union_of(in_mpi, union(start, np.maximum(start, all_calls.end[thread_calls])))
    # The calls of a large profile take more memory than the sums.
    del thread_calls, start
    first, last = run_limits(timeline.names(calls.name), calls.start, calls.end, starts, ends).tolist()
    starts, ends = np.append(first, starts), np.append(last, ends)
    elapsed, outside, inside = ends - starts, coverage(starts, ends, in_calls), coverage(starts, ends, in_mpi)
    count, useful, active = 0, np.zeros_like(elapsed), np.zeros_like(elapsed)
    for computes, anything in _devices(timeline):
        count += 1
        useful += coverage(starts, ends, computes)
        active += coverage(starts, ends, anything)
    times = {
        "elapsed_ns": elapsed,
        "useful_ns": elapsed - outside,
        "gpu_calls_ns": outside - inside,
        "gpu_useful_ns": useful,
        "gpu_active_ns": active,
    }
    keys = {"scope": ["run", *regions["scope"]], "name": ["", *regions["name"]]}
    sums = pd.DataFrame(keys | times).groupby([*keys], sort=False).sum()
    return Outcome(sums.assign(devices=count).reset_index())


def _devices(timeline: Timeline) -> Iterator[tuple[Intervals, Intervals]]:
    """Yield for each device the intervals of compute, and the intervals of any work."""
    start, end, on, category = timeline.of_operations("start", "end", "device", "category")
    for device in numbered(on)[0].tolist():
        on_device = on == device
        computes = on_device & (category == Category.COMP)
        yield union(start[computes], end[computes]), union(start[on_device], end[on_device])


def with_branches(pop: Outcome, times: pd.DataFrame) -> Outcome:
    """Return the efficiencies with those of hosts and devices, null for programs without GPUs.

    ``pop`` are the rows of ``pop`` without these columns, ``times`` the rows of ``offload`` of all ranks.
    """
    rows = pop.columns()
    if not len(pop):
        return pop
    keys = zip(rows["scope"], rows["name"], rows["parallel_efficiency_pct"], strict=True)
    branches = [_branches(times, scope, name, parallel) for scope, name, parallel in keys]
    return Outcome({**rows, **columns_of(branches)}, pop.reason)


def _branches(times: pd.DataFrame, scope: str, name: str, parallel: float | None) -> dict[str, float | None]:
    rows = times[(times["scope"] == scope) & (times["name"] == name)] if len(times) else times
    if not len(rows):
        return dict.fromkeys(_BRANCHES)
    useful, calls, devices, computing = (
        float(rows[column].sum()) for column in ("useful_ns", "gpu_calls_ns", "devices", "gpu_useful_ns")
    )
    elapsed = float(rows["elapsed_ns"].max())
    most_useful, most_active = (
        float((rows[column] / rows["devices"]).max()) for column in ("gpu_useful_ns", "gpu_active_ns")
    )
    offloads = pct(useful, useful + calls)
    values = (
        None if parallel is None or offloads is None else round(parallel * offloads / 100, DIGITS),
        offloads,
        pct(computing, elapsed * devices),
        pct(computing, most_useful * devices),
        pct(most_useful, most_active),
        pct(most_active, elapsed),
    )
    return dict(zip(_BRANCHES, values, strict=True))
