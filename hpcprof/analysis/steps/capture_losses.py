"""Losses that only a whole timeline shows: missing launch calls and operations, and cut steps."""

import re

import numpy as np

from hpcprof.analysis.account.places import PROFILER_STEP
from hpcprof.analysis.steps.earlier_work import earlier_work
from hpcprof.analysis.steps.lost_launches import launch_rows, lost_launches, lost_programs
from hpcprof.analysis.steps.phases import phases_of
from hpcprof.analysis.steps.step_detection import rows_named
from hpcprof.analysis.steps.step_ranges import steps_of
from hpcprof.analysis.steps.streams import NEVER, NO_CALL, launch_calls, streams
from hpcprof.common.units import format_ns
from hpcprof.profiles.columns.joins import launch_pairs
from hpcprof.profiles.columns.unique import name_matches
from hpcprof.profiles.losses import COUNTERS, Loss, LossKind, Subject
from hpcprof.profiles.timeline import AFTER_ALL, BEFORE_ALL, NO_CORRELATION, Ints, Mask, Timeline
from hpcprof.profiles.waiting_calls import launches_graph

MIGRATION = re.compile(r"\bUnified\b|\bUVM\b|migrat", re.IGNORECASE)
"""Names of moves of pages of unified memory."""

_COPY = re.compile(r"(?:cuda|cu|hip)Memcpy\w*")

_LEFT_OUT_KINDS = (LossKind.ROW, LossKind.EARLY, LossKind.OVERRUN)


def capture_losses(timeline: Timeline) -> list[Loss]:
    """Return the losses of a timeline, beside those that its reader counted."""
    parts = (_launch_losses, _execution_losses, _copy_losses, _program_losses, _cut_steps, _earlier_work)
    return [loss for part in parts for loss in part(timeline)]


def _launch_losses(timeline: Timeline) -> list[Loss]:
    """Count the operations without a recorded launch call, separately those launched before the capture.

    The driver moves pages of unified memory by itself, without a call.
    """
    lost = launch_calls(timeline) == NO_CALL
    lost[len(timeline.kernels) :][: len(timeline.memops)] &= ~name_matches(
        timeline, timeline.memops.name, MIGRATION.search
    )
    kind = LossKind.LAUNCH
    if not len(timeline.calls):
        kind = LossKind.UNTRACED
    elif not len(launch_pairs(timeline)[0]) and len(launch_rows(timeline)):
        kind = LossKind.UNLINKED
    earlier = _launched_before(timeline)
    ends = np.cumsum([len(timeline.kernels), len(timeline.memops)])
    return [
        Loss(loss_kind, subject, int(part.sum()), len(part))
        for loss_kind, rows in ((kind, lost & ~earlier), (LossKind.QUEUED, lost & earlier))
        for subject, part in zip(
            (Subject.KERNEL, Subject.MEMORY, Subject.GRAPH), np.split(rows, ends), strict=True
        )
        if part.any()
    ]


def _launched_before(timeline: Timeline) -> Mask:
    """Return a mask of the operations that were launched before the capture.

    They run before the first operation of their stream that has a launch call, since a stream keeps the
    order of its launches, and the numbers of their calls are below those of all recorded calls of their
    process, since profilers count calls up from 1.
    """
    call, (process, number) = launch_calls(timeline), timeline.of_operations("process", "correlation")
    calls = timeline.calls
    before: Mask = np.zeros(len(call), bool)
    for _, _, rows in streams(timeline):
        before[rows[: np.argmax(call[rows] != NO_CALL)]] = True
    for owner in np.unique(process[before]).tolist():
        recorded = calls.correlation[(calls.process == owner) & (calls.correlation != NO_CORRELATION)]
        before &= (process != owner) | (number < recorded.min(initial=NEVER))
    before &= number > 0
    return before


