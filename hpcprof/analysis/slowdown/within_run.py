"""Slowdown of kernels by communication, within one run."""

from typing import Any

import numpy as np

from hpcprof.analysis.framework.outcome import Outcome, columns_of, no_rows, none_in
from hpcprof.analysis.slowdown.kernel_instances import KernelInstances, place_kernels
from hpcprof.analysis.statistics.clustered_medians import ClusteredMedians
from hpcprof.analysis.statistics.confidence_intervals import RATIO_DIGITS
from hpcprof.analysis.steps.step_ranges import OUTSIDE
from hpcprof.profiles.columns.unique import numbered
from hpcprof.profiles.timeline import Category, Ints, Timeline

MIN_LAUNCHES = 5
"""Minimum launches on each side of a comparison."""

TOTAL = "(total)"
"""The name in the row over all kernels."""


def slowdown(timeline: Timeline) -> Outcome:
    """Compare the kernels that communication overlaps with the same kernels running alone.

    Kernels are the same if they have the same name, grid and block and were launched in the same phase of a
    step. A phase counts if it has at least 5 launches on each side. If several phases count, each side's
    median is the mean of their medians, weighted by the number of overlapped launches. ``slowdown`` is the
    ratio of both medians. The first row is the total: the time of all these overlapped kernels over the time
    that they would have taken alone. The other rows are sorted by the time lost.

    The 95 % interval takes the steps as the sample, because the launches of one step resemble each other
    (`ClusteredMedians`). It is null if one step has nearly all launches of a side.
    """
    file = timeline.origin.path.name
    if not len(timeline.kernels):
        return none_in(timeline, "CUDA kernels")
    if not (timeline.kernels.category == Category.COMM).any():
        return none_in(timeline, "communication kernels")
    placed = place_kernels(timeline)
    if not placed.overlapped.any():
        return no_rows(f"no compute kernel of {file} is covered by communication to 90 % or more")
    rows = compare_kernels(placed)
    if not rows:
        return no_rows(
            f"no kernel of {file} ran at least {MIN_LAUNCHES} times while communication ran and at least "
            f"{MIN_LAUNCHES} times alone, in the same phase"
        )
    return Outcome(columns_of(rows))


def compare_kernels(placed: KernelInstances) -> list[dict[str, Any]]:
    """Return the row of the total and those of the kernels; none if nothing can be compared."""
    phases = int(placed.phase.max(initial=OUTSIDE)) + 2
    cell = placed.shape * phases + (placed.phase - OUTSIDE)
    rows = _comparable(placed, cell, len(placed.shapes) * phases)
    if not len(rows):
        return []
    # The groups alternate: first the launches of a cell that ran alone, then the overlapped ones.
    medians = ClusteredMedians.of(
        2 * cell[rows] + placed.overlapped[rows], placed.step[rows], placed.duration[rows]
    )
    shapes, number = numbered(medians.group // 2 // phases)
    columns = placed.shapes.columns()
    kernels = _ratios(medians, number)
    order = sorted(range(len(shapes)), key=lambda k: -kernels[k][0])
    (_, total), *_ = _ratios(medians, np.zeros_like(number))
    return [
        {"name": TOTAL, "grid": "", "block": ""} | total,
        *({key: column[shapes[k]] for key, column in columns.items()} | kernels[k][1] for k in order),
    ]


def _comparable(placed: KernelInstances, cell: Ints, cells: int) -> Ints:
    """Return the kernels on a side whose cell, a shape in a phase, has enough launches on both sides."""
    enough = (np.bincount(cell[placed.overlapped], minlength=cells) >= MIN_LAUNCHES) & (
        np.bincount(cell[placed.alone], minlength=cells) >= MIN_LAUNCHES
    )
    return np.flatnonzero(enough[cell] & (placed.overlapped | placed.alone))


def _ratios(medians: ClusteredMedians, row: Ints) -> list[tuple[float, dict[str, Any]]]:
    """Return, for each row, the time lost in ns and the columns ``alone_n`` to ``ci_high``.

    ``row`` has the row of each group. Each median counts as often as its cell has overlapped launches.
    """
    weight = np.repeat(medians.count[1::2], 2)
    time = weight * medians.median
    alone, overlapped = (np.bincount(row[side::2], time[side::2]) for side in (0, 1))
    alone_n, overlapped_n = (np.bincount(row[side::2], medians.count[side::2]) for side in (0, 1))
    # The gradient of the logarithm of the ratio.
    gradient = np.where(np.arange(len(row)) % 2, weight / overlapped[row], -weight / alone[row])
    half = medians.half_widths(row, gradient)
    ratio = overlapped / alone
    low, high = ratio * np.exp(-half), ratio * np.exp(half)
    return [
        (
            float(overlapped[i] - alone[i]),
            {
                "alone_n": int(alone_n[i]),
                "alone_med_ns": round(float(alone[i] / overlapped_n[i]), 1),
                "overlapped_n": int(overlapped_n[i]),
                "overlapped_med_ns": round(float(overlapped[i] / overlapped_n[i]), 1),
                "slowdown": round(float(ratio[i]), RATIO_DIGITS),
                "ci_low": None if np.isnan(low[i]) else round(float(low[i]), RATIO_DIGITS),
                "ci_high": None if np.isnan(high[i]) else round(float(high[i]), RATIO_DIGITS),
            },
        )
        for i in range(len(ratio))
    ]
