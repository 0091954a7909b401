"""The ranks that candidate and baseline runs have in common, with the kernels of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from hpcprof.analysis.framework.run_data import RunData
from hpcprof.analysis.slowdown.matched_times import MatchedTimes, OccurrenceMatcher
from hpcprof.analysis.slowdown.step_occurrences import Kernel, KernelNumbering, Occurrences, find_occurrences


@dataclass(frozen=True)
class PairedRank:
    """One rank: the kernels of both sides, one element per run, and what the numbers of kernels mean."""

    rank: int
    candidate: list[Occurrences]
    baseline: list[Occurrences]
    kernels: tuple[Kernel, ...]

    @cached_property
    def matcher(self) -> OccurrenceMatcher:
        """The matcher of the occurrences of both sides."""
        return OccurrenceMatcher(self.candidate, self.baseline, len(self.kernels))

    @cached_property
    def overlapped(self) -> MatchedTimes:
        """The candidate's kernels that communication overlaps, matched."""
        return self.matcher.matched([one.overlapped for one in self.candidate])

    @cached_property
    def alone(self) -> MatchedTimes:
        """The candidate's kernels during which no communication runs, matched: the control."""
        return self.matcher.matched([one.alone for one in self.candidate])


def pair_ranks(runs: Sequence[RunData], against: Sequence[RunData]) -> Iterator[PairedRank]:
    """Yield the ranks that both sides have; each timeline is read once, and only one is held at a time.

    If ``against`` has a single rank, every rank is paired with it.
    """
    numbering = KernelNumbering()
    ranks = sorted({rank for run in runs for rank in run.timeline_ranks})
    others = sorted({rank for run in against for rank in run.timeline_ranks})
    single = _rank_occurrences(against, others[0], numbering) if len(others) == 1 else None
    for rank in ranks:
        if single is not None or rank in others:
            candidate = _rank_occurrences(runs, rank, numbering)
            baseline = single or _rank_occurrences(against, rank, numbering)
            yield PairedRank(rank, candidate, baseline, tuple(numbering.kernels))


def name_ranks(ranks: Iterable[int]) -> str:
    """Return ranks for a sentence: ``"rank 3"``, ``"ranks 3, 4"``."""
    named = [str(rank) for rank in sorted(ranks)]
    return f"rank{'s'[: len(named) != 1]} {', '.join(named)}"


def _rank_occurrences(runs: Sequence[RunData], rank: int, numbering: KernelNumbering) -> list[Occurrences]:
    return [find_occurrences(run.read(rank), numbering) for run in runs if rank in run.timeline_ranks]
