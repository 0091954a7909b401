"""Work on the GPU that was launched before the capture, and ends in it."""

import numpy as np

from hpcprof.analysis.steps.streams import NEVER, NO_CALL, launch_calls
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.unique import numbered_rows
from hpcprof.profiles.timeline import Timeline

_LATE_NS = 5_000_000
"""Minimum time without any operation after the return of a launch call, in ns."""
_MAX_OTHER_SHARE = 0.01
"""Maximum share of the operations that may run on other streams meanwhile."""


@computed_once
def earlier_work(timeline: Timeline) -> tuple[int, int]:
    """Return the begin and the end of work on the GPU that the capture lacks; both are 0 without any.

    A stream's first operation starts late, though nothing runs, by more than the capture's calls took before.
    """
    start, end, *stream = timeline.of_operations("start", "end", "process", "device", "stream")
    most = int(np.ceil(_MAX_OTHER_SHARE * len(start))) + 1
    order = np.argpartition(start, most)[:most] if most < len(start) else np.arange(len(start))
    order = order[np.argsort(start[order], kind="stable")]
    call = launch_calls(timeline)[order]
    firsts = np.unique(numbered_rows(*(column[order] for column in stream))[1], return_index=True)[1]
    rows = np.sort(firsts[call[firsts] != NO_CALL])
    ended = np.append(0, np.maximum.accumulate(end[order]))[rows]
    since, until = np.maximum(ended, timeline.calls.end[call[rows]]), start[order[rows]]
    lasted = since - timeline.calls.start.min(initial=NEVER)
    late = np.flatnonzero(until - since >= np.maximum(_LATE_NS, lasted))
    return (int(since[late[-1]]), int(until[late[-1]])) if len(late) else (0, 0)
