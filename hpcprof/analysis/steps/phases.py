"""The times of the steps, and of each of their phases."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from hpcprof.analysis.framework.outcome import Outcome, columns_of, no_rows
from hpcprof.analysis.statistics.grouped import sums
from hpcprof.analysis.steps.gpu_projection import project
from hpcprof.analysis.steps.range_tree import NO_PARENT, tree
from hpcprof.analysis.steps.run_step import step_series, whole_steps
from hpcprof.analysis.steps.step_detection import rows_named
from hpcprof.analysis.steps.step_ranges import Steps, no_steps, shown_name, steps_of
from hpcprof.analysis.steps.wall_time import (
    GPU_SPAN_PCT,
    Segments,
    StepTimes,
    divide_among_phases,
    step_intervals,
    time_in_segments,
)
from hpcprof.common.memoize import computed_once
from hpcprof.common.units import counted, format_ns
from hpcprof.profiles.columns.intervals import Intervals, grouped_length
from hpcprof.profiles.columns.unique import number_texts, numbered
from hpcprof.profiles.timeline import AFTER_ALL, NO_NAME, Ints, Timeline

REST = "(rest)"
"""The row of the time of a step outside all phases."""

# The ranges of PyTorch's process groups, which are parts of a phase and not phases.
_LIBRARY_PREFIXES = ("nccl:", "gloo:")


def phases(timeline: Timeline) -> Outcome:
    """Summarize the time of each phase over the steps.

    A phase is a range that is a direct child of a step on the step's thread, has no NVTX domain and is not
    named ``nccl:…`` or ``gloo:…``. Its wall time is its share of that of the step
    (`hpcprof.analysis.steps.wall_time.divide_among_phases`). The row ``(rest)`` has the remaining time, so
    that the means, times ``steps``, add up to the wall time of all steps. ``steps`` is the number of steps
    with the phase.

    ``gpu_span_p50_ns`` is the median length of the union of the phase's projections to the GPU, which include
    the launches of **all** threads of the process; for ``(rest)``, of the operations launched outside phases.
    Rows are in order of first appearance, the rest is last.
    """
    children = _find_phases(timeline)
    if children is None:
        return no_rows(_missing_reason(timeline))
    ranges = timeline.ranges.take(children.rows)
    rest_id = len(children.names)
    start, end, _ = project(timeline, ranges)
    span, span_of_rest = (
        _Lengths.of_unions(step, phase, *_from_front(timeline, step, start, end))
        for step, phase, start, end in (
            (children.owner, children.phase, start, end),
            _outside_phases(timeline, children.segments, steps_of(timeline), rest_id),
        )
    )
    phase_ids = children.in_order()
    spans = [(span_of_rest if p == rest_id else span).of_phase(p) for p in phase_ids]
    on_gpu = timeline.operation_count > 0
    rows = {
        "phase": [[*children.names, REST][p] for p in phase_ids],
        **columns_of([distribution(children.wall.of_phase(p)) for p in phase_ids]),
        "gpu_span_p50_ns": [round(float(np.median(values))) if on_gpu else None for values in spans],
    }
    file = timeline.origin.path.name
    return Outcome(rows, "" if on_gpu else f"no GPU work in {file}: phases are measured on the host")


def phase_times(timeline: Timeline) -> Outcome:
    """Return the wall time of each phase in each step that has it, and of ``(rest)``, as in `phases`."""
    children = _find_phases(timeline)
    if children is None:
        return no_rows(_missing_reason(timeline))
    order = children.in_order()
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    wall = children.wall
    rows = np.lexsort((place[wall.phase], wall.step))
    names = [*children.names, REST]
    return Outcome(
        {
            "step": steps_of(timeline).number[wall.step[rows]],
            "phase": [names[p] for p in wall.phase[rows].tolist()],
            "wall_ns": wall.length[rows],
        }
    )


class _PhaseTable(msgspec.Struct, frozen=True):
    """The phases of a timeline: their ranges in the order of time, and their wall time by step."""

    names: list[str]
    """The names of the phases by number; the number after the last one is the rest of the steps."""
    rows: Ints
    owner: Ints
    phase: Ints
    """The row, the step and the phase of each range."""
    segments: Segments
    wall: "_Lengths"

    def in_order(self) -> list[int]:
        """Return the numbers of the phases in the order of their first appearance, the rest last."""
        _, first = np.unique(self.phase, return_index=True)
        return [*np.argsort(first, kind="stable").tolist(), len(self.names)]


@computed_once
def _find_phases(timeline: Timeline) -> _PhaseTable | None:
    steps = steps_of(timeline)
    owner, rows = phases_of(timeline, steps)
    if not len(rows):
        return None
    order = np.argsort(timeline.ranges.start[rows], kind="stable")
    owner, rows = owner[order], rows[order]
    ranges = timeline.ranges.take(rows)
    names, phase = number_texts(timeline, ranges.name, partial(shown_name, timeline))
    segments = divide_among_phases(timeline, ranges)
    wall = _wall_times(timeline, segments, np.append(phase, len(names)), owner, len(steps))
    return _PhaseTable(list(names), rows, owner, phase, segments, wall)


class _Lengths(msgspec.Struct, frozen=True):
    """A length for each pair of step and phase that occurs."""

    step: Ints
    phase: Ints
    length: Ints

    @classmethod
    def of_sums(cls, step: Ints, phase: Ints, length: Ints) -> "_Lengths":
        """Add up the lengths of each pair."""
        pairs, group, phases = _pairs(step, phase)
        return cls(pairs // phases, pairs % phases, sums(group, length, len(pairs)))

    @classmethod
    def of_unions(cls, step: Ints, phase: Ints, start: Ints, end: Ints) -> "_Lengths":
        """Measure the union of the intervals of each pair."""
        pairs, group, phases = _pairs(step, phase)
        return cls(pairs // phases, pairs % phases, grouped_length(group, start, end, len(pairs)))

    def of_phase(self, phase: int) -> Ints:
        """Return the lengths of a phase, one for each step that has it."""
        lengths: Ints = self.length[self.phase == phase]
        return lengths


def _pairs(step: Ints, phase: Ints) -> tuple[Ints, Ints, int]:
    """Return the pairs of step and phase that occur, each row's number among them, and a bound of phases."""
    phases = int(phase.max(initial=0)) + 1
    return *numbered(step * phases + phase), phases


