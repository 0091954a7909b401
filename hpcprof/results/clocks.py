"""The common clock of a run's ranks, on which their timelines can be drawn below each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from hpcprof.analysis.collectives.common_clock import Alignment, RankClock, connect
from hpcprof.common.units import named_ranks
from hpcprof.profiles.event_columns import timeline_tables
from hpcprof.profiles.readers.declaration import ProfileContent
from hpcprof.profiles.readers.discovery import content_of
from hpcprof.profiles.timeline import Allocations, Ints, Timeline
from hpcprof.results.communicators import aligned_by_communicator
from hpcprof.results.store.store import Store
from hpcprof.submit.runs.directory import Run


class ClockSource(Enum):
    """How the clock of a rank was aligned with that of the reference."""

    COMMUNICATION = "communication"
    UTC = "utc"
    STEPS = "steps"


@dataclass(frozen=True)
class RunClocks:
    """The clocks of a run's ranks on one common clock: that of the reference, as far as it can be known.

    Attributes
    ----------
    clocks : mapping of int to RankClock
        By rank.
    sources : mapping of int to ClockSource
        By rank.
    errors : mapping of int to float
        How far off a rank may be, in ns; without the ranks of which that is unknown.
    start_utc_ns : int or None
        The UTC time of the common clock's zero in ns since 1970; None if the profiles do not record it.
    """

    clocks: Mapping[int, RankClock]
    sources: Mapping[int, ClockSource]
    errors: Mapping[int, float]
    start_utc_ns: int | None = None

    def to_common(self, rank: int, stamps: Ints) -> Ints:
        """Return time stamps of a rank's profile on the common clock, in ns."""
        return self.clocks[rank].to_common(stamps)

    def to_rank(self, rank: int, stamps: Ints) -> Ints:
        """Return times on the common clock as time stamps of a rank's profile, in ns."""
        return self.clocks[rank].to_rank(stamps)

    def stamp_on_common(self, rank: int, stamp: int) -> int:
        """Return one time stamp of a rank's profile on the common clock, in ns."""
        return int(self.to_common(rank, np.array([stamp]))[0])

    def on_common(self, rank: int, timeline: Timeline) -> Timeline:
        """Return the timeline of a rank with all times on the common clock."""
        moved = {}
        for name in timeline_tables():
            table = getattr(timeline, name)
            stamps = ("time",) if isinstance(table, Allocations) else ("start", "end")
            moved[name] = replace(table, **{s: self.to_common(rank, getattr(table, s)) for s in stamps})
        return replace(timeline, **moved)

    def uncertainty_ns(self, rank: int) -> int | None:
        """Return how far off the times of a rank may be on the common clock; None if unknown."""
        return round(self.errors[rank]) if rank in self.errors else None

    def note(self) -> str:
        """Return in one sentence how the clocks were aligned."""
        if len(self.clocks) < 2:
            return "A single rank needs no aligned clock."
        most = max((self.errors[rank] for rank in self._by(ClockSource.COMMUNICATION)), default=0.0)
        how = {
            ClockSource.COMMUNICATION: f"are aligned by their communication to {most / 1e3:,.1f} µs",
            ClockSource.UTC: "are aligned by the UTC times of their profiles, to an unknown precision",
            ClockSource.STEPS: "are unknown, so that each rank's first step starts with that of the others",
        }
        parts = []
        for source, text in how.items():
            if ranks := self._by(source):
                of_some = "" if len(ranks) == len(self.clocks) else f" of {named_ranks(ranks)}"
                parts.append(f"the clocks{of_some} {text}")
        return f"{'; '.join(parts)}.".capitalize().replace("utc", "UTC")

    def _by(self, source: ClockSource) -> list[int]:
        return [rank for rank, of_rank in sorted(self.sources.items()) if of_rank is source]


def aligned_clocks(run: Run, store: Store) -> RunClocks:
    """Align the clocks of all ranks of a collected run whose profiles hold timelines.

    The collectives and messages in the store align them as for the analysis ``skew``. Ranks that these
    do not connect with most of the others follow by the UTC times in their profiles, else each by the start
    of its first step.
    """
    profiles = store.profiles(run.id)
    utc = {
        rank: profile.start_utc_ns
        for rank, profile in sorted(profiles.items())
        if content_of(profile.kind) is ProfileContent.TIMELINE
    }
    parts = connect(aligned_by_communicator(run.id, store)) if len(utc) > 1 else []
    parts += [_single(rank) for rank in utc if not any(rank in part.clocks for part in parts)]
    if not parts:
        return RunClocks({}, {}, {})
    zeros = [_utc_zero(part, utc) for part in parts]
    first = {} if None not in zeros else _first_steps(run, store)
    clocks = dict(parts[0].clocks)
    alone = ClockSource.STEPS if zeros[0] is None else ClockSource.UTC
    sources = dict.fromkeys(clocks, ClockSource.COMMUNICATION if len(clocks) > 1 else alone)
    for part, zero in zip(parts[1:], zeros[1:], strict=True):
        if zero is not None and zeros[0] is not None:
            shift, source = zero - zeros[0], ClockSource.UTC
        else:
            shift, source = _start(parts[0], first) - _start(part, first), ClockSource.STEPS
        for rank, clock in part.clocks.items():
            clocks[rank], sources[rank] = replace(clock, base=clock.base + shift), source
    return RunClocks(dict(sorted(clocks.items())), sources, parts[0].uncertainty, zeros[0])


def _single(rank: int) -> Alignment:
    return Alignment({rank: RankClock.shifted(0)}, {rank: 0.0})


def _utc_zero(part: Alignment, utc: Mapping[int, int | None]) -> int | None:
    """Return the UTC time of the zero of a part's clock: the median of what its ranks recorded."""
    found = []
    for rank, clock in part.clocks.items():
        start = utc.get(rank)
        if start is not None:
            found.append(start + clock.zero - int(clock.to_common(np.array([clock.zero]))[0]))
    return sorted(found)[len(found) // 2] if found else None


def _first_steps(run: Run, store: Store) -> dict[int, int]:
    """Return when the first step of each rank starts, on its own clock; without those that have no step."""
    parts = store.read_parts(run.id, "step_parts")
    return {part["rank"][0]: min(part["start_ns"]) for part in parts if part["rank"]}


def _start(part: Alignment, first: Mapping[int, int]) -> int:
    """Return when the first step of a part starts, on its clock; 0 without steps."""
    found = [
        int(clock.to_common(np.array([first[rank]]))[0])
        for rank, clock in part.clocks.items()
        if rank in first
    ]
    return min(found, default=0)
