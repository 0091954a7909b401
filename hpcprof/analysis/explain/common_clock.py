"""One clock for all ranks of a run, from the aligned clocks of communicators that overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from hpcprof.analysis.collectives.clock_alignment import AlignedClocks, ClockKey
from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.profiles.timeline import Ints


@dataclass(frozen=True)
class _Aligned:
    """The clock of a rank: a column of the aligned clocks of a communicator, and how these become common.

    ``pace`` is how fast the common clock runs by that of the communicator, which shows ``shift`` at its zero.
    """

    clocks: AlignedClocks
    column: int
    shift: float
    pace: float
    uncertainty: float

    def common(self, stamps: Ints) -> Floats:
        """Return time stamps of the rank on the common clock."""
        return self.shift + self.pace * self.clocks.on_common_clock(self.column, stamps)

    def within(self, clocks: AlignedClocks, column: int) -> tuple[float, float]:
        """Return shift and pace of another communicator's clocks, in which the rank has this column.

        Both agree in the middle of the other's collectives.
        """
        middle = np.array([clocks.zero[column] + round(clocks.extent[column] / 2)])
        pace = self.pace * (1 - self.clocks.rate[self.column]) / (1 - clocks.rate[column])
        shift = self.common(middle) - pace * clocks.on_common_clock(column, middle)
        return float(shift[0]), float(pace)


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
            moments: Ints = np.rint(self.aligned[rank].common(stamps)).astype(np.int64)
            return moments
        result: Ints = stamps - self.zero[rank]
        return result

    def uncertainty(self, rank: int) -> float | None:
        """Return the uncertainty of a rank's moments in ns; None if its clock is not aligned."""
        return self.aligned[rank].uncertainty if rank in self.aligned else None

    def agree(self, ranks: Ints) -> bool:
        """Return whether the clocks of all these ranks are aligned."""
        return all(rank in self.aligned for rank in ranks.tolist())


def common_clock(clocks: Mapping[ClockKey, AlignedClocks], fronts: Mapping[int, int]) -> CommonClock:
    """Join the aligned clocks of communicators that share ranks, starting with the largest.

    A communicator is joined by the rank over which the uncertainties of the clocks add up to the least, and a
    rank takes the clock of the first communicator that has it: the shortest paths from the largest one
    (Dijkstra).

    Parameters
    ----------
    clocks : mapping of ClockKey to AlignedClocks
        As `hpcprof.analysis.collectives.clock_alignment.align_clocks` returns them.
    fronts : mapping of int to int
        When the first explained step of each rank begins, on its own clock. Ranks whose clocks are not
        aligned begin it at the same moment.
    """
    found = _aligned(list(clocks.values()), [np.frombuffer(key[1], np.int64).tolist() for key in clocks])
    begin = [float(one.common(np.array([fronts[rank]]))[0]) for rank, one in found.items() if rank in fronts]
    earliest = round(min(begin, default=0))
    return CommonClock(found, {rank: front - earliest for rank, front in fronts.items()})


def _aligned(clocks: list[AlignedClocks], groups: list[list[int]]) -> dict[int, _Aligned]:
    """Return the clocks of the ranks that communicators connect with the largest one."""
    if not groups:
        return {}
    columns: dict[int, list[tuple[int, int]]] = {}
    for number, group in enumerate(groups):
        for column, rank in enumerate(group):
            columns.setdefault(rank, []).append((number, column))
    largest = max(range(len(groups)), key=lambda number: len(groups[number]))
    waiting: list[tuple[float, int, float, float]] = [(0.0, largest, 0.0, 1.0)]
    joined: set[int] = set()
    found: dict[int, _Aligned] = {}
    while waiting:
        uncertainty, number, shift, pace = heappop(waiting)
        if number in joined:
            continue
        joined.add(number)
        own = clocks[number]
        for column, rank in enumerate(groups[number]):
            if rank in found:
                continue
            found[rank] = _Aligned(own, column, shift, pace, uncertainty + float(own.uncertainty[column]))
            for other, place in columns[rank]:
                if other not in joined:
                    there = clocks[other]
                    apart = found[rank].uncertainty + float(there.uncertainty[place])
                    heappush(waiting, (apart, other, *found[rank].within(there, place)))
    return found
