"""One check of times between every reader and its Timeline: nothing impossible reaches an analysis.

1. Rows that lack a stamp, or end before they start, are left out. CUPTI writes 0 for a stamp that it could
   not take ("If both start and end are 0, timestamp information could not be collected", cupti_activity.h).
2. A GPU's clock that is off by a constant is shifted. No operation starts before its launch call, and none
   ends after a call has returned that waited for the device: the two sides bound the shift.
3. Single operations that start before their launch are left out.
4. An operation that runs over a whole successor on its own stream is left out, where streams keep their
   order, unless it is a kernel of usual length; elsewhere, a kernel that overlaps its successor and takes far
   longer than the same kernel on the same grid; and an operation that ends after everything else on its
   stream at the end of the capture.
5. A call, operator or range of the host that lasts beyond the capture is left out if its thread went on with
   others of its name meanwhile.
6. Ranges that never end, though others of their name follow, are counted; the last may end after the capture.

Rows left out or moved become losses of the timeline's origin. Kernels that are left out for their ends still
begin steps (`Timeline.unended_kernels`).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hpcprof.common.units import format_ns
from hpcprof.profiles.columns.joins import launch_pairs
from hpcprof.profiles.columns.ordering import ascends
from hpcprof.profiles.columns.unique import distinct, name_matches, numbered_rows, rows_by_key
from hpcprof.profiles.losses import Loss, LossKind, Subject, losses
from hpcprof.profiles.timeline import (
    ApiCalls,
    Category,
    Floats,
    IntColumns,
    Ints,
    Kernels,
    Mask,
    Operations,
    Synchronizations,
    SyncKind,
    Timeline,
    concatenate,
    has_plausible_times,
    plausible_stamps,
)
from hpcprof.profiles.waiting_calls import waits_for_device, waits_for_stream

GPU_TABLES = {"kernels": Subject.KERNEL, "memops": Subject.MEMORY, "graphs": Subject.GRAPH}
"""The tables that make up `Timeline.operations`, in its order."""

PROCESS_TABLES = {
    **GPU_TABLES,
    "calls": Subject.CALL,
    "ranges": Subject.RANGE,
    "collectives": Subject.COLLECTIVE,
    "operators": Subject.OPERATOR,
    "synchronizations": Subject.SYNCHRONIZATION,
    "host_collectives": Subject.COLLECTIVE,
    "counters": Subject.COUNTER,
    "mpi_calls": Subject.MPI_CALL,
    "mpi_operations": Subject.MPI_OPERATION,
    "os_calls": Subject.OS_CALL,
}
"""The tables whose rows have a process, with the subjects of their losses."""

_TABLES = {
    **PROCESS_TABLES,
    "gpu_marks": Subject.MARK,
    "modules": Subject.MODULE,
    "functions": Subject.FUNCTION,
    "cpu_counters": Subject.COUNTER,
    "device_samples": Subject.SAMPLE,
}
_THREAD_TABLES = ("calls", "ranges", "operators", "mpi_calls")
_DEVICE_TABLES = ("kernels", "memops", "graphs", "gpu_marks", "counters", "unended_kernels")

_FAR_RATIO, _FAR_NS = 100, 3_600_000_000_000
"""Minimum first stamp, over the extent of a capture and in ns, of a clock on which 0 is no time."""
_CLOCK_TOLERANCE_NS = 20_000
"""Tolerated error of a GPU's clock; a smaller contradiction between clocks is left as recorded."""
_USUAL_LAUNCH_NS = 5_000
"""Time from a launch call to the start of its operation on an idle GPU."""
_MIN_EARLY_OPERATIONS = 5
"""Minimum early operations that prove a wrong clock instead of wrong rows; all if there are fewer."""
_UNORDERED_SHARE = 0.25
"""Minimum share of operations over a successor that shows a stream without an order."""
_OVERLAP_TOLERANCE_NS = 1_000
"""Tolerated overlap with a successor's end, which rounding of stamps explains."""
_MAX_QUEUED_OPERATIONS = 1_024
"""Maximum operations queued on a stream after the host's last event: a launch beyond them waits."""
_OUTLIER_RATIO = 4
"""Minimum ratio to the usual share of the GPU's time for a kernel that runs into its successor on a queue.

Kernels that share caches badly take up to twice their share, and their work varies up to twofold: of 100
clean captures that `benchmarks/overruns.py` simulates none has a kernel left out.
"""
_MIN_OTHERS = 5
_MAX_USUAL_RATIO = 1.5
"""Maximum ratio to the median time of a kernel for a usual one."""


