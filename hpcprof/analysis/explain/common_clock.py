"""The moments of the ranks of a graph, counted from the first step on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcprof.analysis.collectives.common_clock import RankClock
from hpcprof.profiles.timeline import Ints


@dataclass(frozen=True)
class CommonClock:
    """Converts the time stamps of the ranks to one clock.

    Attributes
    ----------
    aligned : mapping of int to RankClock
        The clocks that communication aligned.
    errors : mapping of int to float
        How far off these may be, in ns.
    zero : mapping of int to int
        The moment 0: of ranks with aligned clocks on the common clock, of the others on their own.
    """

    aligned: Mapping[int, RankClock]
    errors: Mapping[int, float]
    zero: Mapping[int, int]

    def common(self, rank: int, stamps: Ints) -> Ints:
        """Return stamps of a rank's own clock as moments in ns on the common one."""
        moments = self.aligned[rank].to_common(stamps) if rank in self.aligned else stamps
        result: Ints = moments - self.zero[rank]
        return result

    def uncertainty(self, rank: int) -> float | None:
        """Return the uncertainty of a rank's moments in ns; None if its clock is not aligned."""
        return self.errors.get(rank) if rank in self.aligned else None

    def agree(self, ranks: Ints) -> bool:
        """Return whether the clocks of all these ranks are aligned."""
        return all(rank in self.aligned for rank in ranks.tolist())


def common_clock(
    aligned: Mapping[int, RankClock], errors: Mapping[int, float], fronts: Mapping[int, int]
) -> CommonClock:
    """Return the clock of a graph, on which its first step begins at moment 0.

    Parameters
    ----------
    aligned, errors : mapping
        See `CommonClock`.
    fronts : mapping of int to int
        When the first explained step of each rank begins, on its own clock. Ranks whose clocks are not
        aligned begin it at the moment 0.
    """
    begin = [int(aligned[rank].to_common(np.array([fronts[rank]]))[0]) for rank in fronts if rank in aligned]
    first = min(begin, default=0)
    return CommonClock(
        aligned, errors, {rank: first if rank in aligned else own for rank, own in fronts.items()}
    )
