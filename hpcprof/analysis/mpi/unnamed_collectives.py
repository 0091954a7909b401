"""Communicators of nonblocking collectives whose records name none (EZTrace's).

The reader gives each of them the communicators that its rank belongs to. Which one it is follows from times:
the ranks of a collective finish waiting for it together, and others at moments of their own.

1. The n-th unnamed collective of each rank of a communicator is compared with those of its other ranks. The
   most frequent difference of two ranks' ends is that of their clocks.
2. A communicator is supported by the share of collectives whose ends then agree on all of its ranks.
   Communicators with less than half the support of one of their parts are left out.
3. A collective belongs to the largest communicator whose ranks end it together or, where a rank waits late,
   to the one with the most support.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from hpcprof.common.grouping import grouped
from hpcprof.profiles.timeline import Floats, Ints

_TOGETHER_NS = 50_000
"""Maximum distance of the ends of a collective on two ranks that wait for it, in ns."""

_MIN_SUPPORT_RATIO = 0.5
"""Minimum support of a communicator over that of one of its parts."""


class UnnamedCollectives(msgspec.Struct, frozen=True):
    """The n collectives of a rank that name no communicator, in their order; arrays of shape (n,)."""

    candidates: Sequence[str]
    """The communicators of the rank that they may belong to."""
    op: Ints
    end: Ints
    """In ns on the clock of the rank."""


def named_communicators(ranks: Mapping[int, UnnamedCollectives]) -> dict[int, list[str | None]]:
    """Return the communicator of each unnamed collective by rank, None if unknown."""
    members = grouped((name, rank) for rank, collectives in ranks.items() for name in collectives.candidates)
    distance = {name: _distances([ranks[rank] for rank in group]) for name, group in members.items()}
    support = {name: float(np.mean(apart <= _TOGETHER_NS)) for name, apart in distance.items() if len(apart)}
    supported = [name for name in support if _is_supported(name, members, support)]
    largest = sorted(supported, key=lambda name: (-len(members[name]), -support[name]))
    likeliest = sorted(supported, key=lambda name: -support[name])
    result: dict[int, list[str | None]] = {rank: [None] * len(item.op) for rank, item in ranks.items()}
    for place in range(max(map(len, result.values()), default=0)):
        close = [
            name for name in largest if place < len(distance[name]) and distance[name][place] <= _TOGETHER_NS
        ]
        for name in (*close, *likeliest):
            group = members[name]
            if all(place < len(result[rank]) and result[rank][place] is None for rank in group):
                for rank in group:
                    result[rank][place] = name
    return result


def _is_supported(name: str, members: Mapping[str, Sequence[int]], support: Mapping[str, float]) -> bool:
    parts = [support[part] for part in support if {*members[part]} < {*members[name]}]
    return support[name] >= _MIN_SUPPORT_RATIO * max(parts, default=0.0)


def _distances(ranks: Sequence[UnnamedCollectives]) -> Floats:
    """Return the largest distance of two ranks' ends of each collective, in ns; empty if they differ."""
    first = ranks[0]
    if any(not np.array_equal(item.op, first.op) for item in ranks):
        return np.empty(0)
    lead = np.column_stack([item.end - first.end for item in ranks]).astype(float)
    lead -= [_most_frequent(column) for column in lead.T]
    distances: Floats = np.ptp(lead, axis=1)
    return distances


def _most_frequent(values: Floats) -> float:
    """Return the middle of the values in the densest window (the mode); ``values`` is not empty."""
    ordered = np.sort(values)
    inside = np.searchsorted(ordered, ordered + _TOGETHER_NS, side="right") - np.arange(len(ordered))
    first = int(inside.argmax())
    return float(np.median(ordered[first : first + inside[first]]))
