"""The steps of a timeline: the ranges that mark them, one after another."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from hpcprof.analysis.account.places import PROFILER_STEP, WHOLE_CAPTURE
from hpcprof.analysis.framework.outcome import Outcome, columns_of, no_rows
from hpcprof.analysis.steps.launch_steps import is_launch_step, launch_steps
from hpcprof.analysis.steps.mpi_steps import MIN_INSTANCES, MpiStep, is_mpi_step, mpi_steps, sequence_text
from hpcprof.analysis.steps.range_names import plain_name, range_names
from hpcprof.analysis.steps.step_detection import (
    HOOK,
    ITERATION_RANGE,
    LAUNCHES,
    MIN_COVERAGE_PCT,
    MPI,
    NAMED,
    StepCandidate,
    common_step_range,
    known_range,
    marking_rows,
    mpi_candidate,
    resolve,
    step_candidates,
    step_candidates_named,
)
from hpcprof.analysis.steps.streams import NO_CALL, launch_calls, why_no_launches
from hpcprof.common.memoize import computed_once
from hpcprof.common.units import shortened
from hpcprof.profiles.columns.unique import name_matches, numbered_rows
from hpcprof.profiles.timeline import ApiCalls, Ints, MpiCalls, Ranges, StepRange, Timeline, concatenate

_INIT, _FINALIZE = re.compile(r"MPI_Init(?:_thread)?"), re.compile("MPI_Finalize")

OUTSIDE = -1
"""Stands for the step, phase or range of a moment outside all of them."""

_MAX_NAMED_RANGES = 3
_MIN_NUMBERED = 5
"""Minimum number of numbered ranges for a counter where no step confirms that they count steps."""


class Steps(msgspec.Struct, frozen=True):
    """The steps of a timeline by their start."""

    name: str
    """The name of their ranges without a counter; empty without steps."""
    rows: Ints
    """The rows of these ranges in the timeline; empty if calls or launches mark the steps; shape (steps,)."""
    ranges: Ranges
    """The steps on the host. Each is the range or, if the range only marks a step, the time until the next.
    """
    number: Ints
    """The program's own number of each step, which increases; from 0 where the ranges have none; shape
    (steps,).
    """
    marker: bool = False
    """True if ranges only mark the steps."""

    def __len__(self) -> int:
        return len(self.ranges)

    @property
    def by_mpi(self) -> bool:
        """True if calls of MPI mark the steps."""
        return is_mpi_step(self.name)

    @property
    def by_calls(self) -> bool:
        """True if calls of MPI or launches on the GPU mark the steps, and no range does."""
        return self.by_mpi or is_launch_step(self.name)

    def by_operations(self, timeline: Timeline) -> bool:
        """Return whether operations mark the steps of a timeline that has no launches of them."""
        return is_launch_step(self.name) and bool(why_no_launches(timeline)) and timeline.operation_count > 0

    @property
    def source(self) -> str:
        """Marker of the steps, as in `hpcprof.analysis.explain.explanation.StepSummary`."""
        if self.by_mpi or is_launch_step(self.name):
            return "mpi" if self.by_mpi else "graph" if self.name.startswith("graph:") else "kernels"
        if self.by_hook or self.name == WHOLE_CAPTURE:
            return "hook" if self.by_hook else "capture"
        return "range" if known_range(self.name) in (None, ITERATION_RANGE) else "framework"

    @property
    def by_hook(self) -> bool:
        """True if the start-up hook marks the steps, inside any range that an optimizer steps in."""
        return known_range(self.name) == HOOK


@computed_once
def steps_of(timeline: Timeline) -> Steps:
    """Return the steps of a timeline: the range chosen for its run, else the steps found in it.

    A step that is still open when the profile ends does not count: its time would be too short. The outermost
    of nested ranges is the step. If several threads or processes mark steps at the same time, the steps that
    take the most time in all count.
    """
    chosen = timeline.step_range
    name = chosen.name if chosen else common_step_range({0: step_candidates(timeline)})
    if is_mpi_step(name) or is_launch_step(name):
        ranges, number = (mpi_steps if is_mpi_step(name) else launch_steps)(timeline, name)
        return Steps(name if len(ranges) else "", np.empty(0, np.int64), ranges, number)
    name = resolve(timeline, name)
    rows = marking_rows(timeline, name)
    kind = known_range(name)
    turn = [step.name for step in step_candidates(timeline) if step.in_turn and not (chosen and chosen.named)]
    marker = len(rows) > 1 and (kind.marker if kind else name in turn)
    ranges = timeline.ranges.take(rows)
    if marker:
        # The last one marks a step that may not be complete.
        turn = turn if name in turn else []
        last_end = np.array(_end_of_turn(timeline, turn, int(ranges.start[-1])), np.int64)
        ends = np.append(ranges.start[1:], last_end)
        rows, ranges = rows[: len(ends)], replace(ranges.take(slice(len(ends))), end=ends)
    return Steps(name if len(rows) else "", rows, ranges, _own_numbers(timeline, rows), marker)


def _end_of_turn(timeline: Timeline, turn: Sequence[str], begin: int) -> list[int]:
    """Return the end of the last of all ranges that take turns; none if one of them has not begun since."""
    ranges = timeline.ranges
    last = [int(marking_rows(timeline, name)[-1]) for name in turn]
    is_complete = bool(last) and all(ranges.start[row] >= begin for row in last)
    return [max(int(ranges.end[row]) for row in last)] if is_complete else []


def with_capture_as_step(timeline: Timeline) -> Timeline:
    """Return a timeline with a range over all of its work on the GPU, with its launches, as the only step.

    Without work on a GPU, the step is from the first call of MPI to the last one, without ``MPI_Init`` and
    ``MPI_Finalize``.
    """
    start, end = timeline.of_operations("start", "end")
    calls: ApiCalls | MpiCalls = timeline.mpi_calls
    if len(start):
        calls = timeline.calls.take(np.unique(launch_calls(timeline)[launch_calls(timeline) != NO_CALL]))
    if not len(calls):
        return timeline
    first = int(np.argmin(calls.start))
    begin, last = min([*start, calls.start[first]]), max([*end, calls.end.max()])
    if not len(start):
        begin = calls.end[name_matches(timeline, calls.name, _INIT.fullmatch)].max(initial=begin)
        last = calls.start[name_matches(timeline, calls.name, _FINALIZE.fullmatch)].min(initial=last)
    # Start, end, process, thread and the position of the name.
    values = (begin, last, calls.process[first], calls.thread[first], len(timeline.strings))
    whole = Ranges(*map(np.atleast_1d, values))
    ranges = concatenate(Ranges, (timeline.ranges, whole))
    order = np.argsort(ranges.start, kind="stable")
    return replace(
        timeline,
        strings=np.append(timeline.strings, WHOLE_CAPTURE),
        ranges=ranges.take(order),
        step_range=StepRange(WHOLE_CAPTURE, named=True),
    )


def _own_numbers(timeline: Timeline, rows: Ints) -> Ints:
    """Return the counters in the names of steps, or the steps' positions if these do not count steps.

    A counter has the same distance from step to step. The numbers of PyTorch's profiler have gaps where it
    pauses, and those of a program's executions where some were not recorded.
    Ranges named ``iteration`` have the numbers of the steps that the job captured, else those that the
    PyTorch profiler marks at their starts. The first mark of the start-up hook ends step 0, unless the job
    captured some steps.
    """
    places = np.arange(len(rows))
    names, texts = range_names(timeline), timeline.ranges.name[rows]
    family, number = names.of_text[texts], names.number[texts]
    if not len(rows) or np.any(family != family[0]):
        return places
    if not names.counted[family[0]]:
        kind = known_range(names.names[family[0]])
        if kind == HOOK and not timeline.origin.captured:
            all_rows = marking_rows(timeline, names.names[family[0]], warm_up=True)
            return np.searchsorted(all_rows, rows) + 1
        return _iteration_numbers(timeline, rows) if kind in (ITERATION_RANGE, HOOK) else places
    distance = np.diff(number)
    if names.names[family[0]] == PROFILER_STEP or names.executions[family[0]]:
        return number if np.all(distance > 0) else places
    return number if np.all(distance == distance[:1]) and np.all(distance > 0) else places


def _iteration_numbers(timeline: Timeline, rows: Ints) -> Ints:
    """Return the step numbers of ranges without counters; they count from 0 if the profile records none."""
    spans = timeline.origin.captured
    captured = np.concatenate([np.arange(first, last + 1) for first, last in spans] or [rows[:0]])
    if len(captured) >= len(rows):
        return captured[: len(rows)]
    names, ranges = range_names(timeline), timeline.ranges
    profiler_steps = [i for i, name in enumerate(names.names) if name == PROFILER_STEP]
    marks = ranges.take(np.flatnonzero(np.isin(names.of_text[ranges.name], profiler_steps)))
    order = np.argsort(marks.start)
    at = np.searchsorted(marks.start[order], ranges.start[rows], side="right") - 1
    if np.all(at >= 0) and np.all(np.diff(at) > 0):
        return names.number[marks.name[order][at]]
    return np.arange(len(rows))


def step_numbers(timeline: Timeline, moment: Ints) -> Ints:
    """Return the number of the step that was open on the host at each moment, or `OUTSIDE`."""
    steps = steps_of(timeline)
    ranges = steps.ranges
    if not len(steps):
        return np.full(len(moment), OUTSIDE)
    at = np.searchsorted(ranges.start, moment, side="right") - 1
    inside = at >= 0
    inside[inside] = moment[inside] <= ranges.end[at[inside]]
    return np.where(inside, steps.number[at], OUTSIDE)


def step_ranges(timeline: Timeline) -> Outcome:
    """List the ranges that may be the step, the one that takes most time first.

    ``source`` is the framework that gives the range its name, ``automatic`` if an unknown range qualifies,
    ``MPI calls`` if these mark it, ``repeats`` if it does not qualify, ``--step-range`` if a user named it.
    ``chosen`` is 1 for the range that is the step of the run, which comes first, else 0.
    """
    steps, candidates = steps_of(timeline), list(step_candidates(timeline))
    if steps.name:
        named = timeline.step_range is not None and timeline.step_range.named
        same_name = next((item for item in candidates if item.name == steps.name), None)
        chosen = same_name or _judge_candidate(timeline, steps)
        # A rank alone would take another call.
        chosen = replace(chosen, source=MPI) if steps.by_mpi else chosen
        candidates = [item for item in candidates if item is not same_name]
        candidates.insert(0, replace(chosen, source=NAMED) if named else chosen)
    if not candidates:
        return no_rows(no_steps(timeline))
    rows = [
        {
            "range": item.name,
            "source": item.source,
            "instances": item.instances,
            "coverage_pct": item.coverage_pct,
            "chosen": int(item.name == steps.name),
        }
        for item in candidates
    ]
    file = timeline.origin.path.name
    sequence = f"a step of {file} is {sequence_text(timeline, steps.name)}" if steps.by_mpi else ""
    return Outcome(columns_of(rows), sequence or why_without_steps(timeline))


def _judge_candidate(timeline: Timeline, steps: Steps) -> StepCandidate:
    if is_launch_step(steps.name):
        return StepCandidate(steps.name, LAUNCHES, len(steps), 0.0)
    if not steps.by_mpi:
        return step_candidates_named(timeline, [steps.name])[0]
    end = int(steps.ranges.end[-1])
    length = end - int(steps.ranges.start[0])
    mpi_step = MpiStep(steps.name, len(steps), length, regular=True, waiting=False, last=end)
    return replace(mpi_candidate(timeline, mpi_step), source=MPI)


def why_without_steps(timeline: Timeline) -> str:
    """Return the reason why there are no steps; empty if there are."""
    return "" if len(steps_of(timeline)) else no_steps(timeline)


def no_steps(timeline: Timeline) -> str:
    """Return the reason why there are no steps, and which ranges could be taken."""
    if is_empty(timeline):
        return f"no work on a GPU, call or range was recorded in {timeline.origin.path.name}"
    reason = f"no steps in {timeline.origin.path.name}: "
    if not len(timeline.ranges) and not len(timeline.mpi_calls):
        return f"{reason}it has no ranges"
    names = [step_candidate.name for step_candidate in step_candidates(timeline)]
    chosen = timeline.step_range
    if chosen is not None and chosen.name:
        marks = "calls of MPI" if is_mpi_step(chosen.name) else "complete range"
        reason += f"it has no {marks} named {chosen.name}"
        return f"{reason}; others that repeat: {', '.join(names)}" if names else reason
    reason += (
        f"no range is known as a step, and none repeats {MIN_INSTANCES} times alike on one thread and covers "
        f"{MIN_COVERAGE_PCT:g} % of the capture on every rank"
    )
    if len(timeline.mpi_calls):
        reason += ", nor do its calls that communicate repeat a sequence in this way"
    if not names:
        return reason
    reason += f"; {', '.join(map(shortened, names[:_MAX_NAMED_RANGES]))} may be the step"
    if shortened(names[0]) != names[0]:
        return reason
    # Readers of the store add the run and the database to the command.
    takes = "it" if len(names) == 1 else "the first"
    return f"{reason}: hpcprof collect --step-range {shlex.quote(names[0])} takes {takes}"


def is_empty(timeline: Timeline) -> bool:
    """Return whether a profile describes its process and holds no event of the program."""
    host = (
        timeline.ranges,
        timeline.operators,
        timeline.calls,
        timeline.mpi_calls,
        timeline.host_collectives,
        timeline.os_calls,
    )
    return not timeline.operation_count and not any(map(len, host))


@computed_once
def merged_names(timeline: Timeline) -> dict[str, str]:
    """Return the name without its counter of each range name that ends in a counter of steps.

    A counter of steps has one value in each step. A counter with several values in a step numbers something
    else, such as layers, and its names stay apart.
    """
    families, steps, ranges = range_names(timeline), steps_of(timeline), timeline.ranges
    name = families.of_text[ranges.name]
    is_counted = np.append(families.counted, False)  # the last one is for ranges without a name
    rows = np.flatnonzero(is_counted[name])
    instances = np.bincount(name[rows], minlength=len(families.names))
    if len(steps):
        step = np.searchsorted(steps.ranges.start, ranges.start[rows], side="right")
        texts, _ = numbered_rows(name[rows], step, ranges.name[rows])
        is_repeat = np.all(texts[1:, :2] == texts[:-1, :2], axis=1)
        counts_steps = (instances > 0) & ~np.isin(np.arange(len(instances)), texts[1:, 0][is_repeat])
    else:
        counts_steps = instances >= _MIN_NUMBERED
    counter_names = {PROFILER_STEP, steps.name}
    return {
        text: families.names[number]
        for text, number in zip(timeline.strings.tolist(), families.of_text.tolist(), strict=False)
        if number >= 0
        and families.counted[number]
        and (counts_steps[number] or families.executions[number] or families.names[number] in counter_names)
    }


def shown_name(timeline: Timeline, text: str | None) -> str | None:
    """Return the name of a range in tables, without a counter of steps and the suffix of ``emit_nvtx``."""
    return text if text is None else merged_names(timeline).get(text) or plain_name(text)
