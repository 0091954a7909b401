"""Replays the MPI calls of a run on an ideal network, on which messages take no time.

A call then lasts only until its last partner has come. Calls with unmatched operations keep their length, as
does ``MPI_Init``, which starts the run on all ranks at once. A send that waited for its receive still waits.
"""

from collections import deque
from collections.abc import Mapping

import msgspec
import numpy as np

from hpcprof.analysis.mpi.matching import RunMpi
from hpcprof.analysis.mpi.run_lists import NONE, START_CALLS
from hpcprof.analysis.mpi.waits import blocked_sends, collective_needs
from hpcprof.profiles.timeline import Ints

_NOT_YET_NS = -(1 << 62)
_NO_ROWS = np.empty(0, np.int64)


class _Plan(msgspec.Struct, frozen=True):
    """The events of a replay: calls and, after them by number, collectives."""

    waiting: Ints
    awaited: Ints
    """A call that waits, and the event that it waits for."""
    coming: Ints
    joined: Ints
    """A call, and the collective that it joins."""
    size: int
    """The number of events."""


def ideal_times(run: RunMpi, begun: Mapping[int, int]) -> tuple[Ints, Ints]:
    """Return the begin and the end of each call on an ideal network, in ns on the common clock.

    The time is linear in the number of calls and partners. ``begun`` has the begin of the first call of each
    thread, by the thread's number; by default it is the measured one.
    """
    calls, ops = run.calls, run.operations
    bounds = calls.first
    unavoidable = np.zeros(len(calls), np.int64)
    unmatched = ops.completes[ops.match == NONE]
    unavoidable[unmatched] = calls.length[unmatched]
    names = [number for number, name in enumerate(calls.names) if name in START_CALLS]
    starts = np.isin(calls.name, names)
    unavoidable[starts] = calls.length[starts]
    # The time of each call's begin if nothing waited.
    begin = np.cumsum(calls.gap + np.append(0, unavoidable[:-1]))
    threads = calls.sequence[bounds[:-1]].tolist()
    first = calls.start[bounds[:-1]].copy()
    for place, thread in enumerate(threads):
        first[place] = begun.get(thread, first[place])
    begin += np.repeat(first - begin[bounds[:-1]], np.diff(bounds))
    later, after = _replay_waits(_plan(run), begin, begin + unavoidable, bounds)
    return begin + later, begin + unavoidable + after


def _plan(run: RunMpi) -> _Plan:
    ops = run.operations
    messages = np.concatenate([ops.matched_receives, blocked_sends(run)])
    waiting, awaited = [ops.completes[messages]], [ops.begin[ops.partner[messages]]]
    coming, joined = [_NO_ROWS], [_NO_ROWS]
    size = len(run.calls)
    for need in collective_needs(run):
        rows = need.together
        number = np.broadcast_to((size + np.arange(len(rows)))[:, None], rows.shape)
        waiting += [ops.completes[need.waiters], ops.completes[rows[need.waits]]]
        awaited += [ops.begin[need.awaited], number[need.waits]]
        coming.append(ops.begin[rows].ravel())
        joined.append(number.ravel())
        size += len(rows)
    return _Plan(
        np.concatenate(waiting), np.concatenate(awaited), np.concatenate(coming), np.concatenate(joined), size
    )


class _ValuesByKey:
    """The values of each key, as a compressed sparse row table."""

    def __init__(self, keys: Ints, values: Ints, size: int) -> None:
        first = np.zeros(size + 1, np.int64)
        np.cumsum(np.bincount(keys, minlength=size), out=first[1:])
        self._first, self._values = first.data, values[np.argsort(keys, kind="stable")].data

    def of(self, key: int) -> memoryview:
        """Return the values of a key."""
        return self._values[self._first[key] : self._first[key + 1]]


class _Events:
    """The events that have happened in a replay, and the threads that wait for others."""

    def __init__(self, plan: _Plan, calls: int) -> None:
        self._calls = calls
        self._needs = _ValuesByKey(plan.waiting, plan.awaited, calls)
        self._joins = _ValuesByKey(plan.coming, plan.joined, calls)
        self._missing = np.bincount(plan.joined, minlength=plan.size).data
        self._time = np.full(plan.size, _NOT_YET_NS).data
        self._blocked: dict[int, list[int]] = {}

    def has_begun(self, call: int) -> bool:
        """Return whether a call has a time."""
        return bool(self._time[call] != _NOT_YET_NS)

    def begin(self, call: int, moment: int) -> list[int]:
        """Set the begin of a call, and return the threads that waited for it."""
        time, missing = self._time, self._missing
        time[call] = moment
        ready = self._blocked.pop(call, [])
        for number in self._joins.of(call):
            missing[number] -= 1
            time[number] = max(time[number], moment)
            if not missing[number]:
                ready = ready + self._blocked.pop(number, [])
        return ready

    def last_needed(self, call: int, thread: int, *, forced: bool) -> int | None:
        """Return the time of the last event that a call needs; None if unknown, and the thread then waits."""
        time, missing, latest = self._time, self._missing, _NOT_YET_NS
        for number in self._needs.of(call):
            if time[number] == _NOT_YET_NS or (number >= self._calls and missing[number]):
                if not forced:
                    self._blocked.setdefault(number, []).append(thread)
                    return None
            elif time[number] > latest:
                latest = time[number]
        return latest


def _replay_waits(plan: _Plan, begin: Ints, end: Ints, bounds: Ints) -> tuple[Ints, Ints]:
    """Return the delay of the begin and the end of each call by waits, in ns.

    Each thread goes on until it waits for an event without a time, and is ready again once that has one.
    """
    calls = len(begin)
    matters = np.zeros(calls, bool)
    for places in (plan.waiting, plan.coming, plan.awaited[plan.awaited < calls]):
        matters[places] = True
    chosen = np.flatnonzero(matters)
    events = _Events(plan, calls)
    begins, ends, call_of = begin.data, end.data, chosen.data
    # The delay of each call before and after its own waits.
    early, late = np.zeros(len(chosen), np.int64), np.zeros(len(chosen), np.int64)
    before, after = early.data, late.data
    place = np.searchsorted(chosen, bounds).tolist()
    position, stop, delay = place[:-1], place[1:], [0] * (len(place) - 1)
    unfinished = {thread for thread, at in enumerate(position) if at < stop[thread]}
    ready, forced = deque(sorted(unfinished)), NONE
    while unfinished:
        if not ready:
            # In a damaged run, the remaining threads wait in a cycle: the earliest one goes on.
            forced = min(unfinished, key=lambda waiter: begins[call_of[position[waiter]]] + delay[waiter])
            ready.append(forced)
        thread = ready.popleft()
        while position[thread] < stop[thread]:
            at = position[thread]
            call = call_of[at]
            if not events.has_begun(call):
                before[at] = delay[thread]
                ready += events.begin(call, begins[call] + delay[thread])
            latest = events.last_needed(call, thread, forced=thread == forced)
            if latest is None:
                break
            after[at] = delay[thread] = max(delay[thread], latest - ends[call])
            position[thread], forced = at + 1, NONE
        else:
            unfinished.discard(thread)
    # Calls in between have the delay of the call before them on their thread.
    last = np.searchsorted(chosen, np.arange(calls), side="right") - 1
    first = np.repeat(bounds[:-1], np.diff(bounds))
    is_late = (last >= 0) & (chosen[np.maximum(last, 0)] >= first) if len(chosen) else np.zeros(calls, bool)
    delayed = np.where(is_late, late[last] if len(chosen) else 0, 0)
    at_begin = delayed.copy()
    at_begin[chosen] = early
    return at_begin, delayed
