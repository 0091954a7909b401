"""Aligns the clocks of ranks by the ends of their collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.matching import MatchedCollectives, match_collectives
from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.collective_operations import ALIGNING
from hpcprof.profiles.timeline import Ints

MIN_COLLECTIVES = 5
"""Fewer collectives than this align no clocks."""

_BLOCK = 8
_UNCERTAINTY_PERCENTILE = 95

ClockKey = tuple[str | None, bytes]
"""Identifies a set of clocks: the communicator and its ranks."""


@dataclass(frozen=True)
class AlignedClocks:
    """The clocks of a communicator's n ranks, aligned.

    Attributes
    ----------
    zero : ndarray of int64, shape (n,)
        Subtracted from each rank's time stamps first.
    moment, offset : ndarray of float64, shape (blocks, n)
        By how much each clock is then ahead (``offset``) at a moment; interpolated between blocks.
    uncertainty : ndarray of float64, shape (n,)
        The 95th percentile of the distance of a rank's aligned ends from the median of the other ranks' ends.
    collectives : int
        How many collectives aligned the clocks.
    """

    zero: Ints
    moment: Floats
    offset: Floats
    uncertainty: Floats
    collectives: int

    def aligned(self, stamps: Ints) -> Floats:
        """Return time stamps of shape (m, n) on the common clock, in ns since its zero."""
        own = (stamps - self.zero).astype(float)
        for rank in range(own.shape[1]):
            own[:, rank] -= np.interp(own[:, rank], self.moment[:, rank], self.offset[:, rank])
        return own


@computed_once
def align_clocks(rows: pd.DataFrame) -> dict[ClockKey, AlignedClocks]:
    """Align the clocks of the ranks of each communicator by the rows of ``rank_collectives``.

    An all-reduce, all-gather or barrier ends at nearly the same time on all ranks. So a clock is ahead by the
    median difference of its ends from those of the median rank; the median ignores a rank that ends a little
    later now and then. Clocks drift and jump by tens of microseconds, so from 16 collectives on each block
    of 8 has its own median.

    Returns
    -------
    dict of ClockKey to AlignedClocks
        Without the communicators that have too few collectives.
    """
    ends: dict[ClockKey, list[Ints]] = {}
    for one in match_collectives(rows)[0]:
        if one.op in ALIGNING and len(one.ranks) > 1:
            ends.setdefault(clock_key(one), []).append(one.end[one.part == 0])
    stamps = {k: np.concatenate(parts) for k, parts in ends.items()}
    return {k: _align(end[np.argsort(end[:, 0])]) for k, end in stamps.items() if len(end) >= MIN_COLLECTIVES}


def clock_key(matched: MatchedCollectives) -> ClockKey:
    """Return the key of the clocks that a set of collectives uses."""
    return matched.comm_id, matched.ranks.tobytes()


def _align(end: Ints) -> AlignedClocks:
    """Align by ends of shape (m, n), sorted by time."""
    zero = end[0]
    own = (end - zero).astype(float)
    blocks = np.array_split(np.arange(len(end)), max(1, len(end) // _BLOCK))
    moment = np.array([np.median(own[block], axis=0) for block in blocks])
    rough = AlignedClocks(zero, moment, _medians(own - own[:, :1], blocks), np.zeros(len(zero)), len(end))
    # Now that the clocks agree roughly, the reference is the median rank and no longer the first.
    aligned = rough.aligned(end)
    apart = _medians(aligned - np.median(aligned, axis=1, keepdims=True), blocks)
    fine = AlignedClocks(zero, moment, rough.offset + apart, rough.uncertainty, len(end))
    residual = np.abs(later_than_others(fine.aligned(end)))
    return AlignedClocks(
        zero, moment, fine.offset, np.percentile(residual, _UNCERTAINTY_PERCENTILE, axis=0), len(end)
    )


def _medians(values: Floats, blocks: Sequence[Ints]) -> Floats:
    return np.array([np.median(values[block], axis=0) for block in blocks])


def later_than_others(stamps: Floats) -> Floats:
    """Return how much later each time stamp is than the median of the other ranks', shape (m, n), n > 1."""
    count = stamps.shape[1]
    order = np.argsort(stamps, axis=1, kind="stable")
    place = np.argsort(order, axis=1, kind="stable")
    ordered = np.take_along_axis(stamps, order, axis=1)
    # Leaving out a rank's own time stamp shifts those after it by one.
    low, high = (count - 2) // 2, (count - 1) // 2
    middle = [np.take_along_axis(ordered, k + (place <= k), axis=1) for k in (low, high)]
    result: Floats = stamps - (middle[0] + middle[1]) / 2
    return result
