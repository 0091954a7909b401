"""Finds the functions and the slice of the timeline responsible for each finding."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from statistics import median

import numpy as np
import pandas as pd

from hpcprof.analysis.account.host_activity import (
    NONE,
    OUTSIDE,
    Places,
    StepFunction,
    Thread,
    call_at,
    calls_touching,
    innermost,
    is_inside,
    marking_thread,
    places_of,
    split_by_function,
)
from hpcprof.analysis.account.places import without_numbers
from hpcprof.analysis.explain.cause import Cause, CauseDeclaration, Stack, Trait, cause_of
from hpcprof.analysis.explain.evidence import in_words
from hpcprof.analysis.explain.explanation import Culprit, Explanation, Finding, Source
from hpcprof.analysis.operators.host_time import host_compute, measured_on_host
from hpcprof.analysis.statistics.grouped import sums
from hpcprof.analysis.steps.step_ranges import shown_name, steps_of
from hpcprof.analysis.steps.streams import NO_CALL, launch_calls
from hpcprof.analysis.steps.wall_time import StepTimes, step_intervals
from hpcprof.profiles.columns.unique import name_matches, numbered, numbered_rows, rows_by_key
from hpcprof.profiles.frames import BUILT_IN, NO_LINE
from hpcprof.profiles.timeline import (
    NO_NAME,
    ApiCalls,
    Category,
    Functions,
    Ints,
    Operations,
    Ranges,
    Spans,
    Timeline,
)
from hpcprof.profiles.waiting_calls import launches_graph

_MAX_RANKS = 16
"""Maximum number of ranks of a finding whose timelines are searched."""

_MAX_FUNCTIONS, _MIN_FUNCTION_PCT = 3, 5.0
"""Maximum number of functions of a finding, and minimum share of its host work for each, in percent."""

_Line = tuple[str, str, int]


def sources_of(
    cause: str, where: str, ranks: tuple[int, ...], timelines: Mapping[int, Timeline]
) -> tuple[Source, ...] | None:
    """Return the functions with most of the host work of a finding, in descending order of time.

    ``where`` is the path of its range; empty for the whole step. None is returned if the work is not of the
    host, or no stacks were recorded.
    """
    declared = cause_of(cause)
    if not declared.is_of_host:
        return None
    time: Counter[_Line | None] = Counter()
    for rank in ranks:
        if rank in timelines and len(timelines[rank].functions):
            time += _time_by_line(timelines[rank], declared, where)
    return _by_function(time) or None


def _by_function(time: Mapping[_Line | None, int]) -> tuple[Source, ...]:
    total, lines_of = sum(time.values()), defaultdict[tuple[str, str], dict[int, int]](dict)
    for place, length in time.items():
        if place is not None:
            function, file, line = place
            lines_of[function, file][line] = length
    sources = []
    for (function, file), lines in lines_of.items():
        longest = max(lines, key=lines.__getitem__)
        share = round(100 * sum(lines.values()) / total, 1)
        sources.append(Source(file or None, None if longest == NO_LINE else longest, function, share))
    sources.sort(key=lambda source: -source.share_pct)
    return tuple(source for source in sources[:_MAX_FUNCTIONS] if source.share_pct >= _MIN_FUNCTION_PCT)


def _time_by_line(timeline: Timeline, cause: CauseDeclaration, where: str) -> Counter[_Line | None]:
    """Return the time in ns of each line in the host work of a finding; None stands for other code."""
    steps, functions = step_intervals(timeline), timeline.functions
    counter: Counter[_Line | None] = Counter()
    if not len(steps.start):
        return counter
    places = places_of(timeline, int(steps.start.min()), int(steps.end.max()))
    inside = np.array([*(is_inside(text, where) for text in places.texts), not where], bool)
    # Threads that call the GPU or, on a CPU, operators.
    table = timeline.calls if len(timeline.calls) else timeline.operators
    working = {(process, thread) for (process, thread), _ in rows_by_key(table.process, table.thread)}
    working.add(marking_thread(timeline))
    computing = _innermost_row(_computing_times(timeline, cause))
    for (process, number), rows in rows_by_key(functions.process, functions.thread):
        thread = (process, number)
        if thread not in working:
            continue
        rows_of = functions.take(rows)
        in_c = name_matches(timeline, rows_of.file, BUILT_IN.__eq__)
        function, place = _innermost_row(rows_of), places.of(thread)
        calling = _calls_of_cause(timeline, cause, thread, steps)
        _, start, end = split_by_function([function, place, calling, computing], steps.start, steps.end)
        chosen = inside[place.at(start)] & (computing.at(start) == NONE)
        if cause.calls:
            chosen &= calling.at(start) != NONE
        row, length = function.at(start[chosen]), (end - start)[chosen]
        own_rows = np.flatnonzero(~in_c)
        caller = _innermost_row(rows_of.take(own_rows)).at(start[chosen])
        caller = np.where(caller == NONE, row, own_rows[caller] if len(own_rows) else row)
        pairs, numbers = numbered_rows(row, caller)
        for (called, calling_row), ns in zip(pairs.tolist(), sums(numbers, length, len(pairs)), strict=True):
            counter[_line_of(timeline, rows_of, called, calling_row)] += int(ns)
    return counter


def _line_of(timeline: Timeline, functions: Functions, called: int, caller: int) -> _Line | None:
    """Return the function, file and line of a row; a function in C has those of its ``caller``."""
    if called == NONE:
        return None
    name, own_name, file = timeline.names(
        np.array([functions.function[called], functions.function[caller], functions.file[caller]])
    )
    function = f"{name} in {own_name}" if functions.function[called] != functions.function[caller] else name
    return function or "", "" if file in (None, BUILT_IN) else file, int(functions.line[caller])


def _computing_times(timeline: Timeline, cause: CauseDeclaration) -> Spans:
    """Return when a program without a GPU computes: no work of the host, though a rank may be late by it."""
    is_other_work = measured_on_host(timeline) and Trait.DELAYS_OTHERS not in cause.traits
    start, end = host_compute(timeline) if is_other_work else np.empty((2, 0), np.int64)
    zeros = np.zeros(len(start), np.int64)
    return Spans(start, end, zeros, zeros)


def _calls_of_cause(
    timeline: Timeline, cause: CauseDeclaration, thread: Thread, steps: StepTimes
) -> StepFunction:
    calls = timeline.calls
    rows = calls_touching(calls, thread, steps.start, steps.end) if cause.calls else np.empty(0, np.int64)
    return call_at(calls, rows[name_matches(timeline, calls.name[rows], re.compile(cause.calls).search)])


def _innermost_row(spans: Spans) -> StepFunction:
    """Return the row of one thread's innermost span at each moment."""
    return innermost(Ranges(spans.start, spans.end, spans.process, spans.thread, np.arange(len(spans))))


