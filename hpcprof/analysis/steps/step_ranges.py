"""The steps of a timeline, and the time of a step or phase."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from hpcprof.analysis.steps.gpu_projection import in_process, launches
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.timeline import Ints, Ranges, Timeline

_STEP = "iteration"
_PROFILER_STEP = re.compile(r"ProfilerStep#\d+")


@dataclass(frozen=True)
class Measured:
    """The interval that counts as the time of each range; empty if the range has none."""

    start: Ints
    end: Ints


@computed_once
def steps_of(timeline: Timeline) -> Ints:
    """Return the rows of the ranges that are steps, in time order.

    Steps are the ranges named ``iteration`` or, if there are none, those that the PyTorch profiler names
    ``ProfilerStep#N``. A step that is still open when the profile ends does not count: its time would be
    too short.
    """
    ranges = timeline.ranges
    used = np.unique(ranges.name[(ranges.closed == 1) & (ranges.one_thread == 1)])
    names = timeline.names(used)
    chosen = [i for i, name in zip(used, names, strict=True) if name == _STEP]
    if not chosen:
        chosen = [i for i, name in zip(used, names, strict=True) if name and _PROFILER_STEP.fullmatch(name)]
    rows = np.flatnonzero(np.isin(ranges.name, chosen) & (ranges.closed == 1) & (ranges.one_thread == 1))
    return rows[np.argsort(ranges.start[rows], kind="stable")]


def no_steps(timeline: Timeline) -> str:
    """Return the reason why there are no steps."""
    return (
        f"no steps in {timeline.origin.path.name}: "
        f"it has no complete range named {_STEP} or ProfilerStep#N whose work was recorded"
    )


def measure(timeline: Timeline, ranges: Ranges) -> Measured:
    """Return the interval of each range on the GPU; in a CPU trace, on the host.

    The interval on the GPU runs from the first start to the last end of the operations that any thread of
    the process launched while the range was open. This differs from ``range_gpu`` on purpose: autograd
    launches the backward pass from a thread of its own, so counting only the range's own thread would make
    a ``backward`` of 80 ms last 11 us.
    """
    if not timeline.operation_count:
        return Measured(ranges.start, ranges.end)
    projection = in_process(ranges, launches(timeline))
    found = projection.launches > 0
    return Measured(np.where(found, projection.start, 0), np.where(found, projection.end, 0))
