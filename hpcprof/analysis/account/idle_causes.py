"""Causes of idle GPU time: what the next operation waits for, nanosecond by nanosecond."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.account.call_kinds import CallKind, kind_of_call
from hpcprof.analysis.account.host_activity import (
    NONE,
    NOWHERE,
    StepFunction,
    Thread,
    at,
    call_at,
    calls_touching,
    innermost_ranges,
    marking_thread,
    split_by_function,
    threads_of,
)
from hpcprof.analysis.account.step_account import busy_time, nothing_ran
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.operators.host_time import measured_on_host
from hpcprof.analysis.statistics.grouped import sums
from hpcprof.analysis.steps.lost_launches import steps_with_lost_launches
from hpcprof.analysis.steps.run_step import ended_steps
from hpcprof.analysis.steps.step_ranges import no_steps, shown_name, steps_of
from hpcprof.analysis.steps.streams import launch_calls, why_no_launches
from hpcprof.analysis.steps.wall_time import StepTimes, step_intervals
from hpcprof.analysis.summaries.api_calls import without_version
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.intervals import Intervals, difference, union
from hpcprof.profiles.columns.ordering import ordered
from hpcprof.profiles.columns.unique import (
    begins_run,
    distinct,
    number_texts,
    numbered,
    numbered_rows,
    object_array,
)
from hpcprof.profiles.timeline import NO_NAME, Category, Ints, Mask, Table, Timeline, concatenate


class IdleCause(IntEnum):
    """The cause of idle time: what the next operation waits for.

    - ``HOST``: the thread that launches it does something else.
    - ``SYNC``: that thread was blocked until the GPU had no more work. For as long as it was blocked, it
      launched nothing ahead.
    - ``ALLOCATION``: that thread allocates or frees memory.
    - ``COPY``: that thread is, or was, in a copy that blocks it.
    - ``LAUNCH``: the operation was launched in time, and starts late.
    - ``DEPENDENCY``: it was launched in time, and the last operation before it ran on another stream.
    - ``UNKNOWN``: its launch, or another operation of the step, was not recorded.
    """

    HOST = 0
    SYNC = 1
    ALLOCATION = 2
    COPY = 3
    LAUNCH = 4
    DEPENDENCY = 5
    UNKNOWN = 6


_CAUSE_OF_BLOCKING_CALL = {
    CallKind.ALLOCATE: IdleCause.ALLOCATION,
    CallKind.FREE: IdleCause.ALLOCATION,
    CallKind.WAIT: IdleCause.SYNC,
}
"""Calls that hold up a thread while the GPU becomes idle; a copy does too."""

_BATCH_OF_GAPS = 1 << 16
"""Number of gaps that are explained at a time, which limits the memory."""

_LONG_CALL_NS = 100_000
"""Minimum length in ns of a launch call that holds its thread up, such as one that loads a kernel's code."""

_LAG_NS = 10_000
"""Default time from a launch call to the start of the operation, in ns."""


@dataclass(frozen=True)
class _Gaps(Table):
    """The intervals inside steps in which no GPU of the process works; the arrays have shape (gaps,)."""

    number: Ints
    start: Ints
    end: Ints
    call: Ints
    """The call that launched the next operation, `NONE` if it was not recorded or there is none."""
    begun: Ints
    """Start of that call, 0 if there is none."""
    launched: Ints
    """The moment until which the GPU waits for the host; the rest of the gap is due to the launch."""
    holding: Ints
    """The call that holds up the launching thread when the gap begins, or `NONE`."""
    held: Ints
    """The part of the gap that this call causes, in ns."""
    copies: Mask
    changes_stream: Mask
    """True if the next operation moves memory, and if the one before ran on another stream."""


@dataclass(frozen=True)
class _Pieces(Table):
    """Parts of gaps that have one cause; ``kind`` is a number of `_Kinds`."""

    gap: Ints
    length: Ints
    kind: Ints


@dataclass(frozen=True)
class _Sums(Table):
    """The time of each kind in each step, by the step's position, and the number of gaps that have it."""

    step: Ints
    kind: Ints
    time: Ints
    gaps: Ints


