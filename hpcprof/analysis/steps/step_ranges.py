"""The steps of a timeline: the ranges that mark them, one after another."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from hpcprof.common.memoize import computed_once
from hpcprof.profiles.columns.unique import rows_by_key
from hpcprof.profiles.timeline import Ints, Ranges, Timeline

_STEP = "iteration"
_PROFILER_STEP = re.compile(r"ProfilerStep#\d+")


@dataclass(frozen=True)
class Steps:
    """The steps of a timeline by their start: the rows of their ranges, and these ranges."""

    rows: Ints
    ranges: Ranges

    def __len__(self) -> int:
        return len(self.rows)


@computed_once
def steps_of(timeline: Timeline) -> Steps:
    """Return the steps of a timeline.

    Steps are the ranges named ``iteration`` or, if there are none, those that the PyTorch profiler names
    ``ProfilerStep#N``. A step that is still open when the profile ends does not count: its time would be
    too short. Of ranges inside each other the outermost is the step. If several threads or processes mark
    steps at the same time, those that take the most time in all count.
    """
    ranges = timeline.ranges
    used = np.unique(ranges.name[(ranges.closed == 1) & (ranges.one_thread == 1)])
    names = timeline.names(used)
    chosen = [i for i, name in zip(used, names, strict=True) if name == _STEP]
    if not chosen:
        chosen = [i for i, name in zip(used, names, strict=True) if name and _PROFILER_STEP.fullmatch(name)]
    rows = np.flatnonzero(np.isin(ranges.name, chosen) & (ranges.closed == 1) & (ranges.one_thread == 1))
    rows = one_after_another(ranges, rows)
    return Steps(rows, ranges.take(rows))


def one_after_another(ranges: Ranges, rows: Ints) -> Ints:
    """Return those of some rows that can be the steps of one program, by their start.

    These are the outermost ranges of each thread of the process whose ranges take the most time; if the
    ranges of its threads overlap, those of the thread whose ranges take the most time.
    """
    processes: dict[int, list[Ints]] = {}
    for (process, _), of_thread in rows_by_key(ranges.process[rows], ranges.thread[rows]):
        processes.setdefault(process, []).append(_outermost(ranges, rows[of_thread]))
    if not processes:
        return rows
    threads = max(processes.values(), key=lambda parts: sum(_duration(ranges, part) for part in parts))
    together = np.concatenate(threads)
    together = together[np.argsort(ranges.start[together], kind="stable")]
    if len(threads) > 1 and np.any(ranges.start[together][1:] < ranges.end[together][:-1]):
        return max(threads, key=lambda part: _duration(ranges, part))
    return together


def _outermost(ranges: Ranges, rows: Ints) -> Ints:
    """Return the rows of a thread that no other of them contains, by start."""
    rows = rows[np.lexsort((-ranges.end[rows], ranges.start[rows]))]
    end = ranges.end[rows]
    outermost: Ints = rows[np.append(True, end[1:] > np.maximum.accumulate(end)[:-1])]
    return outermost


def _duration(ranges: Ranges, rows: Ints) -> int:
    return int(np.sum(ranges.end[rows] - ranges.start[rows]))


def no_steps(timeline: Timeline) -> str:
    """Return the reason why there are no steps."""
    return (
        f"no steps in {timeline.origin.path.name}: it has no complete range named {_STEP} or ProfilerStep#N"
    )
