"""The time of each step on each rank, and over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.steps.phases import distribution
from hpcprof.analysis.steps.run_step import step_series, whole_steps
from hpcprof.analysis.steps.step_ranges import no_steps, steps_of
from hpcprof.analysis.steps.wall_time import GPU_SPAN_PCT, StepTimes, step_intervals
from hpcprof.common.units import counted, format_ns
from hpcprof.profiles.timeline import Timeline


def step_times(timeline: Timeline) -> Outcome:
    """Return the times of each step; ``step`` is the program's own number, else counts from 0.

    ``wall_ns`` is the time from the front of the step to that of the next one
    (`hpcprof.analysis.steps.wall_time.wall_intervals`). ``gpu_span_ns`` is the time from the start of the
    first to the end of the last operation that was launched in the step, None without any.
    """
    times = step_intervals(timeline)
    if not len(times.start):
        return no_rows(no_steps(timeline))
    span = (times.gpu_end - times.gpu_start).astype(object)
    span[~times.on_gpu] = None
    rows = {"step": steps_of(timeline).number, "wall_ns": times.end - times.start, "gpu_span_ns": span}
    return Outcome(rows, _on_host(timeline, times))


def _on_host(timeline: Timeline, times: StepTimes) -> str:
    """Return how many steps are measured on the host."""
    host = int(np.count_nonzero(~times.on_gpu))
    if not host:
        return ""
    which = "the steps" if host == len(times.start) else f"{host} of {counted(len(times.start), 'step')}"
    return f"{which} of {timeline.origin.path.name} launched no work on the GPU and are measured on the host"


def steps(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Return the wall time of each step over ranks; of equally slow ranks the lowest is named."""
    times = results["step_times"]
    if not len(times):
        return no_rows("no steps: no rank has step times")
    times = times.sort_values(["step", "rank"], kind="stable")
    by_step = times.groupby("step", sort=True)["wall_ns"]
    # The rows are sorted by rank, so the first maximum belongs to the lowest rank.
    slowest = times.sort_values(["step", "wall_ns"], ascending=[True, False], kind="stable")
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
    """Summarize the wall time of the steps that all ranks have; that of a step is the maximum over ranks.

    ``gpu_span_p50_ns`` is the median of the maximum over ranks of the span on the GPU.
    """
    if not len(results["step_times"]):
        return no_rows("no steps: no rank has step times")
    times = whole_steps(results["step_times"])
    wall = step_series(times).wall
    span = times.assign(gpu_span_ns=times["gpu_span_ns"].astype(float)).groupby("step")["gpu_span_ns"].max()
    typical = None if span.isna().all() else round(float(span.median()))
    row: dict[str, Any] = distribution(wall) | {
        "ranks": int(times["rank"].nunique()),
        "min_ns": int(wall.min()),
        "max_ns": int(wall.max()),
        "gpu_span_p50_ns": typical,
    }
    without = int(span.isna().sum())
    reason = compare_times(row["p50_ns"], typical)
    if 0 < without < len(span):
        # The span of the others is not that of a step.
        reason = f"{without} of {counted(len(span), 'step')} launched no work on the GPU"
    return Outcome(pd.DataFrame([row], dtype=object), reason)


def compare_times(wall: int, gpu_span: int | None) -> str:
    """Return a sentence on a median step whose wall time and GPU span differ; empty if they hardly do."""
    if gpu_span is None:
        return "no step launched work on the GPU: steps are measured on the host"
    if abs(wall - gpu_span) <= wall * GPU_SPAN_PCT / 100:
        return ""
    return (
        f"the wall time of the median step is {format_ns(wall)}, its span on the GPU {format_ns(gpu_span)} "
        f"({100 * gpu_span / wall:.1f} %)"
    )