def idle_causes(timeline: Timeline) -> Outcome:
    """Divide the idle time of the steps by the cause for which the next operation was waiting.

    ``idle_ns_per_step`` is the mean over the steps, and ``gaps`` the number of gaps with the cause; a last
    step without an end does not count, as in `step_kinds`. ``range`` is the innermost range of the launching
    thread, or otherwise of the thread that marks the steps; ``api`` is the call of the launching thread.
    Until its launch call begins, or a long one returns, an operation waits for the host, and then for the
    launch.

    Without work on a GPU, the host is idle while no operator is executed and no collective runs. The cause is
    ``host``, and ``range`` is the range of the thread that marks the steps.
    """
    divided_idle = _idle_time(timeline)
    if isinstance(divided_idle, str):
        return no_rows(divided_idle)
    times = step_intervals(timeline)
    steps = ended_steps(times.start, times.end - times.start)
    counted = divided_idle.sums.take(divided_idle.sums.step < steps)
    if not len(counted):
        return no_rows("no step that ends has idle time")
    kind, number = numbered(counted.kind)
    time, gaps = (sums(number, amounts, len(kind)) for amounts in (counted.time, counted.gaps))
    per_step = np.rint(time / steps).astype(np.int64)
    return Outcome(divided_idle.kinds.columns(kind) | {"idle_ns_per_step": per_step, "gaps": gaps})


def step_idle_causes(timeline: Timeline) -> Outcome:
    """Divide the idle time of each step by its causes, as `idle_causes` does.

    ``range`` is the one with most of the time of the cause in the step. The times of a step add up to
    ``idle_ns`` of ``step_parts``.
    """
    divided_idle = _idle_time(timeline)
    if isinstance(divided_idle, str):
        return no_rows(divided_idle)
    idle, kinds = divided_idle.sums, divided_idle.kinds
    cause, range_ = kinds.parts(idle.kind)[:2]
    groups, number = numbered_rows(idle.step, cause, range_)
    time = sums(number, idle.time, len(groups))
    # The range with most time is the last one of its step and cause.
    order = np.lexsort((time, *groups.T[1::-1]))
    pairs, number = numbered_rows(*groups[:, :2].T)
    longest = np.empty(len(pairs), np.int64)
    longest[number[order]] = order
    return Outcome(
        {
            "step": steps_of(timeline).number[pairs[:, 0]],
            "cause": _cause_names(pairs[:, 1]),
            "range": kinds.ranges[groups[longest, 2]],
            "idle_ns": sums(number, time, len(pairs)),
        }
    )


@dataclass(frozen=True)
class _IdleTime:
    kinds: "_Kinds"
    sums: _Sums


@computed_once
def _idle_time(timeline: Timeline) -> _IdleTime | str:
    file = timeline.origin.path.name
    times = step_intervals(timeline)
    if not len(times.start):
        return no_steps(timeline)
    on_host = measured_on_host(timeline)
    if not timeline.operation_count and not on_host:
        return nothing_ran(timeline)
    if steps_of(timeline).by_operations(timeline):
        return why_no_launches(timeline)
    idle = difference(union(times.start, times.end), busy_time(timeline).busy)
    if not len(idle[0]):
        return f"the {'host' if on_host else 'GPU'} is never idle in the steps of {file}"
    kinds = _kinds(timeline)
    idle, step = _by_step(idle, times)
    return _IdleTime(
        kinds, (_sums_between_operators if on_host else _sums_of_gaps)(timeline, kinds, idle, step)
    )


def _by_step(idle: Intervals, times: StepTimes) -> tuple[Intervals, Ints]:
    begin = np.sort(times.start)
    before = np.searchsorted(idle[0], begin) - 1
    inside = begin[(before >= 0) & (begin < idle[1][before])]
    start, end = (np.sort(np.concatenate((side, inside))) for side in idle)
    order = np.argsort(times.start, kind="stable")
    return (start, end), order[np.searchsorted(times.start[order], start, side="right") - 1]


