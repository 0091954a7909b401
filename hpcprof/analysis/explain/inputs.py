"""Inputs of an explanation of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcprof.common.units import named_ranks

if TYPE_CHECKING:  # neither numpy nor pandas is needed to name the inputs
    import pandas as pd

    from hpcprof.analysis.collectives.common_clock import RankClock
    from hpcprof.analysis.collectives.matches import Arrivals, Matches
    from hpcprof.analysis.explain.explanation import StepAlone
    from hpcprof.analysis.mpi.matching import RunMpi
    from hpcprof.profiles.losses import Loss
    from hpcprof.profiles.timeline import Gpu, Timeline


@dataclass(frozen=True, eq=False)
class ExplainInputs:
    """One run: its timelines and what a collect computed from them."""

    ranks: tuple[int, ...]
    """The ranks that have a timeline, in ascending order."""
    read: Callable[[int], Timeline]
    """Returns the timeline of one of these ranks, with the step that was chosen for the run."""
    window: Callable[[int, int, int], Timeline]
    """Returns what overlaps a window of a rank's timeline, by the rank, its begin and its end."""
    mpi: Callable[[Mapping[int, tuple[int, int]]], RunMpi | None]
    """Returns the calls of MPI of some ranks, each between two moments, on the common clock; None if not all
    of them make some. All moments are in ns on the clock of the rank.
    """
    tables: Mapping[str, pd.DataFrame]
    """The analyses of the run by name, over all ranks; each is read at its first use."""
    losses: Mapping[int, tuple[Loss, ...]]
    """The losses of each rank's profile."""
    clocks: Mapping[int, RankClock]
    """The clocks of the ranks. Those that communication connects have one in common."""
    aligned: Collection[int]
    """The ranks that communication connects with most of the others."""
    matches: Callable[[Sequence[int]], Matches]
    """Returns what some ranks have in common with others."""
    arrivals: Callable[[], Iterable[Arrivals]]
    """Yields who came last to what the ranks have in common, for some communicators at a time."""
    world_size: int
    """The number of ranks that the run or its profiles recorded, profiled or not; 0 if none did."""
    gpus: Mapping[int, tuple[Gpu, ...]]
    """By rank, the GPUs that its profile lists."""
    alone: StepAlone | None = None
    """The elapsed time of a step without the profiler, where it is known."""
    captured_steps: int = 0
    """The number of steps that were recorded, by the program that timed its steps alone; 0 if unknown."""
    call_weights: Mapping[str, float] = field(default_factory=dict)
    """The site's measured cost of the profiler per call, over that of a kernel launch, by the name of the
    `CallKind` in small letters."""
    as_recorded: bool = False
    """True to leave the profiler's share in."""

    @property
    def losses_of_all(self) -> list[Loss]:
        """The losses of the profiles of all ranks."""
        return [loss for losses in self.losses.values() for loss in losses]

    @property
    def coverage(self) -> str:
        """A clause with the number of ranks that have a profile, and the others; empty if all have one."""
        count = len(self.ranks)
        if count >= self.world_size:
            return ""
        missing = named_ranks(sorted({*range(self.world_size)}.difference(self.ranks)), most=8)
        has, lack = "has" if count == 1 else "have", "lacks" if self.world_size - count == 1 else "lack"
        return f"{count} of {self.world_size:,} ranks {has} a profile ({missing} {lack} one)"
