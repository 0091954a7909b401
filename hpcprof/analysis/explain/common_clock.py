"""The moments of the ranks of a graph, counted from the first step on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcprof.analysis.collectives.common_clock import RankClock
from hpcprof.analysis.collectives.matches import MatchedGroup
from hpcprof.profiles.timeline import Ints


@dataclass(frozen=True)
class CommonClock:
    """Converts the time stamps of the ranks to one clock.

    Ranks that no communication connects with others, also not over further ranks, have no part.
    """

    clocks: Mapping[int, RankClock]
    """By rank, on a clock that the ranks of a part have in common."""
    part: Mapping[int, int]
    """By rank, the number of the ranks whose clocks are aligned with each other."""
    zero: Mapping[int, int]
    """The moment 0: of ranks with a part on the clock of the part, of the others on their own."""

    def common(self, rank: int, stamps: Ints) -> Ints:
        """Return stamps of a rank's own clock as moments in ns on the common one."""
        moments = self.clocks[rank].to_common(stamps) if rank in self.part else stamps
        result: Ints = moments - self.zero[rank]
        return result

    def agree(self, ranks: Ints) -> bool:
        """Return whether the clocks of all these ranks are aligned with each other."""
        parts = {self.part.get(rank) for rank in ranks.tolist()}
        return len(parts) == 1 and None not in parts


def clock_parts(aligned: Collection[int], matched: Sequence[MatchedGroup] = ()) -> dict[int, int]:
    """Return a number for each rank that all ranks have in common whose clocks are aligned with its own.

    Parameters
    ----------
    aligned : collection of int
        Ranks that are aligned with each other.
    matched : sequence of MatchedGroup
        What aligns others, if it is aligned.
    """
    part = dict.fromkeys(aligned, 0)
    for number, group in enumerate((one.ranks.tolist() for one in matched if one.aligned), 1):
        joined = {part[rank] for rank in group if rank in part} | {number}
        part |= dict.fromkeys(group, number)
        part = {rank: min(joined) if own in joined else own for rank, own in part.items()}
    return part


def common_clock(
    clocks: Mapping[int, RankClock], part: Mapping[int, int], fronts: Mapping[int, int]
) -> CommonClock:
    """Return the clock of a graph, on which its first step begins at moment 0.

    Parameters
    ----------
    clocks, part : mapping
        See `CommonClock`.
    fronts : mapping of int to int
        When the first explained step of each rank begins, on its own clock. The ranks of each part, and each
        rank without one, begin it at the moment 0.
    """
    first: dict[int, int] = {}
    for rank in fronts.keys() & part.keys():
        begin = int(clocks[rank].to_common(np.array([fronts[rank]]))[0])
        first[part[rank]] = min(begin, first.get(part[rank], begin))
    zero = {rank: first[part[rank]] if rank in part else own for rank, own in fronts.items()}
    return CommonClock(clocks, part, zero)
