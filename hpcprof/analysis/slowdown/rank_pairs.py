"""The ranks that two sides of runs have in common, with the kernels of each side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.slowdown.matched_times import Cells, MatchedTimes
from hpcprof.analysis.slowdown.step_occurrences import Kernel, Numbers, Occurrences, occurrences


@dataclass(frozen=True)
class PairedRank:
    """One rank: the kernels of each side, one element a run, and their names by number."""

    rank: int
    a: list[Occurrences]
    b: list[Occurrences]
    kernels: tuple[Kernel, ...]

    @cached_property
    def cells(self) -> Cells:
        """The occurrences of both sides, numbered alike."""
        return Cells(self.a, self.b, len(self.kernels))

    @cached_property
    def beside(self) -> MatchedTimes:
        """The kernels of side a that communication overlaps, matched."""
        return self.cells.matched([one.overlapped for one in self.a])

    @cached_property
    def alone(self) -> MatchedTimes:
        """The kernels of side a beside which no communication runs, matched: the control."""
        return self.cells.matched([one.alone for one in self.a])


def paired(runs: Sequence[RunData], against: Sequence[RunData]) -> Iterator[PairedRank]:
    """Yield the ranks that both sides have; each timeline is read once, and one is held at a time.

    Where ``against`` has one rank only, every rank is paired with it.
    """
    numbers = Numbers()
    ranks = sorted({rank for run in runs for rank in run.timeline_ranks})
    others = sorted({rank for run in against for rank in run.timeline_ranks})
    single = _of_rank(against, others[0], numbers) if len(others) == 1 else None
    for rank in ranks:
        if single is not None or rank in others:
            a, b = _of_rank(runs, rank, numbers), single or _of_rank(against, rank, numbers)
            yield PairedRank(rank, a, b, tuple(numbers.kernels))


def _of_rank(runs: Sequence[RunData], rank: int, numbers: Numbers) -> list[Occurrences]:
    return [occurrences(run.read(rank), numbers) for run in runs if rank in run.timeline_ranks]
