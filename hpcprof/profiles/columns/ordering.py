"""The order that a column has already: what a profiler writes is nearly in order, and looking is quicker."""

from __future__ import annotations

import numpy as np

from hpcprof.profiles.timeline import Ints


def ascends(values: Ints) -> bool:
    """Return whether no value is below the one before it."""
    return bool(np.all(values[1:] >= values[:-1]))


def ordered(values: Ints) -> Ints:
    """Return the values in ascending order; as they are where they have it."""
    # A stable sort merges what is in order.
    return values if ascends(values) else np.sort(values, kind="stable")


def as_of(values: Ints, moments: Ints, *columns: Ints) -> list[Ints]:
    """Return from columns what holds at each moment: the entry that follows the last value not above it.

    ``values`` ascend, and each column has one entry more: the first holds before all values.
    """
    if len(values) < len(moments) and ascends(moments):
        # How many moments there are between two values is found sooner than where each moment lies.
        edges = np.searchsorted(moments, values)
        times = np.diff(edges, prepend=0, append=len(moments))
        return [np.repeat(column, times) for column in columns]
    at = np.searchsorted(values, moments, side="right")
    return [column[at] for column in columns]


def by_time(start: Ints, end: Ints) -> Ints:
    """Return the rows by start, then end: ``np.lexsort((end, start))``, at once where the starts tell."""
    order = np.argsort(start, kind="stable")
    begun = start[order]
    same = np.flatnonzero(begun[1:] == begun[:-1])
    return np.lexsort((end, start)) if np.any(end[order[same]] > end[order[same + 1]]) else order
