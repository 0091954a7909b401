"""Finds what costs the time of a step: takes out one candidate after another, and replays the run without it.

A saving is what the step gains without the cause, not the size of the symptom. The cause that saves most is
the first finding; the others are judged on the replay without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcprof.analysis.explain.candidates import Candidate
from hpcprof.analysis.explain.explanation import Cause, Evidence, Finding
from hpcprof.analysis.explain.host_activity import NONE
from hpcprof.analysis.explain.places import is_inside
from hpcprof.analysis.explain.remedies import remedy
from hpcprof.analysis.explain.replay import Replay, Times
from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.profiles.timeline import Ints

_LEAST_PCT = 1.0
_MOST_FINDINGS = 6
_SAME = 0.9
"""A narrower place or rank that keeps so much of the saving is where the cause is."""

_HIDDEN_PCT = 3.0

MUCH_SLOWER = 1.6
"""From so many times on, what a slow host costs is taken out before the other causes are judged."""

_COLLECTIVE = (
    Cause.EXPOSED_COMMUNICATION,
    Cause.CONTENTION,
    Cause.SLOW_MATH,
    Cause.LATE_RANK_HOST,
    Cause.LATE_RANK_GPU,
    Cause.PIPELINE_BUBBLE,
)
"""These are about all of their ranks at once."""

_OF_ONE_RANK = (Cause.LATE_RANK_HOST, Cause.LATE_RANK_GPU)

_OF_HOST = (Cause.HOST_WORK, Cause.HOST_SYNC, Cause.DEVICE_ALLOCATION)


@dataclass(frozen=True)
class Judged:
    """A candidate and what a step gains without it.

    Attributes
    ----------
    candidate : Candidate
    ranks : tuple of int
        The positions of the ranks that have the cause.
    saving, low, high : float
        In ns of the median step.
    """

    candidate: Candidate
    ranks: tuple[int, ...]
    saving: float
    low: float
    high: float


class Search:
    """Judges the candidates of a run."""

    def __init__(self, replay: Replay, candidates: Sequence[Candidate]) -> None:
        self.replay = replay
        self.candidates = list(candidates)
        self.measured = replay.walls(replay.graph.observed)
        self.unchanged = replay.walls(replay.unchanged)
        self.wall = float(np.median(self.measured))

    @property
    def error(self) -> float:
        """How far the median of the unchanged replay is from the measured one, in ns."""
        return abs(float(np.median(self.unchanged)) - self.wall)

    def findings(self) -> tuple[list[Judged], list[Judged], list[Judged]]:
        """Return the causes that cost time, in the order in which they are taken out, and those that hide.

        The third list has the ranks whose host is slower without long pauses. A profiler does that too,
        so they are no findings; what is slower by much is taken out first, and the others are judged as they
        are without it.
        """
        slow = self._slow_hosts()
        base = self.replay.measured
        for one in slow:
            if one.candidate.slower >= MUCH_SLOWER:
                base = one.candidate.remove(base, one.ranks)
        begin = self._walls(base) if slow else self.unchanged
        found: list[Judged] = []
        times, walls = base, begin
        left, hidden = [one for one in self.candidates if not one.slower], None
        while left and len(found) < _MOST_FINDINGS:
            before = self.replay.wall(times, exact=False)
            savings = [(before - self._rough(times, one), one) for one in left]
            hidden = self._hidden(savings) if hidden is None else hidden
            worth = [(saving, one) for saving, one in savings if 100 * saving >= _LEAST_PCT * self.wall]
            judged = self._best(times, walls, worth)
            if judged is None:
                break
            # What a cause saves beyond its own share is due to those before it.
            alone = self._judged(base, begin, judged.candidate, judged.ranks) if found else judged
            found.append(min(judged, alone, key=lambda one: one.saving))
            times = judged.candidate.remove(times, judged.ranks)
            walls = self._walls(times)
            left = [one for _, one in worth if not _overlaps(one, judged.candidate)]
        return found, hidden or [], slow

    def _slow_hosts(self) -> list[Judged]:
        """Return the ranks whose host is slower in all of its calls, if that costs time."""
        times, walls = self.replay.measured, self.unchanged
        found = []
        for one in self.candidates:
            if one.slower > 1:
                judged = self._judged(times, walls, one, one.ranks)
                if 100 * judged.saving >= _LEAST_PCT * self.wall:
                    found.append(judged)
                    times = one.remove(times, one.ranks)
                    walls = self._walls(times)
        return found

    def _walls(self, times: Times) -> Ints:
        return self.replay.walls(self.replay.moments(times))

    def _rough(self, times: Times, candidate: Candidate) -> float:
        """Return the wall time without a candidate if the same kernels stay beside communication."""
        return self.replay.wall(candidate.remove(times, candidate.ranks), exact=False)

    def _best(self, times: Times, walls: Ints, savings: Sequence[tuple[float, Candidate]]) -> Judged | None:
        """Return the candidate that saves most, at its narrowest place and ranks; None without one."""
        order = sorted(savings, key=lambda pair: -pair[0])
        if not order:
            return None
        best = order[0][1]
        close = [
            one
            for saving, one in order
            if one.cause is best.cause and saving >= _SAME * order[0][0] and is_inside(one.where, best.where)
        ]
        narrow = max(close, key=lambda one: len(one.where))
        return self._narrowed(times, walls, narrow)

    def _narrowed(self, times: Times, walls: Ints, candidate: Candidate) -> Judged:
        """Judge the only rank that has the cause, if taking it out there is enough, or all of them."""
        whole = self._judged(times, walls, candidate, candidate.ranks)
        if candidate.cause in _COLLECTIVE or candidate.only == NONE:
            return whole
        alone = self._judged(times, walls, candidate, (candidate.only,))
        return alone if alone.saving >= _SAME * whole.saving else whole

    def _judged(self, times: Times, walls: Ints, candidate: Candidate, ranks: tuple[int, ...]) -> Judged:
        changed = self._walls(candidate.remove(times, ranks))
        saving = float(np.median(walls) - np.median(changed))
        half = half_width((walls - changed).astype(float)) + self.error
        return Judged(candidate, ranks, saving, max(0.0, saving - half), saving + half)

    def _hidden(self, savings: Sequence[tuple[float, Candidate]]) -> list[Judged]:
        """Return the work of the host that takes long and costs about nothing, at its narrowest places."""
        found = [
            Judged(one, one.ranks, max(0.0, saving), 0.0, max(0.0, saving))
            for saving, one in savings
            if one.cause in _OF_HOST
            and one.cause is not Cause.HOST_SYNC
            and 100 * one.own_ns >= _HIDDEN_PCT * self.wall
            and 100 * saving < _LEAST_PCT * self.wall
        ]
        found.sort(key=lambda judged: (-judged.candidate.own_ns, -judged.candidate.where.count("/")))
        return [
            one
            for i, one in enumerate(found)
            if not any(_outer(one, other) for other in found[:i] + found[i + 1 :])
        ]


def _outer(one: Judged, other: Judged) -> bool:
    """Return whether another one of the same cause lies inside and takes as long."""
    mine, its = one.candidate, other.candidate
    inside = its.where != mine.where and is_inside(its.where, mine.where)
    return mine.cause is its.cause and inside and its.own_ns >= _SAME * mine.own_ns


def _overlaps(one: Candidate, taken: Candidate) -> bool:
    """Return whether a candidate is part of one that has been taken out, or the other way round."""
    if one.cause is not taken.cause:
        return False
    if one.cause in _OF_ONE_RANK and set(one.ranks) & set(taken.ranks):
        return True
    return is_inside(one.where, taken.where) or is_inside(taken.where, one.where)


def half_width(savings: Floats) -> float:
    """Return half of the interval of the median of values, one for each step."""
    if len(savings) < 2:
        return 0.0
    spread = 1.4826 * float(np.median(np.abs(savings - np.median(savings))))
    return 1.96 * 1.2533 * spread / float(np.sqrt(len(savings)))


def estimated_finding(
    cause: Cause,
    ranks: tuple[int, ...],
    where: str,
    saving: float,
    half: float,
    wall: float,
    evidence: tuple[Evidence, ...],
) -> Finding:
    """Return a finding whose saving is estimated without a replay.

    Parameters
    ----------
    cause : Cause
    ranks : tuple of int
    where : str
    saving : float
        In ns of a step.
    half : float
        Half of the interval of the saving, in ns.
    wall : float
        The time of a step in ns.
    evidence : tuple of Evidence
    """
    return Finding(
        cause=cause,
        ranks=ranks,
        where=where,
        saving_ns=round(saving),
        saving_low_ns=round(max(0.0, saving - half)),
        saving_high_ns=round(saving + half),
        share_pct=round(100 * saving / wall, 3),
        evidence=evidence,
        remedy=remedy(cause, where, ranks),
        confidence="medium",
    )