def with_possible_times(timeline: Timeline) -> Timeline:
    """Return a timeline, as a reader built it, without impossible times; the same one if it has none."""
    for check in (
        _without_impossible_stamps,
        _without_late_host_events,
        _with_aligned_clocks,
        _without_overruns,
        _without_late_operations,
        _with_open_ranges,
    ):
        timeline = check(timeline)
    return timeline


def _without_impossible_stamps(timeline: Timeline) -> Timeline:
    plausible_rows = {}
    for name in _TABLES:
        table = getattr(timeline, name)
        if len(table):
            plausible_rows[name] = has_plausible_times(table.start, table.end)
            if name in GPU_TABLES or name == "calls":
                plausible_rows[name] &= (table.start != 0) | (table.end != 0)
    plausible_rows = _without_far_zeros(timeline, plausible_rows)
    lost = [
        loss
        for name, mask in plausible_rows.items()
        if not mask.all()
        for loss in _losses_of_times(
            getattr(timeline, name).start, getattr(timeline, name).end, mask, _TABLES[name]
        )
    ]
    return _without_rows(timeline, plausible_rows, lost)


def possible_rows(columns: IntColumns, subject: Subject) -> tuple[IntColumns, list[Loss]]:
    """Leave out the rows without a possible ``start`` and ``end``, where a reader orders them by time."""
    is_plausible = has_plausible_times(columns["start"], columns["end"])
    if is_plausible.all():
        return columns, []
    lost = _losses_of_times(columns["start"], columns["end"], is_plausible, subject)
    return {name: values[is_plausible] for name, values in columns.items()}, lost


def _losses_of_times(start: Ints, end: Ints, placed: Mask, subject: Subject) -> list[Loss]:
    """Count the rows that a mask leaves out, by the field that is missing or impossible."""
    bad_start = ~placed & (~plausible_stamps(start) | (start == 0))
    bad_end = ~placed & ~bad_start & (~plausible_stamps(end) | (end < start))
    fields = {"start": bad_start, "end": bad_end, "duration": ~placed & ~bad_start & ~bad_end}
    return losses(
        LossKind.ROW, subject, {name: np.count_nonzero(mask) for name, mask in fields.items()}, len(start)
    )


def _without_far_zeros(timeline: Timeline, plausible_rows: dict[str, Mask]) -> dict[str, Mask]:
    """Leave out rows that start at 0 too, where all others are far later: their clock began long before."""
    zero = {name: getattr(timeline, name).start == 0 for name in plausible_rows}
    if not any(mask.any() for mask in zero.values()):
        return plausible_rows
    nonzero = {
        name: getattr(timeline, name).take(plausible_rows[name] & ~zero[name]) for name in plausible_rows
    }
    starts = [int(table.start.min()) for table in nonzero.values() if len(table)]
    ends = [int(table.end.max()) for table in nonzero.values() if len(table)]
    if not starts or min(starts) <= max(_FAR_NS, _FAR_RATIO * (max(ends) - min(starts))):
        return plausible_rows
    return {name: mask & ~zero[name] for name, mask in plausible_rows.items()}


def _without_late_host_events(timeline: Timeline) -> Timeline:
    """Leave out host events that last beyond the capture over later ones of their name on their thread."""
    starts = [int(table.start.max()) for name in _TABLES if len(table := getattr(timeline, name))]
    last, masks = max(starts, default=0), {}
    for name in _THREAD_TABLES:
        table = getattr(timeline, name)
        inside, masks[name] = table.end <= last, np.ones(len(table), bool)
        closed = table.closed == 1 if name == "ranges" else True
        beyond = np.flatnonzero(~inside & closed)
        for _, group in rows_by_key(table.process[beyond], table.thread[beyond], table.name[beyond]):
            rows, first = beyond[group], table.take(beyond[group[:1]])
            same = inside & (table.name == first.name) & (table.thread == first.thread)
            same &= table.process == first.process
            if np.count_nonzero(same) >= _MIN_OTHERS:
                latest, longest = table.start[same].max(), (table.end[same] - table.start[same]).max()
                masks[name][rows] = table.start[rows] >= latest
                masks[name][rows] |= table.end[rows] <= last + _OUTLIER_RATIO * longest
    return _without_masked(timeline, masks, LossKind.OVERRUN)


