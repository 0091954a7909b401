"""What several analyses of a timeline need is computed once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import TypeVar
from weakref import WeakKeyDictionary

from hpcprof.timeline import Timeline

ResultT = TypeVar("ResultT")


def once(function: Callable[[Timeline], ResultT]) -> Callable[[Timeline], ResultT]:
    """Keep what a function returns for a timeline as long as the timeline lives.

    The result may not refer to the timeline, or neither would ever be freed. Analyses may run in
    threads: the first one computes, the others wait.
    """
    results: WeakKeyDictionary[Timeline, ResultT] = WeakKeyDictionary()
    lock = RLock()

    @wraps(function)
    def kept(timeline: Timeline) -> ResultT:
        with lock:
            if timeline not in results:
                results[timeline] = function(timeline)
            return results[timeline]

    return kept
