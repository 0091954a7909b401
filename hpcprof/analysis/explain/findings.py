"""Finds the causes that cost time of a step, by replays of the run without them.

A saving is what the step gains without the cause, not the size of the symptom. The search is greedy:

1. Replay the run without each candidate. Host work that takes long and saves nothing is a hidden cost.
2. The next finding is the narrowest candidate that saves about as much as the best one.
3. Remove it. Candidates that save little after that are its alternatives.
4. Repeat with the others, until no candidate saves enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from operator import itemgetter

import numpy as np

from hpcprof.analysis.account.places import NONE, is_inside, without_numbers
from hpcprof.analysis.explain.cause import Candidate, Cause, Trait, cause_of
from hpcprof.analysis.explain.edge_kinds import EdgeKind
from hpcprof.analysis.explain.explanation import MIN_ESTIMATE_PCT, MIN_PCT, Evidence, Finding
from hpcprof.analysis.explain.intervals import (
    MODEL_SHARE,
    Interval,
    Uncertainty,
    width_below,
)
from hpcprof.analysis.explain.replay import Replay, Times
from hpcprof.profiles.timeline import Floats, Ints, Mask

_MAX_FINDINGS = 6
_MIN_NARROW_SHARE = 0.9
"""Minimum share of the best saving that a narrower cause saves to be the finding instead."""

_MIN_TELLING_SHARE = 0.75
"""The same for a cause that explains a broader one."""

_MIN_SINGLE_SHARE = 0.6
"""The same for a cause in a place of its own, if the best saving is that of a host slow in all it does."""

_MAX_ABSORBED_SHARE = 0.5
"""Maximum share of its saving that an alternative still has after the finding is removed."""

_MAX_ALTERNATIVES = 3
_MAX_STEPS_SHARE, _MIN_SAVING_IN_STEPS = 0.5, 0.8
"""Maximum share of the steps, and minimum share of the saving in them, for a cause of only these steps."""

_MIN_HIDDEN_PCT = 3.0
"""Minimum own time of a hidden cost, in percent of a step."""

MUCH_SLOWER = 1.6
"""Minimum slowdown of a host whose cost is removed before the other causes are judged."""


@dataclass(frozen=True)
class Judged:
    """A candidate and what a step gains without it."""

    candidate: Candidate
    ranks: tuple[int, ...]
    """The positions of the ranks that have the cause."""
    saving: float
    """In ns of elapsed time, mean over all steps."""
    by_step: Floats
    """The saving of each step that counts in ns, on the scale of all steps, or, if only some steps have the
    cause, their contributions to the mean."""
    interval: Interval
    """The interval of the saving; from 0 for candidates that are no finding."""
    steps: tuple[int, ...] = ()
    """The steps that have the cause, where only some have it."""
    alternatives: "tuple[Judged, ...]" = ()
    """Causes that would save about as much, and little after this one is removed."""
    together: "tuple[Judged, ...]" = ()
    """The causes that hide the saving of a late rank: while they last, it saves little."""
    gained: Floats = field(default_factory=lambda: np.empty(0))
    """The gain of each replayed step, as replayed."""
    limits_after: "Judged | None" = None
    """The finding after which a hidden cost would limit the step."""


class Search:
    """Judges the candidates of a run.

    For ``call_cost_ns``, ``slower`` and ``faster`` see `hpcprof.analysis.explain.intervals.Uncertainty`;
    ``weights``, of shape (steps,), are the numbers of steps of the run for which the replayed ones stand, by
    default equal. ``represented`` is the share of the steps for which replayed ones stand: the others, of
    kinds without a replayed step, may lack a cause and gain nothing. ``scale`` is the elapsed time of the
    replayed steps over that of all: gains are smaller by it too, unless steps of some kind are not replayed.
    A single step is longer than its replay by the host's work before and after the GPU's: gains leave it out.
    """

    def __init__(
        self,
        replay: Replay,
        candidates: Sequence[Candidate],
        call_cost_ns: int,
        weights: Floats | None = None,
        slower: Ints | None = None,
        faster: Ints | None = None,
        scale: float = 1.0,
        represented: float = 1.0,
    ) -> None:
        self.replay, self._represented = replay, represented
        least_scale = scale if replay.graph.steps > 1 else max(scale, 1.0)
        self._share_of_gain = represented if represented < 1 else 1 / least_scale
        self._weights = np.ones(replay.graph.steps) if weights is None else weights
        self.candidates = list(candidates)
        self._elapsed_by_times: dict[tuple[bytes, bool, bool], Ints] = {}
        self.unchanged = replay.elapsed(replay.unchanged)
        self.wall = self._mean_of(replay.elapsed(replay.graph.observed)) / scale
        recorded = replay.recorded or replay
        measured, replayed = recorded.walls(recorded.graph.observed), recorded.walls(recorded.unchanged)
        self.error = abs(float(np.median(replayed) - np.median(measured)))
        """The distance of the unchanged replay's median from the measured one, in ns."""
        least, has_gpu = MIN_PCT / 100 * self.wall, not replay.graph.is_of_host
        self._uncertainty = Uncertainty(
            replay, self._mean, self.error, least, call_cost_ns, slower, faster, other_host=has_gpu
        )

    def findings(self) -> tuple[list[Judged], list[Judged], list[Judged]]:
        """Return the causes that cost time in the order of their removal, the hidden costs, and slow hosts.

        Slow hosts are ranks whose host is slower without long pauses. A profiler can cause that, so they are
        no findings; a host that is much slower (`MUCH_SLOWER`) is removed before all other causes.
        """
        slow = self._slow_hosts()
        base = self.replay.measured
        for late in slow:
            if late.candidate.slower >= MUCH_SLOWER:
                base = late.candidate.remove(base)
        begin = self._elapsed_times(base) if slow else self.unchanged
        chosen: list[Judged] = []
        times, walls = base, begin
        savings = self._savings(times, [item for item in self.candidates if not item.slower])
        hidden = self._hidden_host_work(savings)
        while len(chosen) < _MAX_FINDINGS:
            worth = [(saving, item) for saving, item in savings if 100 * saving >= MIN_PCT * self.wall]
            judged = self._best_candidate(times, walls, worth) or self._joint_lateness(times, walls)
            if judged is None:
                break
            # A saving beyond a cause's own share is due to the causes before it.
            alone = self._judge_candidate(base, begin, judged.candidate, judged.ranks) if chosen else judged
            hiding = self._hiding_findings(chosen, judged, alone)
            without = self._remove_candidate(times, judged.candidate, judged.ranks)
            # A late rank costs little while another one is as late.
            remaining = [
                (saving, item)
                for saving, item in savings
                if ((saving, item) in worth or item.has(Trait.LATE_RANK))
                and not _overlaps(item, judged.candidate)
            ]
            savings = self._savings(without, [item for _, item in remaining])
            absorbed = [
                pair
                for pair, (remainder, _) in zip(remaining, savings, strict=True)
                if pair[1].cause is not judged.candidate.cause
                and remainder < _MAX_ABSORBED_SHARE * pair[0]
                and 100 * pair[0] >= MIN_ESTIMATE_PCT * self.wall
            ]
            alternatives = self._alternatives(times, walls, absorbed)
            least, measured_in = (judged, times) if hiding or judged.saving <= alone.saving else (alone, base)
            together = hiding or judged.together
            chosen.append(
                replace(self._with_interval(least, measured_in), alternatives=alternatives, together=together)
            )
            times, walls = without, self._elapsed_times(without)
            hidden = [self._limiting_cost(item, chosen[-1], times) for item in hidden]
        return chosen, hidden, slow

    def _limiting_cost(self, late: Judged, last: Judged, times: Times) -> Judged:
        """Return a hidden cost, marked if it limits the step after the last finding is removed."""
        if late.limits_after is not None:
            return late
        ((saving, _),) = self._savings(times, [late.candidate])
        return replace(late, limits_after=last) if 100 * saving >= MIN_ESTIMATE_PCT * self.wall else late

    def _hiding_findings(
        self, earlier: Sequence[Judged], judged: Judged, alone: Judged
    ) -> tuple[Judged, ...]:
        """Return the earlier findings that hide the saving of a late rank: other late ranks, or all."""
        hidden = 100 * (judged.saving - alone.saving) >= MIN_ESTIMATE_PCT * self.wall
        if not hidden or not judged.candidate.has(Trait.LATE_RANK):
            return ()
        late = [item for item in earlier if item.candidate.has(Trait.LATE_RANK)]
        other_late = [item for item in late if not set(item.ranks) & set(judged.ranks)]
        return tuple(other_late or (earlier if not late else ()))

    def _joint_lateness(self, times: Times, walls: Ints) -> Judged | None:
        """Return a pair of ranks that are late by host and GPU, if a step gains only without both.

        The later rank is the finding, and the other one goes with it. Among pairs that save about as much,
        the pair with the fewest ranks counts.
        """
        by_host, by_gpu = map(self._latest_candidates, (Cause.LATE_RANK_HOST, Cause.LATE_RANK_GPU))
        pairs = [
            self._judge_without_both(times, walls, *sorted((first, other), key=lambda late: -late.own_ns))
            for first in by_host
            for other in by_gpu
            if not set(first.ranks) & set(other.ranks)
        ]
        best = max((pair.saving for pair in pairs), default=0.0)
        if 100 * best < MIN_ESTIMATE_PCT * self.wall:
            return None
        chosen = min(
            (pair for pair in pairs if pair.saving >= _MIN_NARROW_SHARE * best),
            key=lambda pair: len(pair.ranks) + len(pair.together[0].ranks),
        )
        other = self._judge_candidate(times, walls, chosen.together[0].candidate, chosen.together[0].ranks)
        return replace(chosen, together=(self._with_interval(other, times),))

    def _latest_candidates(self, cause: Cause) -> list[Candidate]:
        """Return the latest rank by a cause and the latest group; none if a host is slower everywhere."""
        late = [item for item in self.candidates if item.cause.name == cause]
        several = [[item for item in late if (len(item.ranks) > 1) == group] for group in (False, True)]
        latest = [max(members, key=lambda item: item.own_ns) for members in several if members]
        return [] if any(item.slower for item in latest) else latest

    def _judge_without_both(self, times: Times, walls: Ints, first: Candidate, second: Candidate) -> Judged:
        """Judge ``first`` with what a step gains without both causes."""
        removed = replace(first, remove=lambda times: second.remove(first.remove(times)))
        both = self._judge_candidate(times, walls, removed, first.ranks)
        other = Judged(second, second.ranks, 0.0, np.empty(0), Interval(0.0, 0.0))
        return replace(both, together=(other,))

    def _alternatives(
        self, times: Times, walls: Ints, absorbed: Sequence[tuple[float, Candidate]]
    ) -> tuple[Judged, ...]:
        alternatives: list[Judged] = []
        while len(alternatives) < _MAX_ALTERNATIVES:
            judged = self._best_candidate(times, walls, absorbed)
            if judged is None:
                break
            alternatives.append(self._with_interval(judged, times))
            absorbed = [pair for pair in absorbed if pair[1].cause is not judged.candidate.cause]
        return tuple(alternatives)

    def _savings(self, times: Times, candidates: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
        """Return the approximate saving of each candidate: the overlap with communication stays as it is."""
        before = self._elapsed_times(times, exact=False)
        changed = (self._remove_candidate(times, item, item.ranks) for item in candidates)
        without = (self._elapsed_times(item, exact=False) for item in changed)
        return [
            (self._mean_gain(_gains_of_steps(before, after)), item)
            for after, item in zip(without, candidates, strict=True)
        ]

    def _slow_hosts(self) -> list[Judged]:
        """Return the ranks whose host is slower in all of its calls, if that costs time."""
        times, walls = self.replay.measured, self.unchanged
        slow = []
        for candidate in (item for item in self.candidates if item.slower > 1):
            judged = self._judge_candidate(times, walls, candidate, candidate.ranks)
            if 100 * judged.saving >= MIN_PCT * self.wall:
                slow.append(self._with_interval(judged, times))
                times = candidate.remove(times)
                walls = self._elapsed_times(times)
        return slow

    def _mean(self, times: Times) -> float:
        """Return the part of the mean step with some times that differs from that with others."""
        return self._mean_gain(self._elapsed_times(times))

    def _mean_gain(self, gained: Ints | Floats) -> float:
        """Return the mean gain of all steps from that of the replayed ones."""
        return self._share_of_gain * self._mean_of(gained)

    def _mean_of(self, steps: Ints | Floats) -> float:
        """Return the mean of values of the replayed steps, each for the steps for which it stands."""
        return float(np.average(steps, weights=self._weights[: len(steps)]))

    def _elapsed_times(self, times: Times, *, exact: bool = True) -> Ints:
        """Return the elapsed time of each step; a quarter of all calls are answered from earlier ones.

        Where communication slows nothing, replays with and without it are the same.
        """
        key = sha256(times.lag.data)
        key.update(times.alone.data)
        contended = times.contended and self.replay.has_slowdown
        state = (key.digest(), contended, contended and exact)
        if state not in self._elapsed_by_times:
            self._elapsed_by_times[state] = self.replay.elapsed(self.replay.moments(times, exact=exact))
        return self._elapsed_by_times[state]

    def _best_candidate(
        self, times: Times, walls: Ints, savings: Sequence[tuple[float, Candidate]]
    ) -> Judged | None:
        """Return the narrowest candidate that saves about as much as the best one; None without one."""
        if not savings:
            return None
        best, broadest = max(savings, key=itemgetter(0))
        near_best = (item for saving, item in savings if saving >= _least_share(item, broadest) * best)
        narrow = min(near_best, key=_breadth)
        if narrow.has(Trait.BROAD):
            same_cause = [(saving / best, item) for saving, item in savings if item.cause is narrow.cause]
            narrow = _enclosing_candidate(
                [item for share, item in same_cause if share >= _MAX_ABSORBED_SHARE], narrow
            )
        return self._narrow_to_rank(times, walls, narrow)

    def _narrow_to_rank(self, times: Times, walls: Ints, candidate: Candidate) -> Judged:
        """Judge the only rank that has the cause, if its removal there is enough; otherwise all ranks."""
        whole = self._judge_candidate(times, walls, candidate, candidate.ranks)
        if candidate.has(Trait.ALL_RANKS) or candidate.only == NONE:
            return whole
        alone = self._judge_candidate(times, walls, candidate, (candidate.only,))
        return alone if alone.saving >= _MIN_NARROW_SHARE * whole.saving else whole

    def _judge_candidate(
        self, times: Times, walls: Ints, candidate: Candidate, ranks: tuple[int, ...]
    ) -> Judged:
        changed = self._remove_candidate(times, candidate, ranks)
        gained = _gains_of_steps(walls, self._elapsed_times(changed))
        # A single event is no cause of the other steps.
        counts = self._weights[: len(gained)] > 0
        gained = np.where(counts, gained, 0.0)
        saving = self._mean_gain(gained)
        by_step, steps = self._share_of_gain * gained[counts], ()  # type: Floats, tuple[int, ...]
        if (chosen := _steps_with_gain(gained)) is not None:
            # How many steps of the capture have the cause is known.
            by_step = gained[chosen] * self._mean_gain(chosen.astype(float))
            steps = self._numbers(times, changed, chosen)
        return Judged(candidate, ranks, saving, by_step, Interval(0.0, saving), steps, gained=gained)

    def _remove_candidate(self, times: Times, candidate: Candidate, ranks: tuple[int, ...]) -> Times:
        """Return times without a cause on some ranks, or everywhere if it is about all of its ranks."""
        changed = candidate.remove(times)
        return changed if candidate.has(Trait.ALL_RANKS) else self.replay.on_ranks(times, changed, ranks)

    def _with_interval(self, judged: Judged, times: Times) -> Judged:
        def remove(times: Times) -> Times:
            return self._remove_candidate(times, judged.candidate, judged.ranks)

        if judged.candidate.has(Trait.BROAD):
            # A host that is quick enough on another machine is no cause.
            times = self._uncertainty.on_quick_host(times)
            saving = min(judged.saving, self._mean(times) - self._mean(remove(times)))
            by_step = judged.by_step * (saving / judged.saving) if judged.saving else judged.by_step
            judged = replace(judged, saving=saving, by_step=by_step)
        spread = judged.candidate.cause.spread
        interval = self._uncertainty.saving_interval(times, remove, judged.saving, judged.by_step, spread)
        # The steps of other kinds may have the cause as well.
        return replace(judged, interval=replace(interval, high=interval.high / self._represented))

    def _numbers(self, times: Times, changed: Times, chosen: Mask) -> tuple[int, ...]:
        """Return the numbers of the steps that have a cause, from those that gain without it.

        Less work of the host before the first launch of a step shortens the step before.
        """
        graph = self.replay.graph
        front, first = graph.front_call, graph.first_step
        edges = graph.edges.of(EdgeKind.HOST, EdgeKind.CALL)
        call, less = graph.edges.row[edges], (times.lag - changed.lag)[edges]
        # A pause may lie at the end of the step before that of its call.
        pause, longest = graph.calls.step.copy(), np.argsort(graph.pieces.length, kind="stable")
        pause[graph.pieces.call[longest]] = graph.pieces.step[longest]
        in_pause = graph.edges.kind[edges] == EdgeKind.HOST
        number = np.where(in_pause, pause[call], graph.calls.step[call]) - first
        within = (number >= 0) & (number < graph.steps)
        before = np.zeros(len(call), bool)
        before[within] = call[within] <= front[graph.call_rank[call[within]], number[within]]
        earlier = int(less[before].sum() > less[~before].sum())
        return tuple((np.flatnonzero(chosen) + first + earlier).tolist())

    def _hidden_host_work(self, savings: Sequence[tuple[float, Candidate]]) -> list[Judged]:
        """Return the work of the host that takes long and costs about nothing, at its narrowest places."""
        hidden = [
            Judged(item, item.ranks, max(0.0, saving), np.empty(0), Interval(0.0, max(0.0, saving)))
            for saving, item in savings
            if item.has(Trait.HIDES)
            and 100 * item.own_ns >= _MIN_HIDDEN_PCT * self.wall
            and 100 * saving < MIN_PCT * self.wall
        ]
        hidden.sort(key=lambda judged: (-judged.candidate.own_ns, -judged.candidate.where.count("/")))
        return [
            item
            for item in hidden
            if not any(_is_redundant(item.candidate, other.candidate) for other in hidden)
        ]


def _is_redundant(item: Candidate, other: Candidate) -> bool:
    """Return whether another place says as much: one inside with as much time, or ``layers.N`` with more."""
    if item.cause is not other.cause or item.where == other.where:
        return False
    numbered = other.where == without_numbers(item.where) and item.own_ns < _MIN_NARROW_SHARE * other.own_ns
    return numbered or (
        is_inside(other.where, item.where) and other.own_ns >= _MIN_NARROW_SHARE * item.own_ns
    )


def _gains_of_steps(before: Ints, after: Ints) -> Floats:
    """Return the gain of each step; the first gains at most as much as another, as its queues are empty."""
    gained = (before - after).astype(float)
    gained[0] = min(gained[0], gained[1:].max(initial=gained[0] if len(gained) == 1 else 0.0))
    return gained


def _steps_with_gain(gained: Floats) -> Mask | None:
    """Return a mask of the few steps that have most of a gain; None if the gain is spread over more."""
    order = np.sort(gained)[::-1]
    reach = np.searchsorted(np.cumsum(order), _MIN_SAVING_IN_STEPS * order.sum()) + 1
    chosen: Mask = gained >= np.mean(order[:reach]) / 2
    few = (
        chosen.sum() <= _MAX_STEPS_SHARE * len(gained)
        and gained[chosen].sum() >= _MIN_SAVING_IN_STEPS * order.sum()
    )
    return chosen if few else None


def _least_share(candidate: Candidate, best: Candidate) -> float:
    """Return the minimum share of the best candidate's saving with which another one is the finding."""
    if best.has(Trait.BROAD) and not candidate.has(Trait.BROAD) and candidate.where != best.where:
        return _MIN_SINGLE_SHARE
    return _MIN_TELLING_SHARE if candidate.has(Trait.TELLING) else _MIN_NARROW_SHARE


def _breadth(candidate: Candidate) -> tuple[bool, int, bool, bool, float, int]:
    """Return the sort key of a candidate's breadth: its ranks, its own time, and the length of its place.

    Broadest is a host that is too slow in all that it does. A synchronization is broader than other causes:
    a host that never waits hides the rest of its work. A cause that explains another one is narrower.
    """
    alone = candidate.only != NONE and not candidate.has(Trait.ALL_RANKS)
    ranks, syncs = 1 if alone else len(candidate.ranks), candidate.has(Trait.SYNCHRONIZES)
    unknown = not candidate.has(Trait.TELLING)
    return candidate.has(Trait.BROAD), ranks, syncs, unknown, candidate.own_ns, -len(candidate.where)


def _enclosing_candidate(places: Sequence[Candidate], narrow: Candidate) -> Candidate:
    """Return the narrowest place if it lies in or around each of the others, otherwise the whole step.

    If a separate place saves time too, neither alone is the cause. The whole step is the candidate with the
    most time, whatever its name.
    """
    *inner, whole = sorted(places, key=lambda item: item.own_ns)
    comparable = (
        is_inside(narrow.where, other.where) or is_inside(other.where, narrow.where) for other in inner
    )
    return narrow if all(comparable) else whole


def _overlaps(item: Candidate, taken: Candidate) -> bool:
    """Return whether a candidate has the cause of a removed one on its late rank, or around its place."""
    if item.cause is not taken.cause:
        return False
    if item.has(Trait.LATE_RANK) and set(item.ranks) & set(taken.ranks):
        return True
    return is_inside(item.where, taken.where) or is_inside(taken.where, item.where)


def estimated_finding(
    cause: str,
    ranks: tuple[int, ...],
    where: str,
    saving: float,
    half: float,
    wall: float,
    evidence: tuple[Evidence, ...],
    gains: bool = False,
) -> Finding:
    """Return a finding whose saving is estimated without a replay.

    ``saving``, ``half`` (the half width of its interval from the differences of the steps) and ``wall``, the
    time of a step, are in ns. With ``gains``, no step can lose.
    """
    below = width_below(saving, half) if gains and saving > 0 else half
    below, above = (float(np.hypot(width, MODEL_SHARE * saving)) for width in (below, half))
    return Finding(
        cause=cause,
        ranks=ranks,
        where=where,
        saving_ns=round(saving),
        saving_low_ns=round(max(0.0, saving - below)),
        saving_high_ns=round(saving + above),
        share_pct=round(100 * saving / wall, 3),
        evidence=evidence,
        remedy=cause_of(cause).advise(where, ranks),
        confidence="medium",
    )