_MAX_OTHER_RANKS = 8
"""Maximum number of ranks with which the kernels of a late one are compared."""


def culprit_of(
    cause: str, where: str, ranks: tuple[int, ...], timelines: Mapping[int, Timeline]
) -> Culprit | None:
    """Return the longest slice that shows a finding, outside the first step if there is one.

    ``where`` is the path of its range; empty for the whole step.
    """
    declared = cause_of(cause)
    if not declared.has_slice:
        return None
    read = [rank for rank in ranks if rank in timelines]
    only = {rank: _slowest_kernel(rank, timelines) for rank in read if cause == Cause.LATE_RANK_GPU}
    calls = [_longest_slice(rank, timelines[rank], declared, where, only.get(rank)) for rank in read]
    steps = [steps_of(timelines[rank]).number for rank in read]
    first = min((int(number[0]) for number in steps if len(number)), default=0)
    return max(
        (call for call in calls if call), key=lambda call: (call.step > first, call.duration_ns), default=None
    )


def _slowest_kernel(rank: int, timelines: Mapping[int, Timeline]) -> str | None:
    """Return the kernel with most excess time over the median of other ranks, None without excess."""
    other_ranks = [other for other in timelines if other != rank][:_MAX_OTHER_RANKS]
    times = [_time_by_name(timelines[other]) for other in other_ranks]
    excess = {
        name: time - median(other.get(name, 0) for other in times) if times else 0
        for name, time in _time_by_name(timelines[rank]).items()
    }
    slowest = max(excess, key=excess.__getitem__, default=None)
    return slowest if slowest is not None and excess[slowest] > 0 else None


def _time_by_name(timeline: Timeline) -> dict[str, int]:
    kernels = timeline.kernels
    used, row = numbered(kernels.name)
    computing = np.where(kernels.category == Category.COMP, kernels.end - kernels.start, 0)
    time = sums(row, computing, len(used))
    return {text: int(ns) for text, ns in zip(timeline.names(used), time, strict=True) if text}


def _longest_slice(
    rank: int, timeline: Timeline, cause: CauseDeclaration, where: str, kernel: str | None
) -> Culprit | None:
    steps = step_intervals(timeline)
    if not len(steps.start):
        return None
    places = places_of(timeline, int(steps.start.min()), int(steps.end.max()))
    start, end, name = _matching_slices(timeline, places, cause, where)
    within = (start < steps.end[-1]) & (end > steps.start[0])
    if kernel is not None and (is_kernel := within & name_matches(timeline, name, kernel.__eq__)).any():
        within = is_kernel
    start, end, name = start[within], end[within], name[within]
    if not len(start):
        return None
    # Samples before all steps belong to the first.
    step = np.maximum(np.searchsorted(steps.start, start, side="right") - 1, 0)
    row = int(np.lexsort((end - start, step > 0))[-1])
    return Culprit(
        rank,
        int(steps_of(timeline).number[step[row]]),
        timeline.names(name[row : row + 1])[0] or "",
        int(start[row] - steps.start[step[row]]),
        int(end[row] - start[row]),
    )