def _with_aligned_clocks(timeline: Timeline) -> Timeline:
    """Shift the clock of each GPU between its launches and waits, and leave out what is still too early."""
    lag, call_start = _launch_lags(timeline)
    if not len(lag):
        return timeline
    (device,) = timeline.of_operations("device")
    rows = np.flatnonzero(lag != _UNKNOWN_NS)
    shift = {}
    for number in distinct(device[rows]).tolist():
        on_device = rows[device[rows] == number]
        latest = _latest_shift(timeline, number, on_device, call_start[on_device])
        if shift_ns := _clock_shift(timeline, on_device, lag[on_device], call_start[on_device], latest):
            shift[number] = shift_ns
            lag[on_device] += shift_ns
    if shift:
        timeline = _shift_gpus(timeline, shift)
    early = (lag < -_CLOCK_TOLERANCE_NS) & (lag != _UNKNOWN_NS)
    return _without_operations(timeline, ~early, LossKind.EARLY) if early.any() else timeline


_UNKNOWN_NS = int(np.iinfo(np.int64).min)


def _launch_lags(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the lag of each operation behind its launch call, and the call's start.

    A lag is `_UNKNOWN_NS` without a recorded call.
    """
    if not timeline.operation_count or not len(timeline.calls):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    (start,) = timeline.of_operations("start")
    operation, call = launch_pairs(timeline)
    call_start = np.full(len(start), np.iinfo(np.int64).max)
    # The last assignment wins: of nested calls, the outer call comes first.
    call_start[operation[::-1]] = timeline.calls.start[call[::-1]]
    lag = np.full(len(start), _UNKNOWN_NS)
    lag[operation] = start[operation] - call_start[operation]
    return lag, call_start


def _is_constant(timeline: Timeline, rows: Ints, call_start: Ints, early: Mask, offset: int) -> bool:
    """Return whether a GPU's clock, and not wrong stamps of rows, explains operations before their launch.

    A constant offset keeps the order of the launches on each stream, and makes all operations early, at least
    most of them, whose stream was idle when they were launched.
    """
    start, end, stream = (column[rows] for column in timeline.of_operations("start", "end", "stream"))
    order = np.lexsort((call_start, stream))
    before, after = order[:-1], order[1:]
    in_stream = stream[before] == stream[after]
    disordered = in_stream & (start[after] < start[before] - _CLOCK_TOLERANCE_NS)
    idle = after[in_stream & (end[before] + offset < call_start[after])]
    return not disordered.any() and 2 * np.count_nonzero(early[idle]) >= len(idle)


def _clock_shift(timeline: Timeline, rows: Ints, lag: Ints, call_start: Ints, latest: int | None) -> int:
    """Return the shift of a clock in ns, given lags behind launches; 0 if it is right or no shift mends it.

    ``latest`` is the largest shift with which every operation ends before the call that waited for it.
    """
    early = lag < -_CLOCK_TOLERANCE_NS
    if early.any():
        # Fewer odd rows among many must not decide.
        fewest = min(_MIN_EARLY_OPERATIONS, len(lag)) - 1
        needed = -int(np.partition(lag, fewest)[fewest])
        constant = needed > _CLOCK_TOLERANCE_NS and _is_constant(timeline, rows, call_start, early, needed)
        if not constant or (latest is not None and needed > latest + _CLOCK_TOLERANCE_NS):
            return 0
        room = _USUAL_LAUNCH_NS if latest is None else min(_USUAL_LAUNCH_NS, max(0, latest - needed) // 2)
        return needed + room
    if latest is not None and latest < -_CLOCK_TOLERANCE_NS and int(lag.min()) + latest >= 0:
        return latest
    return 0


def _latest_shift(timeline: Timeline, device: int, rows: Ints, call_start: Ints) -> int | None:
    """Return the largest shift with which operations end before calls return that waited for them.

    None if no such call is recorded. ``rows`` are the operations of the GPU, ``call_start`` the begins of
    their launch calls.
    """
    end, stream = (column[rows] for column in timeline.of_operations("end", "stream"))
    delays = [np.empty(0, np.int64)]
    for waited, waits in _waited_operations(timeline, device, stream):
        waiting = np.flatnonzero(waited)
        order = waiting[np.argsort(call_start[waiting], kind="stable")]
        before = np.searchsorted(call_start[order], waits.start)
        ended = np.append(0, np.maximum.accumulate(end[order]))[before]
        delays.append((waits.end - ended)[before > 0])
    shifts = np.sort(np.concatenate(delays))
    return int(shifts[len(shifts) // 20]) if len(shifts) else None


def _waited_operations(
    timeline: Timeline, device: int, stream: Ints
) -> Iterator[tuple[Mask, ApiCalls | Synchronizations]]:
    """Yield masks of operations that the host waits for, each with its waits: of a GPU, and of each stream.

    ``stream`` is that of each of its operations.
    """
    if len(distinct(timeline.kernels.device)) == 1:
        alone = len(distinct(stream)) == 1
        waits = name_matches(timeline, timeline.calls.name, waits_for_stream if alone else waits_for_device)
        yield np.ones(len(stream), bool), timeline.calls.take(waits)
    stream_waits = timeline.synchronizations
    stream_waits = stream_waits.take((stream_waits.kind == SyncKind.STREAM) & (stream_waits.device == device))
    for (number,), rows in rows_by_key(stream_waits.stream):
        yield stream == number, stream_waits.take(rows)


def _shift_gpus(timeline: Timeline, shift: dict[int, int]) -> Timeline:
    """Shift the times of GPUs by the ns of ``shift`` for each device, and add a loss for each clock."""
    tables = {}
    lost = []
    for name in _DEVICE_TABLES:
        table = getattr(timeline, name)
        shifts = np.zeros(len(table), np.int64)
        for number, shift_ns in shift.items():
            shifts[table.device == number] = shift_ns
        tables[name] = replace(table, start=table.start + shifts, end=table.end + shifts)
    count = timeline.operation_count
    (device,) = timeline.of_operations("device")
    for number, shift_ns in shift.items():
        on_device = int(np.count_nonzero(device == number))
        amount = f"{format_ns(abs(shift_ns))} {'behind' if shift_ns > 0 else 'ahead of'}"
        lost.append(Loss(LossKind.CLOCK, Subject.OPERATION, on_device, count, amount))
    return replace(timeline, **tables).with_losses(lost)


def _without_overruns(timeline: Timeline) -> Timeline:
    if timeline.operation_count < 2:
        return timeline
    if timeline.origin.ordered_streams:
        over = _over_successors(timeline.columns_of_operations(Operations))
    else:
        over = _over_usual_length(timeline)
    return _without_operations(timeline, ~over, LossKind.OVERRUN) if over.any() else timeline


def _over_successors(work: Operations) -> Mask:
    """Return a mask of the operations that end after the end of the next one of their process and stream.

    Operations of one launch, such as the nodes of a CUDA graph, may run side by side. A stream on which many
    run over others has no order.
    """
    over = np.zeros(len(work), bool)
    for _, rows in rows_by_key(work.process, work.device, work.stream):
        start, end = work.start[rows], work.end[rows]
        if not ascends(start):
            order = np.argsort(start, kind="stable")
            rows, start, end = rows[order], start[order], end[order]
        later = np.flatnonzero(
            (end[:-1] > end[1:] + _OVERLAP_TOLERANCE_NS) & (start[1:] > start[:-1] + _OVERLAP_TOLERANCE_NS)
        )
        if len(later):
            later = later[~_shares_launch(work, rows)[later]]
        if len(later) <= _UNORDERED_SHARE * len(rows):
            over[rows[later]] = True
    suspects = np.flatnonzero(over)
    over[suspects[_has_usual_length(work, suspects)]] = False
    return over


def _has_usual_length(work: Operations, rows: Ints) -> Mask:
    """Return a mask of the kernels whose length is usual for their name, so that nothing is wrong with it.

    AMD's firmware reports overlaps on a queue (ROCm/rocm-systems#1568), and with CUDA's programmatic
    dependent launch a kernel begins before its predecessor has ended.
    """
    usual, length = np.zeros(len(rows), bool), work.end - work.start
    for name in distinct(work.name[rows]).tolist():
        same_name = (work.name == name) & (work.category == Category.COMP)
        if np.count_nonzero(same_name) > _MIN_OTHERS:
            usual |= same_name[rows] & (length[rows] <= _MAX_USUAL_RATIO * np.median(length[same_name]))
    return usual


def _over_usual_length(timeline: Timeline) -> Mask:
    """Return a mask of the operations that run into the next one on their queue, far beyond their GPU share.

    Queues of AMD and Intel run kernels side by side, so an overlap alone proves nothing. But a kernel that
    computes does the same work on the same grid, alone or not.
    """
    kernels, over = timeline.kernels, np.zeros(timeline.operation_count, bool)
    late = np.zeros(len(kernels), bool)
    for _, rows in rows_by_key(kernels.process, kernels.device, kernels.stream):
        rows = rows[np.argsort(kernels.start[rows], kind="stable")]
        late[rows[:-1]] = kernels.end[rows[:-1]] > kernels.start[rows[1:]] + _OVERLAP_TOLERANCE_NS
    late &= kernels.category == Category.COMP
    if not late.any():
        return over
    share = _gpu_time_shares(kernels)
    kinds, number = numbered_rows(kernels.name, *kernels.grid.T)
    least = np.full(len(kinds), np.inf)
    np.minimum.at(least, number, share)
    late &= share > _OUTLIER_RATIO * least[number]
    for kind in distinct(number[late]).tolist():
        same_kind = number == kind
        if np.count_nonzero(same_kind) > _MIN_OTHERS:
            over[: len(late)] |= late & same_kind & (share > _OUTLIER_RATIO * np.median(share[same_kind]))
    return over


def _gpu_time_shares(kernels: Kernels) -> Floats:
    """Return the time of each kernel in ns, in which n kernels at once have an n-th each."""
    share = np.zeros(len(kernels))
    for _, rows in rows_by_key(kernels.device):
        start, end = kernels.start[rows], kernels.end[rows]
        moments = np.concatenate((start, end))
        order = np.argsort(moments, kind="stable")
        running = np.cumsum(np.where(order < len(rows), 1, -1))
        moments = moments[order]
        shared = np.append(0, np.cumsum(np.diff(moments) / np.maximum(running[:-1], 1)))
        share[rows] = shared[np.searchsorted(moments, end)] - shared[np.searchsorted(moments, start)]
    return share


def _shares_launch(work: Operations, rows: Ints) -> Mask:
    """Return a mask of the rows that share their launch with another operation, or whose successor does."""
    _, number = numbered_rows(work.process[rows], work.correlation[rows])
    shared = (np.bincount(number)[number] > 1) & (work.correlation[rows] >= 0)
    shared[:-1] |= shared[1:]
    return shared


def _without_late_operations(timeline: Timeline) -> Timeline:
    host = [table for table in (timeline.calls, timeline.ranges, timeline.operators) if len(table)]
    if not host:
        return timeline
    last = max(int(table.end.max()) for table in host)
    start, end = timeline.of_operations("start", "end")
    length, inside = end - start, end <= last
    if inside.all() or np.count_nonzero(inside) < _MIN_OTHERS:
        return timeline
    longest = int(length[inside].max())
    late = (end > last + _MAX_QUEUED_OPERATIONS * longest) & (length > longest)
    return _without_operations(timeline, ~late, LossKind.OVERRUN) if late.any() else timeline


def _with_open_ranges(timeline: Timeline) -> Timeline:
    ranges = timeline.ranges
    if not len(ranges) or ranges.closed.all():
        return timeline
    kinds, number = numbered_rows(ranges.process, ranges.thread, ranges.name)
    last = np.zeros(len(kinds), np.int64)
    np.maximum.at(last, number, ranges.start)
    count = int(np.count_nonzero((ranges.closed == 0) & (ranges.start < last[number])))
    lost = [Loss(LossKind.OPEN, Subject.RANGE, count, len(ranges))] if count else []
    return timeline.with_losses(lost)


def _without_operations(timeline: Timeline, plausible_rows: Mask, kind: LossKind) -> Timeline:
    """Leave out operations by a mask over `Timeline.operations`."""
    sizes = np.cumsum([len(getattr(timeline, name)) for name in GPU_TABLES])[:-1]
    masks = dict(zip(GPU_TABLES, np.split(plausible_rows, sizes), strict=True))
    return _without_masked(timeline, masks, kind)


def _without_masked(timeline: Timeline, masks: dict[str, Mask], kind: LossKind) -> Timeline:
    lost = [
        Loss(kind, PROCESS_TABLES[name], int(np.count_nonzero(~mask)), len(mask))
        for name, mask in masks.items()
        if not mask.all()
    ]
    return _without_rows(timeline, masks, lost)


def _without_rows(timeline: Timeline, plausible_rows: dict[str, Mask], lost: list[Loss]) -> Timeline:
    tables = {
        name: getattr(timeline, name).take(mask)
        for name, mask in plausible_rows.items()
        if len(mask) and not mask.all()
    }
    if "kernels" in tables and {loss.kind for loss in lost} <= {LossKind.ROW, LossKind.OVERRUN}:
        begun = timeline.kernels.take(~plausible_rows["kernels"])
        begun = begun.take(plausible_stamps(begun.start) & (begun.start != 0))
        unended = concatenate(Kernels, (timeline.unended_kernels, replace(begun, end=begun.start)))
        tables["unended_kernels"] = unended
    return replace(timeline, **tables).with_losses(lost) if tables else timeline
