"""A host that waits for its GPU although no call is recorded to do so: it polls, or waits in a library.

Such a host begins its next call when the GPU has done all that it was given, or some work later. Without what
the GPU waits for, its pauses would be shorter too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hpcprof.analysis.explain.host_activity import NONE
from hpcprof.analysis.explain.rank_activity import (
    CallKind,
    HostCalls,
    HostPieces,
    RankActivity,
    Work,
)
from hpcprof.analysis.statistics.slopes import grows_with
from hpcprof.profiles.columns.unique import rows_by_key
from hpcprof.profiles.timeline import Ints, concatenate

_LONG_NS = 100_000
"""In a shorter pause a host does not wait."""

_EXACT_NS = 20_000
"""A call that begins so close to the moment at which the GPU runs dry has waited for it."""

_FEWEST = 20
_MOSTLY = 0.5
"""A host keeps pace if so large a part of its long pauses ends exactly when the GPU runs dry."""

_REST = 0.25
"""Of such a host, a pause that goes on for a smaller part of it after that moment was a wait as well."""


class Pace(NamedTuple):
    """The calls of a rank before which its host waits for an operation, and that operation of each."""

    call: Ints
    work: Ints


def with_pauses(activity: RankActivity) -> RankActivity:
    """Add calls of the kind `CallKind.PAUSE` where the host waits for the GPU without a call that does so.

    Each one begins where the call before it ends, and ends when the GPU has run dry.
    """
    calls, pace = activity.calls, pace_of(activity.calls, activity.work)
    count = len(pace.call)
    if not count:
        return activity
    before = calls.before[pace.call]
    start = calls.end[before]
    end = np.clip(activity.work.end[pace.work], start, calls.start[pace.call])
    pauses = replace(
        calls.take(pace.call),
        start=start,
        end=end,
        kind=np.full(count, int(CallKind.PAUSE)),
        name=np.full(count, NONE),
        place=calls.place[before],
        step=calls.step[before],
        before=before,
    )
    every = concatenate(HostCalls, (calls, pauses))
    every.before[pace.call] = len(calls) + np.arange(count)
    order = np.argsort(every.start, kind="stable")
    position = np.append(np.argsort(order), NONE)
    every = every.take(order)
    pieces, work = activity.pieces, activity.work
    shorter = _without_beginnings(pieces, dict(zip(pace.call.tolist(), (end - start).tolist(), strict=True)))
    return replace(
        activity,
        calls=replace(every, before=position[every.before]),
        work=replace(work, call=position[work.call]),
        pieces=replace(shorter, call=position[shorter.call]),
    )


def _without_beginnings(pieces: HostPieces, time: dict[int, int]) -> HostPieces:
    """Shorten the pieces before some calls by the time that the host waited first, in ns by call."""
    length = pieces.length.copy()
    for row in np.flatnonzero(np.isin(pieces.call, [*time])).tolist():
        call = int(pieces.call[row])
        gone = min(time[call], int(length[row]))
        length[row] -= gone
        time[call] -= gone
    return replace(pieces, length=length).take(length > 0)


def pace_of(calls: HostCalls, work: Work) -> Pace:
    """Return what a host waits for in its long pauses; empty if it does not keep pace with its GPU."""
    launched = calls.start[work.call]
    order = np.argsort(launched, kind="stable")
    # Of the operations that were launched before each one, and of that one, the one that ends last.
    reach = np.maximum.accumulate(work.end[order]) if len(order) else order
    newest = np.maximum.accumulate(np.where(work.end[order] == reach, np.arange(len(order)), 0))
    long = np.flatnonzero(calls.before != NONE)
    long = long[calls.start[long] - calls.end[calls.before[long]] > _LONG_NS]
    place = np.searchsorted(launched[order], calls.start[long]) - 1
    long, place = long[place >= 0], place[place >= 0]
    begin = calls.end[calls.before[long]]
    pause, left = calls.start[long] - begin, reach[place] - begin
    late = pause - left
    exact = np.abs(late) <= _EXACT_NS
    if exact.sum() >= max(_FEWEST, _MOSTLY * len(long)):
        waits = exact | ((late > 0) & (late <= _REST * pause))
    else:
        waits = np.zeros(len(long), bool)
        busy = np.flatnonzero(left > _LONG_NS)
        for _, rows in rows_by_key(calls.name[long[busy]], calls.place[long[busy]]) if len(busy) else ():
            waits[busy[rows]] = grows_with(left[busy[rows]] - _EXACT_NS, pause[busy[rows]])
    return Pace(long[waits], order[newest[place[waits]]])
