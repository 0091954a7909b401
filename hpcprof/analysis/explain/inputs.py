"""Inputs of an explanation of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # neither numpy nor pandas is needed to name the inputs
    import pandas as pd

    from hpcprof.analysis.collectives.common_clock import RankClock
    from hpcprof.analysis.collectives.matches import Matches
    from hpcprof.profiles.losses import Loss
    from hpcprof.profiles.timeline import Gpu, Timeline

_SIZES = ("world_ranks", "comm_ranks")
"""The columns of ``rank_collectives`` with a number of ranks."""


@dataclass(frozen=True, eq=False)
class ExplainInputs:
    """One run: its timelines and what a collect computed from them.

    Attributes
    ----------
    ranks : tuple of int
        The ranks that have a timeline, in ascending order.
    read : callable
        Returns the timeline of one of these ranks, with the step that was chosen for the run.
    tables : mapping of str to DataFrame
        The analyses of the run by name, over all ranks; each is read at its first use.
    losses : mapping of int to tuple of Loss
        By rank, what its profile lacks.
    clocks : mapping of int to RankClock
        The clocks that communication aligned, by rank.
    clock_errors : mapping of int to float
        How far off these may be, in ns.
    matches : callable
        Returns what the ranks have in common with each other.
    world_size : int or None
        The number of ranks that the run recorded, profiled or not; None if it did not.
    gpus : mapping of int to tuple of Gpu
        By rank, the GPUs that its profile lists.
    """

    ranks: tuple[int, ...]
    read: Callable[[int], Timeline]
    tables: Mapping[str, pd.DataFrame]
    losses: Mapping[int, tuple[Loss, ...]]
    clocks: Mapping[int, RankClock]
    clock_errors: Mapping[int, float]
    matches: Callable[[], Matches]
    world_size: int | None
    gpus: Mapping[int, tuple[Gpu, ...]]

    @cached_property
    def world(self) -> int:
        """The number of ranks that ran, as far as the run and its profiles say."""
        rows = self.tables["rank_collectives"]
        profiled = (int(one) for name in _SIZES for one in rows[name].dropna().unique()) if len(rows) else ()
        return max(self.world_size or 0, len(self.ranks), *profiled)

    @property
    def coverage(self) -> str:
        """A clause with the number of ranks that have a profile; empty if all have one."""
        known = len(self.ranks)
        has = "has" if known == 1 else "have"
        return f"{known} of {self.world:,} ranks {has} a profile" if known < self.world else ""
