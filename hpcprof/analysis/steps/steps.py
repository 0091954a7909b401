"""The time of each step on each rank, and over ranks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.steps.phases import distribution
from hpcprof.analysis.steps.step_ranges import measure, no_steps, steps_of
from hpcprof.profiles.timeline import Timeline


def step_times(timeline: Timeline) -> Outcome:
    """Return the latency of each step: the length of its projection to the GPU.

    In a CPU trace it is the length of the range. ``step`` numbers all steps from 0 in the order of time. A
    step that launched nothing has no row.
    """
    steps = steps_of(timeline)
    time = measure(timeline, timeline.ranges.take(steps))
    measured = np.flatnonzero(time.end > time.start)
    if not len(measured):
        return no_rows(no_steps(timeline))
    latency = (time.end - time.start)[measured]
    return Outcome(pd.DataFrame({"step": measured, "latency_ns": latency}))


def steps(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Return the latency of each step over ranks; of equally slow ranks the lowest is named."""
    times = results["step_times"]
    if not len(times):
        return no_rows("no steps: no rank has step times")
    times = times.sort_values(["step", "rank"], kind="stable")
    by_step = times.groupby("step", sort=True)["latency_ns"]
    # The rows are sorted by rank, so the first maximum belongs to the lowest rank.
    slowest = times.sort_values(["step", "latency_ns"], ascending=[True, False], kind="stable")
    slowest = slowest.drop_duplicates("step")
    rows = pd.DataFrame(
        {
            "step": slowest["step"].to_numpy(),
            "p50_ns": np.rint(by_step.median().to_numpy()).astype(np.int64),
            "max_ns": by_step.max().to_numpy(),
            "min_ns": by_step.min().to_numpy(),
            "slowest_rank": slowest["rank"].to_numpy(),
        }
    )
    return Outcome(rows)


def steps_summary(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Summarize the latency of the steps; the latency of a step is the maximum over ranks."""
    times = results["step_times"]
    if not len(times):
        return no_rows("no steps: no rank has step times")
    latency = times.groupby("step")["latency_ns"].max().to_numpy().astype(np.int64)
    row = distribution(latency) | {
        "ranks": int(times["rank"].nunique()),
        "min_ns": int(latency.min()),
        "max_ns": int(latency.max()),
    }
    return Outcome(pd.DataFrame([row]))
