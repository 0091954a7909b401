"""Metrics of GPUs and NICs that a profiler sampled, by the steps of the profile."""

import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.statistics.grouped import mean_and_extremes
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.analysis.steps.wall_time import step_intervals
from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.profiles.timeline import Ints, Timeline

_MAX_BLOCKS = 60
_BEFORE_STEPS, _AFTER_STEPS, _BETWEEN_STEPS, _WHOLE_RUN = -1, -2, -3, -4
_PHASES = {_BEFORE_STEPS: "before", _AFTER_STEPS: "after", _BETWEEN_STEPS: "between", _WHOLE_RUN: "run"}


def device_metrics(timeline: Timeline) -> Outcome:
    """Return the mean, the lowest and the highest sample of each metric of each device, by step.

    Many steps are joined to at most 60 blocks of equally many. A sample counts for the step in whose wall
    time its middle lies, else for the time before the first step, after the last one or between steps.
    """
    samples = timeline.device_samples
    if not len(samples):
        return no_rows(f"no metrics of GPUs or NICs in {timeline.origin.path.name}")
    steps = steps_of(timeline).number
    each = max(1, -(-len(steps) // _MAX_BLOCKS))
    block = _steps_at(timeline, samples.start + (samples.end - samples.start) // 2, len(steps))
    inside = block >= 0
    block[inside] //= each
    groups, group = numbered_rows(samples.source, samples.metric, samples.unit, block)
    source, metric, unit, blocks = groups.T
    bounds = [(first * each, min((first + 1) * each, len(steps)) - 1) for first in blocks.tolist()]
    return Outcome(
        {
            "device": timeline.names(source),
            "first_step": [int(steps[first]) if first >= 0 else None for first, _ in bounds],
            "last_step": [int(steps[last]) if first >= 0 else None for first, last in bounds],
            "phase": [_PHASES.get(number, "step") for number in blocks.tolist()],
            "metric": timeline.names(metric),
            "unit": timeline.names(unit),
            "samples": np.bincount(group),
            **mean_and_extremes(group, samples.value),
        }
    )


def _steps_at(timeline: Timeline, moment: Ints, count: int) -> Ints:
    """Return the place of the step at each moment, or a negative number of `_PHASES`."""
    if not count:
        return np.full(len(moment), _WHOLE_RUN)
    times = step_intervals(timeline)
    at = np.searchsorted(np.maximum.accumulate(times.start), moment, side="right") - 1
    outside = np.where(
        at < 0, _BEFORE_STEPS, np.where(moment >= times.end.max(), _AFTER_STEPS, _BETWEEN_STEPS)
    )
    return np.where((at >= 0) & (moment < times.end[at]), at, outside)
