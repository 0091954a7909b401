"""Communicators of MPI as the readers describe them, and the sizes of their collectives.

A communicator has the same name on all ranks, and its members.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hpcprof.profiles.columns.unique import rows_by_key
from hpcprof.profiles.timeline import NO_BYTES, NO_PEER, UNKNOWN_RANKS, Ints

WORLD = "MPI_COMM_WORLD"
ALTERNATIVE = " or "
"""Separates the names of the communicators of which a collective may have any."""
NOBODY = -1
"""Stands for an unknown rank."""
_SHOWN_RUNS, _SHOWN_RANKS = 4, 3


@dataclass(frozen=True)
class Communicator:
    """A communicator as one of its ranks knows it."""

    name: str | None = None
    """The same on all of its ranks; None if the export does not identify it."""
    rank: int = NOBODY
    size: int = UNKNOWN_RANKS
    """Its own rank in the communicator and the number of ranks; -1 if unknown."""
    members: Ints | None = None
    """The rank in the program of each rank, None if they are unknown."""
    children: Counter[str] = field(default_factory=Counter, compare=False)


UNKNOWN = Communicator()


def ranks_in_program(communicators: Sequence[Communicator], number: Ints, within: Ints) -> Ints:
    """Return the rank in the program of each partner, or `NO_PEER`."""
    result = np.full(len(within), NO_PEER)
    for (place,), rows in rows_by_key(number) if len(number) else []:
        members = communicators[place].members
        if members is not None:
            inside = rows[(within[rows] >= 0) & (within[rows] < len(members))]
            result[inside] = members[within[inside]]
    return result


def numbered_text(text: str, number: int) -> str:
    """Return the name of one of several communicators of the same ranks, numbered from 0."""
    return f"{text} #{number + 1}" if number else text


def ranks_in_short(ranks: Ints) -> str:
    """Return ranks in short: ``ranks 0-3``, ``ranks 1,3``, ``ranks 0-62:2``; with a digest if irregular."""
    runs: list[str] = []
    place = 0
    values = ranks.tolist()
    while place < len(values) and len(runs) <= _SHOWN_RUNS:
        stride = values[place + 1] - values[place] if place + 1 < len(values) else 1
        end = place + 1
        while end < len(values) and values[end] - values[end - 1] == stride and stride > 0:
            end += 1
        count = end - place
        if count < _SHOWN_RANKS:
            runs.append(str(values[place]))
            place += 1
        else:
            runs.append(f"{values[place]}-{values[end - 1]}" + (f":{stride}" if stride > 1 else ""))
            place = end
    if len(runs) <= _SHOWN_RUNS:
        return f"ranks {','.join(runs)}"
    digest = hashlib.sha256(",".join(map(str, values)).encode()).hexdigest()[:12]
    return f"{len(values)} ranks {','.join(map(str, values[:_SHOWN_RANKS]))},… {digest}"


NULL = -(1 << 63)
"""Stands for a size that the profiler did not record."""


def bytes_of_rank(operation: str, sent: Ints, received: Ints, ranks: Ints, rank: Ints) -> tuple[Ints, Ints]:
    """Return the bytes that a rank gives to collectives and gets from them, or `NO_BYTES`.

    Both profilers count each pair of ranks: they multiply the size of a buffer with the number of ranks that
    get or send it, one less in place. If only one of both is NULL, it counts as 0. ``sent`` and ``received``
    are as the profiler counts, ``ranks`` is the size of the communicator and ``rank`` the own rank in it, -1
    if unknown; all have the shape (n,).
    """
    single, other_ranks = np.ones_like(ranks), ranks - 1
    receivers, senders = {
        "AllReduce": (ranks, ranks),
        "AllGather": (ranks, single),
        "AllGatherV": (ranks, single),
        "Broadcast": (ranks, single),
        "Reduce": (single, ranks),
        "ReduceScatter": (single, ranks),
        "Scan": (ranks - rank, rank + 1),
        "Exscan": (other_ranks - rank, rank),
    }.get(operation, (single, single))
    has_sent, has_received = sent != NULL, received != NULL
    passed = np.where(has_sent, sent, 0)
    obtained = np.where(has_received, received, 0)
    if operation == "AllReduce":
        # Sizes count whole elements; that reveals most operations in place.
        in_place = (passed % np.maximum(ranks, 1) != 0) & (passed % np.maximum(other_ranks, 1) == 0)
        receivers = senders = np.where(in_place, other_ranks, ranks)
    elif operation == "Broadcast":
        obtained = np.where(has_sent, 0, obtained)
    elif operation == "Reduce":
        in_place = has_received & ~has_sent
        senders = np.where(in_place, other_ranks, ranks)
        passed = np.where(in_place, obtained // np.maximum(other_ranks, 1), passed)
    valid = (has_sent | has_received) & (receivers >= 0) & (senders >= 0) & (ranks > 0)
    return (
        np.where(valid, passed // np.maximum(receivers, 1), NO_BYTES),
        np.where(valid, obtained // np.maximum(senders, 1), NO_BYTES),
    )


_PROCESS_LABEL = " of process "


def of_one_process(text: str, process: int) -> str:
    """Return the name of a communicator of devices that one process has: others may use the same numbers."""
    return f"{text}{_PROCESS_LABEL}{process}"


def is_of_one_process(name: str) -> bool:
    """Return whether a communicator has devices of one process only: its size tells nothing of ranks."""
    return _PROCESS_LABEL in name
