"""Places in the program: the path of a thread's innermost range, below the range of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcprof.analysis.explain.host_activity import NONE, StepFunction, Thread, innermost, marking_thread
from hpcprof.analysis.steps.range_tree import NO_PARENT, parents
from hpcprof.analysis.steps.step_ranges import shown_name, steps_of
from hpcprof.profiles.columns.unique import rows_by_key
from hpcprof.profiles.timeline import NO_NAME, Ints, Timeline

OUTSIDE = "code outside all ranges"
"""The place of what is in none, in programs that have some."""

_NOWHERE = StepFunction(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True)
class Places:
    """The place of each thread at a moment, as a number of ``texts``; `NONE` outside every range.

    A thread outside its own ranges is where the thread is that marks the steps.
    """

    texts: tuple[str, ...]
    threads: dict[Thread, StepFunction]
    marking: StepFunction

    def of(self, thread: Thread) -> tuple[StepFunction, StepFunction]:
        """Return where a thread is by its own ranges, and where it is outside them."""
        return self.threads.get(thread, _NOWHERE), self.marking

    def at(self, timeline: Timeline, process: Ints, thread: Ints, moment: Ints) -> Ints:
        """Return where each thread is at a moment of its own, shape (n,)."""
        result = np.empty(len(moment), np.int64)
        for (one, other), rows in rows_by_key(process, thread):
            own, marking = self.of((one, other))
            found = own.at(moment[rows])
            result[rows] = np.where(found == NONE, marking.at(moment[rows]), found)
        return result


def places_of(timeline: Timeline, begin: int, end: int) -> Places:
    """Return where the threads are between two moments.

    Only ranges that the program itself marked count, not those of libraries, which have a domain, but for
    executions of programs that mark the steps: what lies between these is outside.
    """
    steps = steps_of(timeline)
    ranges = timeline.ranges
    counts = ranges.domain == NO_NAME
    if steps.marker:
        counts[steps.rows] = True
    touching = (ranges.end >= begin) & (ranges.start <= end)
    own = ranges.take(counts & (ranges.one_thread == 1) & touching)
    above = parents(own)
    used = {text: shown_name(timeline, text) or "" for text in set(timeline.names(own.name)) if text}
    names = [used.get(text or "", "") for text in timeline.names(own.name)]
    paths = _paths(names, above, steps.name)
    texts = tuple(sorted(set(paths)))
    number = {text: i for i, text in enumerate(texts)}
    placed = replace(own, name=np.array([number[path] for path in paths], np.int64))
    threads = {
        (process, thread): innermost(placed.take(rows))
        for (process, thread), rows in rows_by_key(own.process, own.thread)
    }
    return Places(texts, threads, threads.get(marking_thread(timeline), _NOWHERE))


def _paths(names: Sequence[str], above: Ints, step: str) -> list[str]:
    """Return the path of each range: the names from the one below the step, joined by slashes."""
    found: dict[int, str] = {}

    def path(row: int) -> str:
        chain = []
        while row != NO_PARENT and row not in found and row not in chain:
            chain.append(row)
            row = int(above[row])
        prefix = found.get(row, "")
        for one in reversed(chain):
            inside = prefix if prefix != step else ""
            prefix = names[one] if names[one] == step else f"{inside}/{names[one]}".removeprefix("/")
            found[one] = prefix
        return prefix

    return [path(row) for row in range(len(names))]


def is_inside(place: str, other: str) -> bool:
    """Return whether a place is another one or lies in it; everything lies in the place without a name."""
    return not other or place == other or place.startswith(f"{other}/")
