"""Each compute kernel that ran: its phase, and the time of communication during it."""

from functools import partial

import msgspec
import numpy as np

from hpcprof.analysis.gpu_time.device_time import category_intervals
from hpcprof.analysis.steps.phases import phases_of
from hpcprof.analysis.steps.step_ranges import OUTSIDE, shown_name, steps_of
from hpcprof.analysis.steps.streams import NEVER, launch_starts
from hpcprof.analysis.summaries.kernels import KernelShapes, number_kernel_shapes
from hpcprof.profiles.columns.intervals import coverage
from hpcprof.profiles.columns.ordering import as_of, ascends
from hpcprof.profiles.columns.unique import distinct, number_texts
from hpcprof.profiles.timeline import BEFORE_ALL, Category, Ints, Kernels, Mask, Ranges, Timeline

OVERLAPPED_SHARE = 0.9
"""Minimum share of a kernel that communication covers, for a kernel that counts as overlapped."""

_BLOCKS = 10
"""Number of blocks of kernels that a capture without steps is cut into: they are then the sample."""


class KernelInstances(msgspec.Struct, frozen=True):
    """The compute kernels that take time, in the order of their starts; arrays have shape (n,)."""

    shapes: KernelShapes
    shape: Ints
    """The row of each kernel in ``shapes``."""
    phase: Ints
    """The index of each kernel's phase in ``phases``; `OUTSIDE` if it was launched outside all phases."""
    step: Ints
    """The number of the last step that had begun when the kernel was launched; 0 before all steps. Without
    two steps it is the number of one of 10 blocks of consecutive kernels.
    """
    duration: Ints
    """In ns."""
    covered: Ints
    """The time of communication on the same device during the kernel, in ns."""
    alone: Mask
    """True if no communication ran during the kernel."""
    overlapped: Mask
    """True if communication covers it to 90 % or more. A kernel may be neither alone nor overlapped."""
    process: Ints
    launched: Ints
    """The process that launched the kernel, and the start of the launch call in ns."""
    phases: tuple[str, ...]
    """The names of the phases, ascending."""


def place_kernels(timeline: Timeline) -> KernelInstances:
    """Return the compute kernels of a timeline with their phases.

    A kernel belongs to the phase that was open on any thread of its process when its launch call began. This
    is the rule of `hpcprof.analysis.steps.gpu_projection.project`.
    """
    all_kernels = timeline.kernels
    shapes, shape = number_kernel_shapes(timeline)
    rows = np.flatnonzero((all_kernels.category == Category.COMP) & (all_kernels.end > all_kernels.start))
    if not ascends(all_kernels.start):
        rows = rows[np.argsort(all_kernels.start[rows], kind="stable")]
    duration = all_kernels.end[rows] - all_kernels.start[rows]
    covered = _covered_time(all_kernels, rows)
    touched = np.flatnonzero(covered)
    overlapped = np.zeros(len(rows), bool)
    overlapped[touched] = covered[touched] >= OVERLAPPED_SHARE * duration[touched]
    # Kernels come first among the operations. No range is open at `NEVER`.
    launched = launch_starts(timeline)[rows]
    _, phases = phases_of(timeline, steps_of(timeline))
    names, phase_number = number_texts(timeline, timeline.ranges.name[phases], partial(shown_name, timeline))
    process = all_kernels.process[rows]
    in_phase = open_range(timeline.ranges.take(phases), process, launched)
    return KernelInstances(
        shapes=shapes,
        shape=shape[rows],
        phase=np.append(phase_number, OUTSIDE)[in_phase],
        step=_last_step(timeline, process, np.where(launched == NEVER, all_kernels.start[rows], launched)),
        duration=duration,
        covered=covered,
        alone=covered == 0,
        overlapped=overlapped,
        process=process,
        launched=launched,
        phases=tuple(map(str, names)),
    )


def open_range(ranges: Ranges, process: Ints, moment: Ints) -> Ints:
    """Return the row of the range that is open in the same process at each moment, or `OUTSIDE`.

    If several are open, the one that began last is returned.
    """
    result = np.full(len(moment), OUTSIDE, np.int64)
    for number in distinct(process).tolist():
        rows = np.flatnonzero(ranges.process == number)
        rows = rows[np.argsort(ranges.start[rows], kind="stable")]
        in_process = process == number
        ends = np.append(BEFORE_ALL, ranges.end[rows])
        last, end = as_of(ranges.start[rows], moment[in_process], np.append(OUTSIDE, rows), ends)
        last[moment[in_process] > end] = OUTSIDE
        result[in_process] = last
    return result


def _last_step(timeline: Timeline, process: Ints, moment: Ints) -> Ints:
    """Return the number of the last step that its process had begun at each moment, from 1; 0 before."""
    steps = steps_of(timeline).ranges
    if len(steps.start) < 2:
        return np.arange(len(moment)) * _BLOCKS // max(len(moment), 1)
    result = np.zeros(len(moment), np.int64)
    for number in distinct(process).tolist():
        in_process = process == number
        begun = np.sort(steps.start[steps.process == number])
        result[in_process] = np.searchsorted(begun, moment[in_process], side="right")
    return result


def _covered_time(kernels: Kernels, rows: Ints) -> Ints:
    """Return the time of communication on the device of each of these kernels during the kernel, in ns."""
    start, end, device = kernels.start[rows], kernels.end[rows], kernels.device[rows]
    covered = np.zeros(len(rows), np.int64)
    for number in distinct(device).tolist():
        mask = device == number
        covered[mask] = coverage(start[mask], end[mask], category_intervals(kernels, Category.COMM, number))
    return covered
