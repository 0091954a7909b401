"""A host that keeps pace with its GPU, although no call of it waits: it polls, or it knows the time.

Such a host begins its next call about when the GPU has done all that it was given. Its long pauses are then
waits: without what the GPU waits for, they would be shorter too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpcprof.analysis.explain.host_activity import NONE
from hpcprof.analysis.explain.rank_activity import HostCalls, Work
from hpcprof.profiles.timeline import Ints

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
    late = calls.start[long] - reach[place]
    exact = np.abs(late) <= _EXACT_NS
    if exact.sum() < max(_FEWEST, _MOSTLY * len(long)):
        return Pace(*np.empty((2, 0), np.int64))
    pause = calls.start[long] - calls.end[calls.before[long]]
    waits = exact | ((late > 0) & (late <= _REST * pause))
    return Pace(long[waits], order[newest[place[waits]]])
