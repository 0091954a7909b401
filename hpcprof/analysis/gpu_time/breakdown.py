"""Where the GPU's time goes: exclusive parts that add up to the whole."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, nothing
from hpcprof.analysis.gpu_time.coverage import Coverage, coverage
from hpcprof.profiles.timeline import Category, Timeline

PARTS = ("compute", "exposed_comm", "exposed_mem", "idle")


@dataclass(frozen=True)
class Parts:
    """The parts of a device's span, in nanoseconds."""

    span: int
    compute: int
    exposed_comm: int
    exposed_mem: int
    idle: int


def breakdown(timeline: Timeline) -> Outcome:
    """Divide the span of the GPU's work, from the first operation's start to the last one's end.

    Compute is the union of compute kernels; exposed communication what communication covers beyond
    that; exposed memory what copies and sets cover beyond both; idle the rest. With several devices
    the figures are the sums over devices. ``*_pct`` are percent of the span, two decimals.
    """
    devices = [_parts(device) for device in coverage(timeline)]
    if not devices:
        return nothing(f"no CUDA kernels or memory operations in {timeline.origin.path.name}")
    total = {name: sum(getattr(device, name) for device in devices) for name in ("span", *PARTS)}
    row: dict[str, int | float | None] = {f"{name}_ns": value for name, value in total.items()}
    for name in PARTS:
        row[f"{name}_pct"] = round(100 * total[name] / total["span"], 2) if total["span"] else None
    reason = "" if total["span"] else f"the operations in {timeline.origin.path.name} take no time"
    return Outcome(pd.DataFrame([row]), reason)


def _parts(device: Coverage) -> Parts:
    """Divide one device's span; `hpcprof.analysis.framework.crosschecks` checks that the parts add up."""
    return Parts(
        span=device.span,
        compute=device.of([Category.COMP]),
        exposed_comm=device.of([Category.COMM], not_running=[Category.COMP]),
        exposed_mem=device.of([Category.MEM], not_running=[Category.COMP, Category.COMM]),
        idle=device.span - device.busy,
    )