def _cause_names(cause: Ints) -> NDArray[np.object_]:
    return object_array(IdleCause(value).name.lower() for value in cause.tolist())


@dataclass(frozen=True)
class _Kinds:
    """Numbers for the combinations of a cause, a range and a call, by their texts.

    ``ranges`` and ``calls`` are the texts, ascending. The other fields have the shape (names + 1,).
    """

    ranges: NDArray[np.object_]
    range_of: Ints
    """The index of the range's text for each id of a name; the last is that of `NO_NAME`."""
    calls: NDArray[np.object_]
    call_of: Ints
    """The index of the call's text, likewise."""
    held_by: Ints
    """The `IdleCause` of the time after a call of each name if the GPU becomes idle in it."""

    def number(self, cause: Ints, range_: Ints, call: Ints) -> Ints:
        """Return the number of each cause, with the ids of the names of its range and its call."""
        return (cause * len(self.ranges) + self.range_of[range_]) * len(self.calls) + self.call_of[call]

    def parts(self, kind: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the causes of some numbers, and the places of their ranges and calls among the texts."""
        cause, texts = np.divmod(kind, len(self.ranges) * len(self.calls))
        range_, call = np.divmod(texts, len(self.calls))
        return cause, range_, call

    def columns(self, kind: Ints) -> dict[str, NDArray[Any]]:
        """Return the texts of some numbers."""
        cause, range_, call = self.parts(kind)
        return {"cause": _cause_names(cause), "range": self.ranges[range_], "api": self.calls[call]}


def _kinds(timeline: Timeline) -> _Kinds:
    def by_id(ids: Ints, values: Ints) -> Ints:
        table = np.zeros(len(timeline.strings) + 1, np.int64)
        table[ids] = values
        return table

    # `NO_NAME` is -1 and so selects the last element.
    range_names, call_names = (
        np.append(distinct(table.name), NO_NAME) for table in (timeline.ranges, timeline.calls)
    )
    ranges, range_ = number_texts(timeline, range_names, partial(shown_name, timeline))
    calls, call = number_texts(timeline, call_names, without_version)
    cause_ids = np.array([_cause_of(name) for name in timeline.names(call_names)], np.int64)
    return _Kinds(
        ranges, by_id(range_names, range_), calls, by_id(call_names, call), by_id(call_names, cause_ids)
    )


def _cause_of(name: str | None) -> IdleCause:
    cause = _CAUSE_OF_BLOCKING_CALL.get(kind_of_call(name or ""), IdleCause.HOST)
    is_copy = cause is IdleCause.HOST and re.search(r"Mem(cpy|set)", name or "")
    return IdleCause.COPY if is_copy else cause


def _sums_between_operators(timeline: Timeline, kinds: _Kinds, idle: Intervals, step: Ints) -> _Sums:
    """Return the sums of the pieces of gaps between the operators of the host, one for each range."""
    place = _place(timeline, None)
    gap, start, end = split_by_function((place,), *idle)
    cause, call = np.full(len(gap), int(IdleCause.HOST)), np.full(len(gap), NO_NAME)
    return _sum_of_pieces(_Pieces(gap, end - start, kinds.number(cause, place.at(start), call)), step)


def _sums_of_gaps(timeline: Timeline, kinds: _Kinds, idle: Intervals, step: Ints) -> _Sums:
    """Return the sums of the pieces of all gaps, whose lengths add up to those of the gaps."""
    gaps = _gaps(timeline, idle)
    if (unknown := steps_with_lost_launches(timeline)[step]).any():
        launched = np.where(unknown, gaps.start, gaps.launched)
        gaps = replace(gaps, call=np.where(unknown, NONE, gaps.call), launched=launched)
    lag = _usual_lag(gaps)
    threads, thread = threads_of(timeline.calls, gaps.call)
    parts = [
        part
        for number, key in ((NONE, None), *enumerate(threads))
        for part in _sums_of_thread(
            timeline, kinds, gaps.take(np.flatnonzero(thread == number)), key, lag, step
        )
    ]
    whole = concatenate(_Sums, parts)
    rows, row = numbered_rows(whole.step, whole.kind)
    time, count = (sums(row, amounts, len(rows)) for amounts in (whole.time, whole.gaps))
    return _Sums(rows[:, 0], rows[:, 1], time, count)


def _sums_of_thread(
    timeline: Timeline, kinds: _Kinds, gaps: _Gaps, thread: Thread | None, lag: int, step: Ints
) -> Iterator[_Sums]:
    """Yield the sums of the pieces of gaps whose next operation a thread launches, batch by batch."""
    if not len(gaps):
        return
    place, calling = _place(timeline, thread), _call_function(timeline, thread, gaps.start, gaps.launched)
    gaps = _gaps_with_calls(timeline, kinds, gaps, calling)
    for at_once in np.split(np.arange(len(gaps)), range(_BATCH_OF_GAPS, len(gaps), _BATCH_OF_GAPS)):
        gaps_at_once = gaps.take(at_once)
        launches = _launch_pieces(timeline, kinds, gaps_at_once, place, lag)
        host = _host_pieces(timeline, kinds, gaps_at_once, place, calling)
        yield _sum_of_pieces(concatenate(_Pieces, (launches, *host)), step)


def _gaps_with_calls(timeline: Timeline, kinds: _Kinds, gaps: _Gaps, calling: StepFunction) -> _Gaps:
    """Return the gaps of a thread with the calls that hold it up when they begin.

    1. Such a call is the cause of a gap until it returns.
    2. Afterwards it is the cause for the time by which it has delayed the thread. The delays of all such
       calls add up, and later gaps use up the sum.
    3. The rest of a gap is work of the host.
    """
    waiting = np.maximum(gaps.launched - gaps.start, 0)
    call = calling.at(gaps.start)
    began, ended = (at(times, call) for times in (timeline.calls.start, timeline.calls.end))
    # The call that launches the operation does not hold it up.
    blocks = (
        (kinds.held_by[_names(timeline, call)] != IdleCause.HOST) & (waiting > 0) & (ended <= gaps.launched)
    )
    inside = np.where(blocks, ended - gaps.start, 0)
    before, after = np.where(blocks, gaps.start - began, 0), waiting - inside
    total = np.cumsum(before - after)
    ahead = total - np.minimum(np.minimum.accumulate(total), 0)
    could = np.append(0, ahead[:-1])[: len(ahead)] + before
    delay = np.where(blocks, inside + np.minimum(after, could), 0)
    return replace(gaps, holding=np.where(blocks, call, NONE), held=delay)


def _call_function(timeline: Timeline, thread: Thread | None, start: Ints, end: Ints) -> StepFunction:
    if thread is None:
        return call_at(timeline.calls, np.empty(0, np.int64))
    waiting = np.flatnonzero(end > start)
    touching = calls_touching(timeline.calls, thread, start[waiting], end[waiting])
    return call_at(timeline.calls, touching)


def _sum_of_pieces(pieces: _Pieces, step: Ints) -> _Sums:
    rows, row = numbered_rows(step[pieces.gap], pieces.kind)
    # A gap may have several pieces of a kind.
    gaps = int(pieces.gap.max(initial=0)) + 1
    pairs = ordered(row * gaps + pieces.gap)
    pairs = pairs[begins_run(pairs)]
    count = np.bincount(pairs // gaps, minlength=len(rows))
    return _Sums(rows[:, 0], rows[:, 1], sums(row, pieces.length, len(rows)), count)


def _gaps(timeline: Timeline, idle: Intervals) -> _Gaps:
    start, end = idle
    starts, ends = timeline.of_operations("start", "end")
    by_start = np.argsort(starts, kind="stable")
    following = np.append(by_start, NONE)[np.searchsorted(starts[by_start], end)]
    by_end = np.argsort(ends, kind="stable")
    before = np.append(NONE, by_end)[np.searchsorted(ends[by_end], start, side="right")]
    del starts, ends, by_start, by_end  # The columns of all operations take much memory.
    call = launch_calls(timeline)[following]
    call[following == NONE] = NONE
    begun, returned = at(timeline.calls.start, call), at(timeline.calls.end, call)
    # An operation that begins after a long call has returned was given to the GPU at its end.
    enqueued = np.where((returned - begun > _LONG_CALL_NS) & (returned <= end), returned, begun)
    device, stream, category = timeline.of_operations("device", "stream", "category")
    return _Gaps(
        number=np.arange(len(start)),
        start=start,
        end=end,
        call=call,
        begun=begun,
        # Without a next operation, the GPU waits for the host until the end of the steps.
        launched=np.select(
            (following == NONE, call == NONE), (end, start), default=np.clip(enqueued, start, end)
        ),
        holding=np.full(len(start), NONE),
        held=np.zeros(len(start), np.int64),
        copies=category[following] == Category.MEM,
        changes_stream=(before != NONE)
        & ((stream[following] != stream[before]) | (device[following] != device[before])),
    )


def _usual_lag(gaps: _Gaps) -> int:
    lag = (gaps.end - gaps.begun)[(gaps.call != NONE) & (gaps.begun >= gaps.start)]
    return int(np.median(lag)) if len(lag) else _LAG_NS


def _place(timeline: Timeline, thread: Thread | None) -> StepFunction:
    """Return the innermost range of a thread, or otherwise of the thread that marks the steps."""
    ranges = innermost_ranges(timeline)
    main = ranges.get(marking_thread(timeline), NOWHERE)
    return main if thread is None else ranges.get(thread, NOWHERE).or_else(main)


def _launch_pieces(timeline: Timeline, kinds: _Kinds, gaps: _Gaps, place: StepFunction, lag: int) -> _Pieces:
    """Return the parts of gaps after the launch of their operation, and whole gaps of unknown launches.

    The gaps have launches of one thread; ``lag`` is the usual time of a launch, in ns.
    """
    gaps = gaps.take(gaps.end > gaps.launched)
    unknown = gaps.call == NONE
    # Missing entries are 0; their values are not used.
    in_call = at(timeline.calls.end, gaps.call) >= gaps.end
    waited = gaps.changes_stream & (gaps.begun + lag < gaps.start)
    cause = np.select(
        (unknown, in_call & gaps.copies, waited),
        (IdleCause.UNKNOWN, IdleCause.COPY, IdleCause.DEPENDENCY),
        default=IdleCause.LAUNCH,
    )
    inside = place.at(np.where(unknown, gaps.start, gaps.begun))
    kind = kinds.number(cause, inside, _names(timeline, gaps.call))
    return _Pieces(gaps.number, gaps.end - gaps.launched, kind)


def _names(timeline: Timeline, call: Ints) -> Ints:
    return np.where(call == NONE, NO_NAME, at(timeline.calls.name, call))


def _host_pieces(
    timeline: Timeline, kinds: _Kinds, gaps: _Gaps, place: StepFunction, calling: StepFunction
) -> tuple[_Pieces, _Pieces]:
    """Return the pieces of each gap before its launch, by the activity of the launching thread.

    The pieces of the calls that hold the thread up come first.
    """
    held_up = gaps.take(gaps.held > 0)
    name = _names(timeline, held_up.holding)
    inside = place.at(at(timeline.calls.start, held_up.holding))
    pieces = _Pieces(held_up.number, held_up.held, kinds.number(kinds.held_by[name], inside, name))
    free = replace(gaps, start=gaps.start + gaps.held)
    free = free.take(free.launched > free.start)
    owner, begin, finish = split_by_function((calling, place), free.start, free.launched)
    name = _names(timeline, calling.at(begin))
    cause = np.where(kinds.held_by[name] == IdleCause.ALLOCATION, IdleCause.ALLOCATION, IdleCause.HOST)
    kind = kinds.number(cause, place.at(begin), name)
    return pieces, _Pieces(free.number[owner], finish - begin, kind)
