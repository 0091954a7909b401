"""The wall time of steps, which runs from front to front, and the parts of it that belong to their phases.

The front of a step is the start of the first operation on the GPU that any thread of the process launched
inside it. Between two fronts lies everything that a step costs, also the time in which the host works and the
GPU waits.
"""

import msgspec
import numpy as np

from hpcprof.analysis.account.places import WHOLE_CAPTURE
from hpcprof.analysis.steps.earlier_work import earlier_work
from hpcprof.analysis.steps.gpu_projection import project
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.analysis.steps.streams import NEVER, launch_starts
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.unique import in_ranges
from hpcprof.profiles.timeline import AFTER_ALL, BEFORE_ALL, Ints, Mask, Ranges, Timeline

_MIN_HOST_WORK_NS = 100_000
"""Minimum time from the start of a single step to its first operation that is work of the host: less is the
latency of a launch."""

_MIN_STEPS = 3
"""Minimum number of steps to see whether they begin ahead of the work of those before."""

GPU_SPAN_PCT = 2
"""A report gives the span on the GPU beside the wall time where both differ by more than this percentage."""


class StepTimes(msgspec.Struct, frozen=True):
    """The intervals of the steps of a timeline in their order; arrays have shape (steps,)."""

    start: Ints
    end: Ints
    """The interval of the step's wall time."""
    gpu_start: Ints
    gpu_end: Ints
    """From the start of the first to the end of the last operation that was launched in the step; equal if
    there is none.
    """
    on_gpu: Mask
    """True if the step launched work on the GPU. The others are measured on the host."""


def begins_ahead(front: Ints, work_end: Ints) -> bool:
    """Return whether the median step begins more than a step before the work of earlier steps has ended.

    The host of such a program runs ahead, and copies the next input on a stream of its own. ``front`` is
    where each step begins, and ``work_end`` when its work and all earlier work has ended; shape (n,).
    """
    if len(front) < _MIN_STEPS:
        return False
    return bool(np.median(work_end[:-1] - front[1:]) > np.median(np.diff(work_end)))


def wall_intervals(
    front: Ints, last: Ints, on_gpu: Mask, host_start: Ints, host_end: Ints
) -> tuple[Ints, Ints]:
    """Return the start and the end of each step's wall time, shape (n,).

    A step runs from its front to the front of the next step. The last step runs to the end of its last
    operation or of its range on the host, whichever is later, and so does a step before one without work on
    the GPU, but not beyond the next front. A step without work on the GPU is its range on the host. Steps
    that begin far ahead (`begins_ahead`) run from the end of the work before them.

    ``front`` and ``last`` are the start of the first and the end of the last operation of each step; they are
    ignored of steps without any, which ``on_gpu`` tells. ``host_start`` and ``host_end`` are the ranges of
    the steps on the host, by start. All have shape (n,).
    """
    # A damaged profile may have ranges that end before they start.
    start, end = host_start.copy(), np.maximum(host_start, host_end)
    rows = np.flatnonzero(on_gpu)
    if len(rows):
        # On another stream, the first operation of a step may overtake that of the step before.
        start[rows] = np.maximum.accumulate(front[rows])
        work_end = np.maximum.accumulate(last[rows])
        if begins_ahead(start[rows], work_end):
            start[rows[1:]] = np.maximum(start[rows[1:]], work_end[:-1])
        following = np.append(start[rows[1:]], AFTER_ALL)
        is_next = np.append(np.diff(rows) == 1, False)
        own_end = np.maximum(np.maximum(last[rows], host_end[rows]), start[rows])
        end[rows] = np.where(is_next, following, np.minimum(own_end, following))
    return start, end


