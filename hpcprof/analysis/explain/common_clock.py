"""One clock for all ranks of a run, from the aligned clocks of its communicators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcprof.analysis.collectives.clock_alignment import AlignedClocks, ClockKey
from hpcprof.profiles.timeline import Ints


@dataclass(frozen=True)
class _Aligned:
    """The clock of a rank: a column of the aligned clocks of a communicator, and what is then added."""

    clocks: AlignedClocks
    column: int
    shift: float

    def common(self, stamps: Ints) -> Ints:
        own = (stamps - self.clocks.zero[self.column]).astype(float)
        moment, offset = self.clocks.moment[:, self.column], self.clocks.offset[:, self.column]
        result: Ints = np.rint(own - np.interp(own, moment, offset) + self.shift).astype(np.int64)
        return result


@dataclass(frozen=True)
class CommonClock:
    """Converts the time stamps of the ranks to one clock.

    Attributes
    ----------
    zero : mapping of int to int
        For ranks without aligned clocks, the stamp that is moment 0.
    """

    aligned: Mapping[int, _Aligned]
    zero: Mapping[int, int]

    def common(self, rank: int, stamps: Ints) -> Ints:
        """Return stamps of a rank's own clock as moments in ns on the common one."""
        if rank in self.aligned:
            return self.aligned[rank].common(stamps)
        result: Ints = stamps - self.zero[rank]
        return result

    def agree(self, ranks: Ints) -> bool:
        """Return whether the clocks of all these ranks are aligned."""
        return all(rank in self.aligned for rank in ranks.tolist())


def common_clock(clocks: Mapping[ClockKey, AlignedClocks], fronts: Mapping[int, int]) -> CommonClock:
    """Join the aligned clocks of communicators that share ranks, starting with the largest.

    Parameters
    ----------
    clocks : mapping of ClockKey to AlignedClocks
        As `hpcprof.analysis.collectives.clock_alignment.align_clocks` returns them.
    fronts : mapping of int to int
        When the first explained step of each rank begins, on its own clock. Ranks whose clocks are not
        aligned begin it at the same moment.
    """
    groups = {key: np.frombuffer(key[1], np.int64).tolist() for key in clocks}
    left = sorted(groups, key=lambda key: -len(groups[key]))
    found: dict[int, _Aligned] = {}
    while left:
        key = next((one for one in left if found.keys() & set(groups[one])), None)
        if key is None and found:
            break
        key = key or left[0]
        left.remove(key)
        shared = next((rank for rank in groups[key] if rank in found), None)
        shift = 0.0
        if shared is not None:
            column = groups[key].index(shared)
            stamp = clocks[key].zero[column : column + 1]
            shift = float(
                found[shared].common(stamp)[0] - _Aligned(clocks[key], column, 0.0).common(stamp)[0]
            )
        for column, rank in enumerate(groups[key]):
            found.setdefault(rank, _Aligned(clocks[key], column, shift))
    begin = [int(one.common(np.array([fronts[rank]]))[0]) for rank, one in found.items() if rank in fronts]
    earliest = min(begin, default=0)
    return CommonClock(found, {rank: front - earliest for rank, front in fronts.items()})
