"""Where the GPU's time goes: exclusive parts that add up to the whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hpcprof.analysis.intervals import Intervals, difference, length, union
from hpcprof.analysis.outcome import Outcome, nothing
from hpcprof.timeline import Category, Operations, Timeline

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
    operations = timeline.operations()
    if not len(operations):
        return nothing(f"no CUDA kernels or memory operations in {timeline.origin.path.name}")
    devices = [
        _parts(operations.take(operations.device == device)) for device in np.unique(operations.device)
    ]
    total = {name: sum(getattr(device, name) for device in devices) for name in ("span", *PARTS)}
    row: dict[str, int | float | None] = {f"{name}_ns": value for name, value in total.items()}
    for name in PARTS:
        row[f"{name}_pct"] = round(100 * total[name] / total["span"], 2) if total["span"] else None
    reason = "" if total["span"] else f"the operations in {timeline.origin.path.name} take no time"
    return Outcome(pd.DataFrame([row]), reason)


def of_category(operations: Operations, category: Category) -> Intervals:
    """Return the merged intervals of the operations of one category."""
    chosen = operations.category == category
    return union(operations.start[chosen], operations.end[chosen])


def _parts(operations: Operations) -> Parts:
    """Divide one device's span, and check that the parts add up to it.

    Raises
    ------
    AssertionError
        If they do not: the interval functions would be wrong, and so would every figure.
    """
    compute = of_category(operations, Category.COMP)
    communication = difference(of_category(operations, Category.COMM), compute)
    busy = _both(compute, communication)
    memory = difference(of_category(operations, Category.MEM), busy)
    # Negative only where the one operation ends before it starts: it takes no time.
    span = max(int(operations.end.max()) - int(operations.start.min()), 0)
    parts = Parts(
        span=span,
        compute=length(*compute),
        exposed_comm=length(*communication),
        exposed_mem=length(*memory),
        idle=span - length(operations.start, operations.end),
    )
    if parts.compute + parts.exposed_comm + parts.exposed_mem + parts.idle != span:
        raise AssertionError(f"the parts do not add up to the span: {parts}")
    return parts


def _both(a: Intervals, b: Intervals) -> Intervals:
    return union(np.concatenate((a[0], b[0])), np.concatenate((a[1], b[1])))
