"""What ranks communicated: their collectives and messages, matched, and the clocks that these align."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.clock_alignment import AlignedClocks, ClockKey, align_matched
from hpcprof.analysis.collectives.matching import (
    MatchedCollectives,
    match_collectives,
)
from hpcprof.analysis.collectives.pair_clocks import align_pairs
from hpcprof.analysis.collectives.pair_matching import MatchedPairs, match_pairs
from hpcprof.common.memoize import computed_once


@dataclass(frozen=True)
class Communication:
    """The collectives and messages of some ranks in all communicators, or in some of them.

    Attributes
    ----------
    ranks : list of int
        Those that communicated.
    collectives : list of MatchedCollectives
    problems : list of str
        Why some collectives are not matched.
    pairs : list of MatchedPairs
    unpaired : list of str
        Why some messages are not matched.
    """

    ranks: list[int]
    collectives: list[MatchedCollectives]
    problems: list[str]
    pairs: list[MatchedPairs]
    unpaired: list[str]

    @cached_property
    def clocks(self) -> dict[ClockKey, AlignedClocks]:
        """The clocks that are aligned by the collectives; see `align_clocks`."""
        return align_matched(self.collectives)

    @cached_property
    def pair_clocks(self) -> dict[tuple[int, int], AlignedClocks]:
        """The clocks that are aligned by the messages; see `align_pairs`."""
        return align_pairs(self.pairs)


@computed_once
def communication(rows: pd.DataFrame) -> Communication:
    """Match the rows of ``rank_collectives`` of all ranks."""
    return Communication(np.unique(rows["rank"]).tolist(), *match_collectives(rows), *match_pairs(rows))