def _execution_losses(timeline: Timeline) -> list[Loss]:
    """Count the launch calls whose operations are missing, without those that were left out or failed.

    Kernels that were counted are not recorded, nor what was launched last if a kernel failed.
    """
    if any(loss.detail == COUNTERS for loss in timeline.origin.losses) and not timeline.operation_count:
        return []
    left_out = sum(
        loss.count
        for loss in timeline.origin.losses
        if (loss.kind in _LEFT_OUT_KINDS and loss.subject in (Subject.KERNEL, Subject.GRAPH))
        or (loss.kind is LossKind.FAILED and loss.subject is Subject.LAUNCH)
    )
    rows, launching = _before_failure(timeline, lost_launches(timeline)), launch_rows(timeline)
    is_graph_launch = name_matches(timeline, timeline.calls.name, launches_graph)
    subject = Subject.LAUNCH
    if timeline.operation_count and is_graph_launch[rows].all():
        subject, launching = Subject.GRAPH, launching[is_graph_launch[launching]]
    lost = len(rows) - left_out
    return [Loss(LossKind.MISSING, subject, lost, len(launching))] if lost > 0 else []


def _before_failure(timeline: Timeline, rows: Ints) -> Ints:
    """Return the rows of calls; if a kernel failed, only those before the last call whose work ran."""
    failed = any(
        loss.kind is LossKind.FAILED and loss.subject is Subject.CALL for loss in timeline.origin.losses
    )
    starts = timeline.calls.start
    last = starts[launch_pairs(timeline)[1]].max(initial=BEFORE_ALL) if failed else AFTER_ALL
    return rows[starts[rows] < last]


def _copy_losses(timeline: Timeline) -> list[Loss]:
    """Count the calls that copy, without any operation, in a profile without memory operations."""
    if len(timeline.memops) or not timeline.operation_count:
        return []
    calls = np.flatnonzero(name_matches(timeline, timeline.calls.name, _COPY.fullmatch))
    lost = len(_before_failure(timeline, calls[~np.isin(calls, launch_pairs(timeline)[1])]))
    return [Loss(LossKind.MISSING, Subject.COPY, lost, len(calls))] if lost else []


def _program_losses(timeline: Timeline) -> list[Loss]:
    """Count the executions of XLA's programs that launch nothing."""
    lost, executions = lost_programs(timeline)
    return [Loss(LossKind.MISSING, Subject.PROGRAM, len(lost), executions)] if len(lost) else []


def _cut_steps(timeline: Timeline) -> list[Loss]:
    """Return the losses of a capture that began or ended inside a step.

    It did if a step is still open or left out as empty, or if the thread of the steps has the last phases of
    a step before the first one, or the first phases of a step after the last one.
    """
    steps = steps_of(timeline)
    if not len(steps) or steps.by_calls:
        return []
    ranges, host = timeline.ranges, steps.ranges
    owner, rows = phases_of(timeline, steps)
    whole = ranges.name[_by_start(timeline, rows[owner == 0])].tolist()
    outside = np.flatnonzero(
        (ranges.process == host.process[0]) & (ranges.thread == host.thread[0]) & np.isin(ranges.name, whole)
    )
    before = ranges.name[_by_start(timeline, outside[ranges.end[outside] <= host.start[0]])].tolist()
    after = ranges.name[_by_start(timeline, outside[ranges.start[outside] >= host.end[-1]])].tolist()
    cut = (ranges.closed == 0) | ((steps.name == PROFILER_STEP) & (ranges.start >= host.end[-1]))
    is_open = bool(np.any(cut & rows_named(timeline, steps.name)))
    began = 0 < len(before) < len(whole) and whole[-len(before) :] == before
    ended = is_open or (0 < len(after) < len(whole) and whole[: len(after)] == after)
    return [
        Loss(LossKind.STEP, Subject.CAPTURE, detail=how)
        for how, cut in (("began", began), ("ended", ended))
        if cut
    ]


def _earlier_work(timeline: Timeline) -> list[Loss]:
    since, until = earlier_work(timeline)
    return [Loss(LossKind.BEFORE, Subject.CAPTURE, detail=format_ns(until - since))] if until else []


def _by_start(timeline: Timeline, rows: Ints) -> Ints:
    return rows[np.argsort(timeline.ranges.start[rows], kind="stable")]