def _matching_slices(
    timeline: Timeline, places: Places, cause: CauseDeclaration, where: str
) -> tuple[Ints, Ints, Ints]:
    """Return start, end and name of the operations, calls or ranges that may show a cause; shape (n,)."""
    wheres = where.split(", ")
    insides = (any(is_inside(text, name) for name in wheres) for text in places.texts)
    inside = np.array([*insides, where in ("", OUTSIDE)], bool)
    if cause.operations:
        work = timeline.columns_of_operations(Operations)
        chosen = work.category == (Category.COMP if cause.operations == "compute" else Category.COMM)
        if cause.kernels:
            chosen &= name_matches(timeline, work.name, cause.kernels)
        calls, launch = timeline.calls, launch_calls(timeline)
        launched = np.flatnonzero(chosen & (launch != NO_CALL))
        place = places.at(timeline, *(getattr(calls, field)[launch[launched]] for field in _THREAD_AND_START))
        rows = launched[inside[place]]
        work = work.take(rows if len(rows) else np.flatnonzero(chosen))
        return work.start, work.end, work.name
    table: ApiCalls | Ranges
    if cause.calls:
        table = timeline.calls
        chosen = name_matches(timeline, table.name, re.compile(cause.calls).search)
    else:
        table = timeline.ranges
        on_thread = (table.domain == NO_NAME) & (table.one_thread != 0) & (table.name != NO_NAME)
        inner = {path.rpartition("/")[2] for path in wheres}

        def is_inner(text: str) -> bool:
            name = shown_name(timeline, text) or ""
            return not inner.isdisjoint((name, without_numbers(name)))

        chosen = on_thread & name_matches(timeline, table.name, is_inner)
    rows = np.flatnonzero(chosen)
    rows = rows[inside[places.at(timeline, *(getattr(table, field)[rows] for field in _THREAD_AND_START))]]
    return table.start[rows], table.end[rows], table.name[rows]


_THREAD_AND_START = ("process", "thread", "start")


def with_culprits(
    explanation: Explanation,
    tables: Mapping[str, pd.DataFrame],
    timelines: Mapping[int, Timeline],
    stack: Stack = "",
) -> Explanation:
    """Return an explanation with evidence in words, and with the functions and the slice of each finding.

    The remedies are those for programs of ``stack``.
    """

    def with_culprit(finding: Finding) -> Finding:
        # A large run reads each timeline when it is used.
        ranks = finding.ranks[:_MAX_RANKS]
        chosen = (timelines[rank].step_range for rank in ranks if rank in timelines)
        whole_step = {"step", *(item.name for item in chosen if item is not None)}
        where = "" if finding.where in whole_step else finding.where
        read = [timelines[rank] for rank in ranks if rank in timelines]
        on_host = bool(read) and not any(timeline.operation_count for timeline in read)
        sources = sources_of(finding.cause, where, ranks, timelines)
        graphs = any(map(_replays_graphs, read))
        return replace(
            finding,
            remedy=remedy_for(stack, finding, replays_graphs=graphs, has_stacks=bool(sources)),
            evidence_text=tuple(
                in_words(tables, evidence, on_host, cause_of(finding.cause)) for evidence in finding.evidence
            ),
            source=sources,
            culprit=culprit_of(finding.cause, where, ranks, timelines),
        )

    return explanation.changed(with_culprit)


def _replays_graphs(timeline: Timeline) -> bool:
    return any(map(launches_graph, timeline.strings[np.unique(timeline.calls.name)].tolist()))


def remedy_for(
    stack: Stack, finding: Finding, *, replays_graphs: bool = False, has_stacks: bool = False
) -> str:
    """Return the remedy of a finding for a stack, if it differs; findings of memory keep theirs."""
    cause = cause_of(finding.cause)
    if replays_graphs and stack != "jax" and "graph" in cause.remedies:
        stack = "graph"
    differs = stack in cause.remedies or (stack == "jax" and Trait.MEMORY not in cause.traits)
    for place, turn in product(("", finding.where), (False, True)):
        # Sentences about a single candidate, or about losses, stay.
        if finding.remedy == cause.advise(place, finding.ranks, in_turn=turn):
            if differs:
                return cause.advise(finding.where, finding.ranks, stack=stack, has_stacks=has_stacks)
            return cause.advise(place, finding.ranks, in_turn=turn, has_stacks=has_stacks)
    return finding.remedy
