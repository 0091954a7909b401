"""Launch calls whose operations are not in the profile, and the steps that they make unknown."""

import re

import numpy as np

from hpcprof.analysis.steps.gpu_projection import launches, on_thread
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.joins import launch_pairs
from hpcprof.profiles.columns.unique import name_matches, rows_by_key
from hpcprof.profiles.timeline import AFTER_ALL, BEFORE_ALL, Ints, Mask, Timeline

_LAUNCH = re.compile(r"(?:(?:cuda|cu|hip)(?:Ext|Module|Graph)*|(?:ur|pi)EnqueueKernel)Launch(?!HostFunc)\w*")
"""Calls of CUDA, HIP and SYCL's runtimes that launch a kernel, or a graph of them."""
_BEGIN_CAPTURE = re.compile(r"(?:cuda|cu|hip)StreamBeginCapture\w*")
_END_CAPTURE = re.compile(r"(?:cuda|cu|hip)StreamEndCapture\w*")

_PROGRAM = re.compile("(?:TSL:)?XlaModule:")

_STOP = re.compile(r"(?:cuda|cu|hip)ProfilerStop\w*")
"""The call that ends a capture; what is launched after the last one is recorded in part."""

_END_NS = 1_000_000
"""Minimum time before the end of a capture in which a launched operation may still wait or run."""


def launch_rows(timeline: Timeline) -> Ints:
    """Return the rows of the calls that launch kernels or graphs, by their names."""
    return np.flatnonzero(name_matches(timeline, timeline.calls.name, _LAUNCH.fullmatch))


@computed_once
def lost_launches(timeline: Timeline) -> Ints:
    """Return the rows of launch calls without an operation in the profile, ascending.

    Calls while a stream is captured into a graph launch nothing, and those at the end of the capture may have
    operations that ended after it. A call inside another one, or around it, counts with it.
    """
    lost, paired = _unrecorded_launches(timeline)
    if not len(lost) or not len(paired):
        return lost
    calls = timeline.calls
    stopped = calls.start[name_matches(timeline, calls.name, _STOP.fullmatch)].max(initial=BEFORE_ALL)
    is_lost: Mask = ~_at_the_end(timeline, lost, paired)
    if stopped > BEFORE_ALL:
        is_lost &= calls.start[lost] <= stopped
    return lost[is_lost]


def _unrecorded_launches(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the calls that launched something of which no operation is recorded, and those with one."""
    lost, paired = _without_operation(timeline)
    if not len(lost) or (timeline.operation_count and not len(paired)):
        return np.empty(0, np.int64), paired
    lost = lost[~_nested_calls(timeline, lost, paired)]
    return lost[~_calls_in_capture(timeline, lost)], paired


def captured_launches(timeline: Timeline) -> int:
    """Return the number of launch calls that were captured into a graph, and so launched nothing."""
    lost, _ = _without_operation(timeline)
    return int(np.count_nonzero(_calls_in_capture(timeline, lost)))


def _without_operation(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the launch calls that have no operation, and all calls that have one."""
    rows, with_operation = launch_rows(timeline), np.zeros(len(timeline.calls), bool)
    with_operation[launch_pairs(timeline)[1]] = True
    return rows[~with_operation[rows]], np.flatnonzero(with_operation)


def _nested_calls(timeline: Timeline, lost: Ints, paired: Ints) -> Mask:
    """Return a mask of the calls that lie inside, or around, a call of their thread that has an operation."""
    calls = timeline.calls
    nested = np.zeros(len(lost), bool)
    threads = dict(rows_by_key(calls.process[paired], calls.thread[paired]))
    for key, rows in rows_by_key(calls.process[lost], calls.thread[lost]):
        if key not in threads:
            continue
        launching_calls = paired[threads[key]]
        launching_calls = launching_calls[np.argsort(calls.start[launching_calls], kind="stable")]
        thread_calls = lost[rows]
        first = np.searchsorted(calls.start[launching_calls], calls.start[thread_calls])
        inside = np.searchsorted(calls.start[launching_calls], calls.end[thread_calls]) > first
        is_nested = (first > 0) & (calls.end[launching_calls[first - 1]] >= calls.end[thread_calls])
        nested[rows] = inside | is_nested
    return nested


def _calls_in_capture(timeline: Timeline, lost: Ints) -> Mask:
    """Return a mask of the calls made while a thread of their process captures a stream into a graph."""
    calls = timeline.calls
    begins, ends = (
        np.flatnonzero(name_matches(timeline, calls.name, pattern.fullmatch))
        for pattern in (_BEGIN_CAPTURE, _END_CAPTURE)
    )
    captured = np.zeros(len(lost), bool)
    for process in np.unique(calls.process[begins]).tolist():
        in_process = calls.process[lost] == process
        start = np.sort(calls.start[begins[calls.process[begins] == process]])
        stop = np.sort(calls.end[ends[calls.process[ends] == process]])
        # A capture without an end lasts for ever.
        end = np.append(stop, AFTER_ALL)[np.searchsorted(stop, start)]
        at = np.searchsorted(start, calls.start[lost], side="right") - 1
        captured |= in_process & (at >= 0) & (calls.start[lost] <= end[at])
    return captured


def _at_the_end(timeline: Timeline, lost: Ints, paired: Ints) -> Mask:
    """Return a mask of the calls that may have operations that had not ended when the capture did.

    These are calls after the last one with an operation, if the GPU was busy, or the call made, as shortly
    before the end as the longest operation takes.
    """
    calls = timeline.calls
    start, end = timeline.of_operations("start", "end")
    stop = int(calls.end.max())
    shortly = max(int((end - start).max()), _END_NS)
    busy_until = max(int(end.max()), 0)
    after = calls.start[lost] > int(calls.start[paired].max())
    return after & (stop - np.maximum(calls.start[lost], busy_until) <= shortly)


def lost_programs(timeline: Timeline) -> tuple[Ints, int]:
    """Return the ranges of executions of XLA's programs that launch nothing, if others do, and all of them.

    The profile may lack GPUs.
    """
    ranges = timeline.ranges
    rows = np.flatnonzero(name_matches(timeline, ranges.name, _PROGRAM.match) & (ranges.closed == 1))
    lost = rows[on_thread(ranges.take(rows), launches(timeline)).launches == 0]
    return lost[: len(lost) if len(lost) < len(rows) else 0], len(rows)


@computed_once
def steps_with_lost_launches(timeline: Timeline) -> Mask:
    """Return a mask of the steps that launched work without an operation in the profile, shape (steps,).

    Launches at the end of the capture are no loss, but make the step as unknown.
    """
    ranges, (lost, _) = steps_of(timeline).ranges, _unrecorded_launches(timeline)
    programs, _ = lost_programs(timeline)
    moments = np.sort(np.concatenate((timeline.calls.start[lost], timeline.ranges.start[programs])))
    return np.searchsorted(moments, ranges.end, side="right") > np.searchsorted(moments, ranges.start)
