"""The time of each phase of the steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.text_columns import number_texts, text_column
from hpcprof.analysis.steps.range_tree import NO_PARENT, tree
from hpcprof.analysis.steps.step_ranges import measure, no_steps, steps_of
from hpcprof.profiles.columns.intervals import grouped_length
from hpcprof.profiles.timeline import NO_NAME, Ints, Timeline

# The ranges of PyTorch's process groups, which are parts of a phase and not phases.
_LIBRARY_PREFIXES = ("nccl:", "gloo:")


def phases(timeline: Timeline) -> Outcome:
    """Summarize the time of each phase over the steps.

    A phase is a range that is a direct child of a step on the step's thread, has no NVTX domain and is not
    named ``nccl:…`` or ``gloo:…``. Its time in a step is the length of the union of its projections to the
    GPU, which include the launches of **all** threads of the process (see
    `hpcprof.analysis.steps.step_ranges.measure`); in a CPU trace it is the time on the host. ``steps`` is the
    number of steps that have the phase. Rows are in order of first appearance.
    """
    steps = steps_of(timeline)
    step_time = measure(timeline, timeline.ranges.take(steps))
    owner, rows = phases_of(timeline, steps[step_time.end > step_time.start])
    if not len(rows):
        return no_rows(_why_none(timeline))
    ranges = timeline.ranges.take(rows)
    names, phase = number_texts(timeline, ranges.name)
    # One group per pair of step and phase.
    pairs, group = np.unique(owner * len(names) + phase, return_inverse=True)
    time = measure(timeline, ranges)
    length = grouped_length(group, time.start, time.end, len(pairs))
    of_pair = pairs % len(names)
    first = np.full(len(names), np.iinfo(np.int64).max)
    np.minimum.at(first, phase, ranges.start)
    order = np.argsort(first, kind="stable")
    table = pd.DataFrame([distribution(length[of_pair == p]) for p in order])
    table.insert(0, "phase", text_column(names[order]))
    return Outcome(table)


def distribution(values: Ints) -> dict[str, Any]:
    """Return the number, percentiles, mean and deviation of times, rounded to whole nanoseconds.

    Percentiles are interpolated linearly; the deviation is the sample's, 0 for one value.
    """
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return {
        "steps": len(values),
        "p50_ns": round(p50),
        "p95_ns": round(p95),
        "p99_ns": round(p99),
        "mean_ns": round(float(np.mean(values))),
        "stddev_ns": round(float(np.std(values, ddof=1))) if len(values) > 1 else 0,
    }


def phases_of(timeline: Timeline, steps: Ints) -> tuple[Ints, Ints]:
    """Return the rows of the phases and of the step of each; ``steps`` are rows of the ranges."""
    ranges = timeline.ranges
    nested, found = tree(timeline)
    parent = np.full(len(ranges), NO_PARENT, np.int64)
    parent[nested] = np.where(found == NO_PARENT, NO_PARENT, nested[found])
    rows = np.flatnonzero(
        np.isin(parent, steps)
        & (ranges.name != NO_NAME)
        & (ranges.domain == NO_NAME)
        & ~np.isin(ranges.name, ranges.name[steps])
    )
    names = timeline.names(ranges.name[rows])
    own = np.array([not (name or "").startswith(_LIBRARY_PREFIXES) for name in names], bool)
    return parent[rows][own], rows[own]


def _why_none(timeline: Timeline) -> str:
    if not len(steps_of(timeline)):
        return no_steps(timeline)
    return f"no phases in {timeline.origin.path.name}: no step directly contains a named range"