@computed_once
def step_intervals(timeline: Timeline) -> StepTimes:
    """Return the intervals of the steps of a timeline, on the profile's clock.

    No step begins before the GPU has ended the work that was launched before the capture. A single step with
    work on the GPU begins with its range, or when the GPU has ended earlier work: its host's first work lies
    behind no other front.
    """
    steps = steps_of(timeline)
    ranges = steps.ranges
    gpu_start, gpu_end, on_gpu = (
        _own_operations(timeline, ranges) if steps.by_operations(timeline) else project(timeline, ranges)
    )
    until = earlier_work(timeline)[1]
    gpu_start = np.where(on_gpu & (gpu_end > until), np.maximum(gpu_start, until), gpu_start)
    front = gpu_start
    if np.count_nonzero(on_gpu) == 1 and steps.name != WHOLE_CAPTURE:
        first = int(gpu_start[on_gpu][0])
        operation_start, operation_end = timeline.of_operations("start", "end")
        earlier_end = operation_end[operation_start < first].max(initial=until)
        begin = np.maximum(ranges.start, earlier_end)
        front = np.where(on_gpu & (gpu_start - begin >= _MIN_HOST_WORK_NS), begin, gpu_start)
    start, end = wall_intervals(front, gpu_end, on_gpu, ranges.start, ranges.end)
    return StepTimes(start, end, gpu_start, gpu_end, on_gpu)


def _own_operations(timeline: Timeline, ranges: Ranges) -> tuple[Ints, Ints, Mask]:
    """Return the extents of steps by the operations that start in them, as `project` does by their launches.

    Each step begins with an operation.
    """
    start, end = timeline.of_operations("start", "end")
    step = np.searchsorted(ranges.start, start, side="right") - 1
    inside = (step >= 0) & (start < ranges.end[step])
    last = ranges.start.copy()
    np.maximum.at(last, step[inside], end[inside])
    return ranges.start, last, np.ones(len(ranges), bool)


class Segments(msgspec.Struct, frozen=True):
    """The time of a process, divided among its phases and what lies between them.

    Segments follow each other on the host: those with an odd number are the phases in the order of their
    starts, the others lie before, between and after them. Arrays have shape (2 * phases + 1,).
    """

    start: Ints
    """Time at which the segment takes over: the host begins it or, while operations of earlier segments
    still run, they have ended or its own first operation starts. It lasts until the next one takes over.
    """
    operation: Ints
    segment: Ints
    launched: Ints
    """The operations that the process launched, the segment of each and when its launch call began; shape
    (operations,).
    """


def divide_among_phases(timeline: Timeline, phases: Ranges) -> Segments:
    """Divide the time among phases of one process, sorted by start; where they overlap, the later one counts.

    While the GPU works, time belongs to the segment that launched the work; while it waits, to the segment
    that the host executes.
    """
    start = phases.start
    end = np.minimum(np.maximum(phases.end, start), np.append(start[1:], AFTER_ALL))
    host_start = np.concatenate(([BEFORE_ALL], np.column_stack((start, end)).ravel()))
    launched = launch_starts(timeline)
    (process,) = timeline.of_operations("process")
    operation = np.flatnonzero((launched != NEVER) & np.isin(process, phases.process[:1]))
    launched = launched[operation]
    segment = np.searchsorted(host_start, launched, side="right") - 1
    first, last = np.full(len(host_start), AFTER_ALL), np.full(len(host_start), BEFORE_ALL)
    starts, ends = timeline.of_operations("start", "end")
    np.minimum.at(first, segment, starts[operation])
    np.maximum.at(last, segment, ends[operation])
    before = np.append(BEFORE_ALL, np.maximum.accumulate(last)[:-1])
    takes_over = np.maximum.accumulate(np.minimum(first, np.maximum(host_start, before)))
    return Segments(takes_over, operation, segment, launched)


def time_in_segments(segments: Segments, times: StepTimes) -> tuple[Ints, Ints, Ints]:
    """Return the step, the segment and the length of each part into which segments divide the wall times."""
    first = np.maximum(np.searchsorted(segments.start, times.start, side="right") - 1, 0)
    count = np.maximum(np.searchsorted(segments.start, times.end, side="left") - first, 1)
    step = np.repeat(np.arange(len(first)), count)
    segment = in_ranges(first, count)
    start = np.where(segment > 0, segments.start[segment], BEFORE_ALL)
    end = np.append(segments.start[1:], AFTER_ALL)[segment]
    length = np.minimum(end, times.end[step]) - np.maximum(start, times.start[step])
    return step, segment, np.maximum(length, 0)
