"""HolisticTraceAnalysis' temporal breakdown of a PyTorch trace, for comparison with its figures.

Use `breakdown` for anything else. This module repeats what HolisticTraceAnalysis 0.5.0 does:

- It rounds starts up and ends down to whole microseconds, so short kernels last -1 us.
- If the trace has several profiler steps, it only counts GPU work whose launch call began before the last
  step did. The copies of these annotations on the GPU also count as steps, and begin later.
- It counts waits for streams and events (cuda_sync) that name a stream as GPU work.
- It counts a kernel as compute unless its name looks like NCCL or a memory operation, or contains ``Sync``.
"""

import re
from dataclasses import dataclass

import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, columns_of, no_rows
from hpcprof.profiles.columns.joins import matches
from hpcprof.profiles.columns.unique import name_matches
from hpcprof.profiles.readers.kineto import TORCH
from hpcprof.profiles.timeline import NO_CORRELATION, Floats, GpuMarks, Ints, Table, Timeline, concatenate

_STEP = "ProfilerStep"
_NO_COMPUTE = re.compile(r"nccl.*Kernel|.*Memcpy|Memset|dma|.*Sync")


@dataclass(frozen=True)
class _Annotations(Table):
    """The annotations of the host and of the GPU."""

    start: Ints
    name: Ints


def hta_breakdown(timeline: Timeline) -> Outcome:
    """Return idle, compute and other time in whole microseconds, and in percent of their sum.

    ``kernel_time_us`` runs from the first start to the last end, with all devices taken as one.
    ``non_compute_time_us`` is the time that is neither compute nor idle.
    """
    file = timeline.origin.path.name
    if timeline.origin.kind != TORCH.name:
        return no_rows(f"{file} is not a PyTorch trace, the only input of HolisticTraceAnalysis")
    work = _work_of_steps(timeline, _work(timeline))
    if not len(work):
        return no_rows(f"no GPU work in {file} that HolisticTraceAnalysis counts")
    start, end = _whole_microseconds(work.start, work.end)
    computes = name_matches(timeline, work.name, lambda name: not _NO_COMPUTE.match(name))
    span, busy = _span_and_union(start, end)
    _, compute = _span_and_union(start[computes], end[computes])
    times = {"idle_time": span - busy, "compute_time": compute, "non_compute_time": busy - compute}
    shares = {name: float(np.round(100 * (time / span), 2)) if span else None for name, time in times.items()}
    row = {
        **{f"{name}_us": time for name, time in times.items()},
        "kernel_time_us": span,
        **{f"{name}_pctg": share for name, share in shares.items()},
    }
    return Outcome(columns_of([row]), "" if span else f"the operations in {file} take no time")


def _work(timeline: Timeline) -> GpuMarks:
    marks = timeline.gpu_marks
    waits = marks.take((marks.correlation != NO_CORRELATION) & (marks.stream >= 0))
    return concatenate(GpuMarks, (timeline.kernels, timeline.memops, waits))


def _work_of_steps(timeline: Timeline, work: GpuMarks) -> GpuMarks:
    """Drop work that was launched after the last step began; work of two calls with one id counts twice."""
    steps = concatenate(_Annotations, (timeline.ranges, timeline.gpu_marks))
    steps = steps.take(name_matches(timeline, steps.name, lambda name: _STEP in name))
    if len(np.unique(steps.name)) < 2:
        return work
    begins, _ = _whole_microseconds(steps.start, steps.start)
    calls, _ = _whole_microseconds(timeline.calls.start, timeline.calls.start)
    launched = timeline.calls.correlation[calls < begins.max()]
    work = work.take((work.correlation >= 0) & (work.stream >= 0))
    rows, _ = matches(work.correlation, launched)
    return work.take(rows)


def _whole_microseconds(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Round starts up and ends down, from the doubles that a JSON parser returns for time and duration."""
    begin = _double(start)
    return np.ceil(begin).astype(np.int64), np.floor(begin + _double(end - start)).astype(np.int64)


def _double(nanoseconds: Ints) -> Floats:
    """Return microseconds as the double nearest to the exact value; a plain division would round twice."""
    return nanoseconds // 1000 + nanoseconds % 1000 / 1000


def _span_and_union(start: Ints, end: Ints) -> tuple[int, int]:
    """Return the span of some intervals and the sum of the merged ones.

    An interval that ends before it starts counts with its negative length if it is not merged;
    `intervals.union` would drop it.
    """
    if not len(start):
        return 0, 0
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    first = np.flatnonzero(np.concatenate(([True], start[1:] > np.maximum.accumulate(end)[:-1])))
    last = np.maximum.reduceat(end, first)
    return int(last[-1] - start[0]), int(np.sum(last - start[first]))
