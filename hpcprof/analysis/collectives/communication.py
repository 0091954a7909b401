"""Matches collectives and messages across ranks, and aligns the clocks of ranks by them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hpcprof.analysis.collectives.clock_alignment import (
    AlignedClocks,
    ClockKey,
    align_clocks,
    clock_key,
    one_clock,
)
from hpcprof.analysis.collectives.common_clock import Aligned, with_ranks
from hpcprof.analysis.collectives.matching import (
    MatchedCollectives,
    exposed_before,
    match_recorded,
    recorded_collectives,
)
from hpcprof.analysis.collectives.pair_matching import MatchedPairs, align_pairs, match_pairs
from hpcprof.analysis.collectives.waiting_balance import exposed_by_step

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Communication:
    """The collectives and messages of some ranks in all communicators, or in some of them."""

    ranks: list[int]
    """The ranks that communicated."""
    collectives: list[MatchedCollectives]
    problems: list[str]
    """The reasons why some collectives are not matched."""
    pairs: list[MatchedPairs]
    unpaired: list[str]
    """The reasons why some messages are not matched."""
    exposed: "pd.DataFrame"
    """The time of exposed communication of each rank in each step; see `exposed_by_step`."""
    missing: str
    """A clause with the number of ranks without a profile; empty if none, or unknown."""
    shares_clock: bool = False
    """True for the ranks of a table of operations."""

    @cached_property
    def clocks(self) -> dict[ClockKey, AlignedClocks]:
        """The clocks that collectives align, see `align_clocks`, else those of a table of operations."""
        aligned = align_clocks(self.collectives)
        for calls in self.collectives if self.shares_clock else ():
            if len(calls.seq) and len(calls.ranks) > 1 and clock_key(calls) not in aligned:
                aligned[clock_key(calls)] = one_clock([0] * len(calls.ranks), len(calls.seq), 0.0)
        return aligned

    @cached_property
    def pair_clocks(self) -> dict[tuple[int, int], AlignedClocks]:
        """The clocks that are aligned by the messages; see `align_pairs`."""
        return align_pairs(self.pairs)

    @property
    def aligned(self) -> list[Aligned]:
        """All aligned clocks, each with its ranks."""
        return with_ranks(self.clocks, self.pair_clocks)


def communication(
    batches: "Iterable[pd.DataFrame]",
    communicators: Collection[str] = (),
    exchanging: Collection[str] = (),
    profiled: int | None = None,
    *,
    shares_clock: bool = False,
) -> Communication:
    """Match the rows of ``rank_collectives``, and align the clocks of their ranks.

    ``batches`` has the rows in consecutive batches of ranks: the rows of all ranks of a large communicator at
    once would take several times the memory of the matched columns. ``communicators`` are those to match, all
    if empty, and ``exchanging`` those with sends and receives. ``profiled`` is the number of ranks of the
    program with a profile, by default that in the rows. ``shares_clock`` is True for the ranks of a table of
    operations, which also numbers their steps.
    """
    import pandas as pd

    parts, exchanged, exposed = [], [], []
    ranks: set[int] = set()
    worlds: set[float] = set()
    for batch in batches:
        if not len(batch):
            continue
        columns = {name: batch[name].to_numpy() for name in ("rank", "part", "start_ns", "exposed_ns")}
        rows = batch.assign(row=batch.groupby("rank").cumcount(), before=exposed_before(columns))
        if communicators:
            rows = rows[rows["comm_id"].isin(communicators)]
        parts.append(recorded_collectives(rows, 0 if shares_clock else 1))
        exposed.append(exposed_by_step(rows))
        exchanged.append(rows[rows["comm_id"].isin(exchanging)] if communicators else rows)
        ranks.update(rows["rank"].unique().tolist())
        worlds.update(rows["world_ranks"].astype(float).unique().tolist())
    if not ranks:
        return Communication([], [], [], [], [], pd.DataFrame(), "")
    profiled = profiled or len(ranks)
    whole_world = worlds == {profiled}
    world = max((world for world in worlds if not np.isnan(world)), default=0)
    return Communication(
        sorted(ranks),
        *match_recorded(parts, whole_world),
        *match_pairs(pd.concat(exchanged, ignore_index=True), whole_world),
        pd.concat(exposed, ignore_index=True),
        f"{world - profiled:.0f} of {world:.0f} ranks have no profile" if profiled < world else "",
        shares_clock,
    )
