"""The groups of rows that a matmul multiplies at once, and the order of the matmuls of a step."""

import math
from dataclasses import dataclass, replace

# The rows of a matmul tile, and the largest number of places where rows are divided.
_TILE_ROWS, _MAX_GROUPS = 128, 32

RowGroups = tuple[int, ...]
"""The numbers of rows that are multiplied at once: ``(a, b)`` is the first a rows, then b rows."""


@dataclass(frozen=True)
class Schedule:
    """The groups of rows of both matmuls in the copy-engine mode.

    Large groups make matmuls efficient. Small groups can start before all rows have arrived, and can be sent
    before all products are done.
    """

    first: RowGroups
    second: RowGroups
    """The groups of the rows of all peers, in each matmul."""
    head: int
    """The own rows that the first matmul multiplies at the start, while the first rows of the peers arrive.
    It multiplies the other own rows during the last push.
    """
    add: bool = False
    """True if the second matmul adds the product of the own rows to a part that has arrived before. All parts
    must have been pushed by then, so there must be other work during the last push.
    """

    def __str__(self) -> str:
        first, second = (" + ".join(map(str, groups)) or "none" for groups in (self.first, self.second))
        added = f", with {self.head} own rows at the start" if self.add else ""
        return f"{first} and then {second}{added}"


def first_schedules(ranks: int, rows: int) -> list[Schedule]:
    """Return the schedules that differ in the groups of the first matmul."""
    groups = peer_groups(ranks - 1, rows)
    return [Schedule(first, groups[0], rows) for first in groups]


def second_schedules(schedule: Schedule, ranks: int, rows: int) -> list[Schedule]:
    """Return the schedules that differ from ``schedule`` in the groups of the second matmul."""
    return [replace(schedule, second=groups) for groups in peer_groups(ranks - 1, rows)]


def adding_schedules(schedule: Schedule, rows: int) -> list[Schedule]:
    """Return ``schedule`` with each head and the product added, heads near half first, then unchanged."""
    heads = sorted((*tile_cuts(rows), rows), key=lambda head: abs(2 * head - rows))
    return [*(replace(schedule, head=head, add=True) for head in heads), schedule]


def peer_groups(peers: int, rows: int) -> list[RowGroups]:
    """Return the ways to group ``rows`` rows of each of ``peers`` peers that are worth trying.

    These are: peer by peer, all at once, and any two groups that end at a tile. Groups need not end where the
    rows of a peer end, so they can fill all multiprocessors where the rows of one peer would leave many idle.
    """
    total = peers * rows
    if not total:
        return [()]
    pairs = [(cut, total - cut) for cut in tile_cuts(total)]
    return list(dict.fromkeys([(rows,) * peers, (total,), *pairs]))


def tile_cuts(rows: int) -> list[int]:
    """Return the places between tiles where ``rows`` rows are divided, at most 32."""
    step = _TILE_ROWS * math.ceil(rows / (_TILE_ROWS * _MAX_GROUPS))
    return list(range(step, rows, step))


def matmul_order(first: RowGroups, second: RowGroups) -> list[tuple[int, slice]]:
    """Return matmuls in order, as 0 (first) or 1 (second) and rows; each second one as early as possible."""
    matmuls: list[tuple[int, slice]] = []
    ready, finished = 0, 0
    remaining = list(second)
    for count in first:
        matmuls.append((0, slice(ready, ready + count)))
        ready += count
        while remaining and finished + remaining[0] <= ready:
            matmuls.append((1, slice(finished, finished + remaining[0])))
            finished += remaining.pop(0)
    return matmuls


def split_by_peer(part: slice, rows: int) -> list[tuple[int, slice, slice]]:
    """Return the parts of rows by peer: the peer, the rows within it, and the rows over all peers."""
    parts = []
    start = part.start
    while start < part.stop:
        peer = start // rows
        stop = min(part.stop, (peer + 1) * rows)
        parts.append((peer, slice(start - peer * rows, stop - peer * rows), slice(start, stop)))
        start = stop
    return parts
