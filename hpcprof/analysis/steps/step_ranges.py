"""The steps of a timeline, and what a step or phase takes."""

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
    """Per range: the interval that counts as its time. It is empty where the range has none."""

    start: Ints
    end: Ints


@computed_once
def steps_of(timeline: Timeline) -> Ints:
    """Return the rows of the ranges that are steps, in time order.

    They are the ranges named ``iteration``, else those that the PyTorch profiler names
    ``ProfilerStep#N``. A step that the profile ends before is no step: its time would be too short.
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
    """Say that there is no step."""
    return (
        f"no steps in {timeline.origin.path.name}: "
        f"it has no complete range named {_STEP} or ProfilerStep#N whose work was recorded"
    )


def measure(timeline: Timeline, ranges: Ranges) -> Measured:
    """Return the interval of each range on the GPU, or on the host where nothing ran on a GPU.

    The interval on the GPU runs from the first start to the last end of what any thread of the
    process launched while the range was open. That differs from ``range_gpu`` on purpose: autograd
    launches the backward pass from a thread of its own, and by the rule of the same thread a
    ``backward`` of 80 ms would be 11 us. Only a CPU trace is measured on the host.
    """
    if not timeline.operation_count:
        return Measured(ranges.start, ranges.end)
    projection = in_process(ranges, launches(timeline))
    found = projection.launches > 0
    return Measured(np.where(found, projection.start, 0), np.where(found, projection.end, 0))