def _wall_times(timeline: Timeline, segments: Segments, phase: Ints, owner: Ints, steps: int) -> _Lengths:
    """Return the wall time of each phase in each step, and of the rest, whose number comes last in ``phase``.

    A phase is also in the step that has it on the host: its time may lie before the front of that step.
    """
    step, segment, length = time_in_segments(segments, step_intervals(timeline))
    segment_phase = np.where(segment % 2 == 1, phase[np.minimum(segment // 2, len(phase) - 1)], phase[-1])
    counted = (length > 0) | (segment_phase == phase[-1])
    all_steps = np.arange(steps)
    return _Lengths.of_sums(
        np.concatenate((step[counted], owner, all_steps)),
        np.concatenate((segment_phase[counted], phase[:-1], np.full(steps, phase[-1]))),
        np.concatenate((length[counted], np.zeros(len(owner) + steps, np.int64))),
    )


def _outside_phases(
    timeline: Timeline, segments: Segments, steps: Steps, rest_id: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the step, ``rest_id`` and the interval of the operations that steps launched outside phases."""
    begun = np.searchsorted(steps.ranges.start, segments.launched, side="right") - 1
    inside = (begun >= 0) & (segments.segment % 2 == 0)
    inside &= segments.launched <= steps.ranges.end[np.maximum(begun, 0)]
    start, end = (column[segments.operation[inside]] for column in timeline.of_operations("start", "end"))
    # The operations between the same two phases of a step are one interval, as those of a phase are.
    pairs, group, _ = _pairs(begun[inside], segments.segment[inside])
    first, last = np.full(len(pairs), AFTER_ALL), np.zeros(len(pairs), np.int64)
    np.minimum.at(first, group, start)
    np.maximum.at(last, group, end)
    step = np.zeros(len(pairs), np.int64)
    step[group] = begun[inside]
    # A step without such operations has an empty interval.
    none = np.zeros(len(steps), np.int64)
    step = np.concatenate((step, np.arange(len(steps))))
    return step, np.full(len(step), rest_id), np.append(first, none), np.append(last, none)


def _from_front(timeline: Timeline, step: Ints, start: Ints, end: Ints) -> Intervals:
    """Return intervals on the GPU from the front of their step on.

    Work of a step may begin before it where the capture began with a full queue.
    """
    front = step_intervals(timeline).start[step]
    return np.minimum(np.maximum(start, front), end), end


def distribution(values: Ints) -> dict[str, Any]:
    """Return the number, percentiles, mean and deviation of times, rounded to whole nanoseconds.

    Percentiles are interpolated linearly; the deviation is the sample's, 0 for one value.
    """
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return {
        "steps": len(values),
        "p50_ns": round(p50),
        "p95_ns": round(p95),
        "p99_ns": round(p99),
        "mean_ns": round(float(np.mean(values))),
        "stddev_ns": round(float(np.std(values, ddof=1))) if len(values) > 1 else 0,
    }


def phases_of(timeline: Timeline, steps: Steps) -> tuple[Ints, Ints]:
    """Return the number of the step and the row of each phase.

    - The phases of a step that is a range are the ranges directly inside it.
    - If ranges only mark the begins of steps, the phases are these and the ranges beside them.
    - If calls of MPI, launches or the start-up hook mark the steps, the phases are the outermost ranges that
      begin in a step.
    """
    ranges = timeline.ranges
    between = steps.by_calls or steps.by_hook
    find = _between_marks if between else _beside_markers if steps.marker else _inside_steps
    rows, owner = find(timeline, steps)
    domain = ranges.domain[rows]
    marked = (ranges.name[rows] != NO_NAME) & ((domain == NO_NAME) | np.isin(rows, steps.rows))
    names = timeline.names(ranges.name[rows])
    marked &= np.array([not (name or "").startswith(_LIBRARY_PREFIXES) for name in names], bool)
    return owner[marked], rows[marked]


def _parents(timeline: Timeline) -> tuple[Ints, Ints]:
    """Return the rows of the ranges in the tree and the row of each one's parent, or `NO_PARENT`."""
    nested, parent = tree(timeline)
    return nested, np.where(parent == NO_PARENT, NO_PARENT, nested[parent])


def _inside_steps(timeline: Timeline, steps: Steps) -> tuple[Ints, Ints]:
    rows, parent = _parents(timeline)
    step = np.full(len(timeline.ranges) + 1, NO_PARENT, np.int64)
    step[steps.rows] = np.arange(len(steps))
    named = rows_named(timeline, steps.name)[rows]
    # `NO_PARENT` is -1 and so selects the last element, which is no step. A step that is marked twice, as by
    # NVTX and by the profiler, is one range directly inside another.
    twin = named & (step[rows] == NO_PARENT)
    step[rows[twin]] = step[parent[twin]]
    owner = step[parent]
    has_owner = (owner != NO_PARENT) & ~named
    return rows[has_owner], owner[has_owner]


def _beside_markers(timeline: Timeline, steps: Steps) -> tuple[Ints, Ints]:
    rows, parent = _parents(timeline)
    ranges, host = timeline.ranges, steps.ranges
    owner = np.searchsorted(host.start, ranges.start[rows], side="right") - 1
    parent_of = np.full(len(ranges), NO_PARENT, np.int64)
    parent_of[rows] = parent
    is_phase = (owner >= 0) & (ranges.end[rows] <= host.end[owner]) & (parent == parent_of[steps.rows][owner])
    for column in ("process", "thread"):
        is_phase &= getattr(ranges, column)[rows] == getattr(host, column)[owner]
    return rows[is_phase], owner[is_phase]


def _between_marks(timeline: Timeline, steps: Steps) -> tuple[Ints, Ints]:
    """Return the outermost rows that begin in a step and end in it or in the next, and that step."""
    rows, parent = _parents(timeline)
    ranges, host = timeline.ranges, steps.ranges
    owner = np.searchsorted(host.start, ranges.start[rows], side="right") - 1
    last = host.end[np.minimum(owner + 1, len(steps) - 1)]
    begins = (owner >= 0) & (ranges.start[rows] < host.end[-1])
    # A range around the mark at the end of a step lies in both.
    chosen = (
        begins
        & ~rows_named(timeline, steps.name)[rows]
        & (ranges.end[rows] <= np.where(owner + 1 < len(steps), last, AFTER_ALL))
    )
    for column in ("process", "thread"):
        chosen &= getattr(ranges, column)[rows] == getattr(host, column)[0]
    inner = np.zeros(len(ranges) + 1, bool)
    inner[rows[chosen]] = True
    # `NO_PARENT` is -1 and so selects the last element, which is none.
    chosen &= ~inner[parent]
    return rows[chosen], owner[chosen]


def _missing_reason(timeline: Timeline) -> str:
    if not len(steps_of(timeline)):
        return no_steps(timeline)
    reason = f"no phases in {timeline.origin.path.name}: no step directly contains a named range"
    on_two_threads = int(np.count_nonzero(timeline.ranges.one_thread == 0))
    return f"{reason}; another thread ends {counted(on_two_threads, 'range')}" if on_two_threads else reason


def step_times(timeline: Timeline) -> Outcome:
    """Return the times of each step; ``step`` is the program's own number or, without one, counts from 0.

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
    return Outcome(rows, _host_note(timeline, times))


def _host_note(timeline: Timeline, times: StepTimes) -> str:
    host = int(np.count_nonzero(~times.on_gpu))
    if not host:
        return ""
    which = "the steps" if host == len(times.start) else f"{host} of {counted(len(times.start), 'step')}"
    return f"{which} of {timeline.origin.path.name} have no work on the GPU and are measured on the host"


def steps(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Return the wall time of each step over ranks, with the lowest of the slowest ranks."""
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
        # The other spans are not steps.
        reason = f"{without} of {counted(len(span), 'step')} have no work on the GPU"
    return Outcome(pd.DataFrame([row], dtype=object), reason)


def compare_times(wall: int, gpu_span: int | None) -> str:
    """Return a sentence on median wall times and GPU spans that differ; empty if they hardly do.

    The median span may be that of another step than the median wall time.
    """
    if gpu_span is None or abs(wall - gpu_span) <= wall * GPU_SPAN_PCT / 100:
        return ""
    return (
        f"the median wall time of a step is {format_ns(wall)}, the median span on the GPU "
        f"{format_ns(gpu_span)} ({100 * gpu_span / wall:.1f} %)"
    )
