"""Each compute kernel that ran: in which phase, and how much communication ran beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.framework.text_columns import number_texts
from hpcprof.analysis.gpu_time.device_time import category_intervals
from hpcprof.analysis.steps.phases import phases_of
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.analysis.steps.streams import launch_starts
from hpcprof.analysis.summaries.kernels import KernelShapes, number_kernel_shapes
from hpcprof.profiles.columns.intervals import coverage
from hpcprof.profiles.columns.ordering import as_of, ascends
from hpcprof.profiles.columns.unique import distinct
from hpcprof.profiles.timeline import Category, Ints, Kernels, Ranges, Timeline

NONE = -1
OVERLAPPED = 0.9
"""A kernel counts as overlapped when communication covers at least this share of it."""

_EARLIEST = int(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class Instances:
    """The compute kernels that take time, in the order of their starts; arrays have shape (n,).

    ``shape`` numbers the rows of ``shapes``, ``phase`` the ``phases``, their names in ascending order; it is
    `NONE` for a kernel that was launched outside.
    ``covered`` is for how long communication ran on its device meanwhile, in ns. ``alone`` marks kernels
    beside which none ran, ``overlapped`` those that it covers to 90 % or more; a kernel may be neither.
    ``process`` made the call that launched it, at the moment ``launched``.
    """

    shapes: KernelShapes
    shape: Ints
    phase: Ints
    duration: Ints
    covered: Ints
    alone: NDArray[np.bool_]
    overlapped: NDArray[np.bool_]
    process: Ints
    launched: Ints
    phases: tuple[str, ...]


def instances(timeline: Timeline) -> Instances:
    """Place the compute kernels of a timeline.

    A kernel belongs to the phase that was open, on any thread of its process, when the
    call that launched it began: the rule of `hpcprof.analysis.steps.step_ranges.measure`.
    """
    everything = timeline.kernels
    shapes, shape = number_kernel_shapes(timeline)
    rows = np.flatnonzero((everything.category == Category.COMP) & (everything.end > everything.start))
    if not ascends(everything.start):
        rows = rows[np.argsort(everything.start[rows], kind="stable")]
    duration = everything.end[rows] - everything.start[rows]
    covered = _covered(everything, rows)
    beside = np.flatnonzero(covered)
    overlapped = np.zeros(len(rows), bool)
    overlapped[beside] = covered[beside] >= OVERLAPPED * duration[beside]
    # Kernels are the first of the operations, and no range is open at the end of time.
    launched = launch_starts(timeline)[rows]
    _, phases = phases_of(timeline, steps_of(timeline))
    names, phase_number = number_texts(timeline, timeline.ranges.name[phases])
    process = everything.process[rows]
    in_phase = open_range(timeline.ranges.take(phases), process, launched)
    return Instances(
        shapes=shapes,
        shape=shape[rows],
        phase=np.append(phase_number, NONE)[in_phase],
        duration=duration,
        covered=covered,
        alone=covered == 0,
        overlapped=overlapped,
        process=process,
        launched=launched,
        phases=tuple(map(str, names)),
    )


def open_range(ranges: Ranges, process: Ints, moment: Ints) -> Ints:
    """Return the row of the range of the same process that is open at each moment, or `NONE`.

    Of several the one that began last is taken.
    """
    result = np.full(len(moment), NONE, np.int64)
    processes = distinct(process).tolist()
    for number in processes:
        rows = np.flatnonzero(ranges.process == number)
        rows = rows[np.argsort(ranges.start[rows], kind="stable")]
        own = process == number if len(processes) > 1 else slice(None)
        ends = np.append(_EARLIEST, ranges.end[rows])
        last, end = as_of(ranges.start[rows], moment[own], np.append(NONE, rows), ends)
        last[moment[own] > end] = NONE
        result[own] = last
    return result


def _covered(kernels: Kernels, rows: Ints) -> Ints:
    """Return for how long communication ran on the device of each of these kernels while it did."""
    start, end, device = kernels.start[rows], kernels.end[rows], kernels.device[rows]
    covered = np.zeros(len(rows), np.int64)
    devices = distinct(device).tolist()
    for number in devices:
        own = device == number if len(devices) > 1 else slice(None)
        covered[own] = coverage(start[own], end[own], category_intervals(kernels, Category.COMM, number))
    return covered
