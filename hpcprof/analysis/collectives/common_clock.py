"""One clock for all ranks of a run, from the clocks that their collectives and messages align."""

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from hpcprof.analysis.collectives.clock_alignment import MIN_COLLECTIVES, AlignedClocks, ClockKey
from hpcprof.common.grouping import grouped
from hpcprof.profiles.timeline import Floats, Ints


@dataclass(frozen=True)
class RankClock:
    """The clock of a rank relative to the common clock."""

    zero: int
    """A time stamp of the rank; the other times on its clock are relative to it."""
    base: int
    """The time on the common clock where the rank's clock shows ``zero`` and is ahead by 0."""
    moment: Floats
    ahead: Floats
    """The lead of the clock (``ahead``) at each moment, in ns; interpolated between moments; shape (k,)."""
    rate: float
    """The growth of the lead per ns before the first moment and after the last."""

    @classmethod
    def shifted(cls, zero: int) -> "RankClock":
        """Return a clock on which the common clock's zero is the time stamp ``zero``."""
        return cls(zero, 0, np.zeros(1), np.zeros(1), 0.0)

    def to_common(self, stamps: Ints) -> Ints:
        """Return time stamps of the rank on the common clock, in whole ns."""
        elapsed = (stamps - self.zero).astype(float)
        ahead = _interpolate(elapsed, self.moment, self.ahead, self.rate)
        return stamps + (self.base - self.zero) - np.rint(ahead).astype(np.int64)

    def to_rank(self, stamps: Ints) -> Ints:
        """Return times of the common clock on the rank's clock, in whole ns."""
        common = (stamps - self.base).astype(float)
        ahead = _lead_at_common(self, common)
        return stamps + (self.zero - self.base) + np.rint(ahead).astype(np.int64)


class Alignment(msgspec.Struct, frozen=True):
    """Ranks whose clocks are aligned with each other."""

    clocks: dict[int, RankClock]
    """By rank, on the clock of the first communicator's first rank."""
    uncertainty: dict[int, float]
    """By rank, in ns: the sum along the communicators that connect the rank with the first one."""


Aligned = tuple[Sequence[int], AlignedClocks]
"""Ranks in their order, and their aligned clocks in the same order."""


def with_ranks(
    together: Mapping[ClockKey, AlignedClocks], pairs: Mapping[tuple[int, int], AlignedClocks] | None = None
) -> list[Aligned]:
    """Return the aligned clocks of communicators and of pairs of ranks, with their ranks."""
    alignments: list[Aligned] = [
        (np.frombuffer(ranks, np.int64).tolist(), clock) for (_, ranks), clock in together.items()
    ]
    return alignments + [(list(ranks), clock) for ranks, clock in (pairs or {}).items()]


def connect(aligned: Iterable[Aligned]) -> list[Alignment]:
    """Connect the aligned clocks of communicators that share ranks; the largest component comes first.

    1. The communicator with the most ranks gives the common clock of its component, so that its times agree
       with `hpcprof.analysis.collectives.skew`; one with few collectives does so only if no other can.
    2. The others follow in the order of their uncertainty, each through a rank that it shares with earlier
       ones: a shortest-path tree (Dijkstra) with the uncertainty as the length.
    """
    sets = sorted(aligned, key=lambda group: (-len(group[0]), -group[1].collectives, tuple(group[0])))
    sets.sort(key=lambda group: group[1].collectives < MIN_COLLECTIVES)
    rank_sets = grouped((rank, number) for number, (ranks, _) in enumerate(sets) for rank in ranks)
    unconnected = set(range(len(sets)))
    components = [
        _connect_component(sets, rank_sets, number, unconnected)
        for number in range(len(sets))
        if number in unconnected
    ]
    return sorted(components, key=lambda part: -len(part.clocks))


def _connect_component(
    sets: Sequence[Aligned], rank_sets: Mapping[int, Sequence[int]], first: int, unconnected: set[int]
) -> Alignment:
    """Connect the first set with all sets that share ranks, and remove them from ``unconnected``."""
    ranks, clocks = sets[first]
    base = int(clocks.zero[0])
    placed = {rank: _clock_of_rank(clocks, column, base) for column, rank in enumerate(ranks)}
    uncertainty = dict(zip(ranks, clocks.uncertainty.tolist(), strict=True))
    unconnected.remove(first)
    waiting: list[tuple[float, int, int]] = []
    new = list(ranks)
    while True:
        for rank in new:
            for number in unconnected.intersection(rank_sets[rank]):
                heapq.heappush(waiting, (uncertainty[rank] + _error(sets[number], rank), number, rank))
        if not waiting:
            return Alignment(placed, uncertainty)
        error, number, through = heapq.heappop(waiting)
        new = []
        if number in unconnected:
            unconnected.remove(number)
            members, source = sets[number]
            new = [rank for rank in members if rank not in placed]
            for rank in new:
                column = bisect_left(members, rank)
                placed[rank] = _through(source, column, bisect_left(members, through), placed[through])
                uncertainty[rank] = error + float(source.uncertainty[column])


def _error(alignment: Aligned, rank: int) -> float:
    ranks, clocks = alignment
    return float(clocks.uncertainty[bisect_left(ranks, rank)])


def _clock_of_rank(clocks: AlignedClocks, column: int, base: int) -> RankClock:
    """Return the clock of a rank on the common clock of its set, on which ``base`` is the first moment."""
    rate, moment = float(clocks.rate[column]), clocks.moment[:, column]
    ahead = clocks.offset[:, column] + rate * moment
    return RankClock(int(clocks.zero[column]), base, moment, ahead, rate)


def _through(clocks: AlignedClocks, column: int, shared: int, on_common: RankClock) -> RankClock:
    """Return the clock of a rank on the common clock, on which another rank of its set already is."""
    clock, other = _clock_of_rank(clocks, column, 0), _clock_of_rank(clocks, shared, 0)
    # Between the knots of all three clocks, the conversion is linear.
    apart = other.zero - on_common.zero
    elapsed_other = on_common.moment - apart
    shared_ahead = _interpolate(elapsed_other, other.moment, other.ahead, other.rate)
    moment = np.unique(
        np.concatenate([clock.moment - clock.ahead, other.moment - other.ahead, elapsed_other - shared_ahead])
    )
    elapsed = moment + _lead_at_common(clock, moment)
    elapsed_other = moment + _lead_at_common(other, moment) + apart
    common = elapsed_other - _interpolate(elapsed_other, on_common.moment, on_common.ahead, on_common.rate)
    base = on_common.base + round(float(common[0] - elapsed[0]))
    ahead = elapsed - (common - (base - on_common.base))
    rate = 1 - (1 - clock.rate) * (1 - on_common.rate) / (1 - other.rate)
    return replace(clock, base=base, moment=elapsed, ahead=ahead, rate=rate)


def _lead_at_common(clock: RankClock, common: Floats) -> Floats:
    """Return the lead of a clock at times of the common clock since its base, in ns."""
    return _interpolate(common, clock.moment - clock.ahead, clock.ahead, clock.rate / (1 - clock.rate))


def _interpolate(at: Floats, moment: Floats, value: Floats, rate: float) -> Floats:
    """Interpolate values between moments; outside they change at a constant rate."""
    outside = np.minimum(at - moment[0], 0.0) + np.maximum(at - moment[-1], 0.0)
    result: Floats = np.interp(at, moment, value) + rate * outside
    return result
