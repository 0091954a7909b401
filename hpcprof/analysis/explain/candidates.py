"""Candidate causes: all that the graph of a run can show, each with the run without it.

A candidate only says what could be taken out; whether it costs anything, a replay tells
(`hpcprof.analysis.explain.findings`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.account.host_activity import NONE, OUTSIDE
from hpcprof.analysis.explain.explanation import LEAST_ESTIMATE_PCT, Cause
from hpcprof.analysis.explain.rank_edges import EdgeKind
from hpcprof.analysis.explain.removals import SHORT_NS, WHOLE_STEP, Removals, peers, stage_medians
from hpcprof.analysis.explain.replay import Replay, Times
from hpcprof.analysis.statistics.grouped import summarize
from hpcprof.profiles.columns.unique import numbered
from hpcprof.profiles.timeline import Category, Floats, Ints

LEAST_SHARE = 0.01
"""A cause whose own time is a smaller share of the step is no candidate."""

_MOST_SHORT = 0.5
_FEWEST_KERNELS = 20
_MOST_LATE = 4
_EVERYWHERE = 0.5
"""A host is slower, not held up at one point, if so much of its excess is everywhere."""

_SLOWER = 1.1
"""A host is as quick as the others in a place if it takes at most so many times as long."""

_ALIKE = 0.5
"""Several ranks are late together if the least late one is so much as late as the latest."""

_MOSTLY, _NAMED = 0.9, 3
"""A host that is slow in the whole step is so in the places with so much of its time, at most so many."""

_EARLY = 0.25
"""A rank is not late by itself if it takes less in some steps by so much of what it takes more in others."""

_IN_TURN = 0.1
"""A rank is late in turn with others if it has so much of the lateness of the latest."""

_ALONE = 2
"""A rank has a cause alone if it takes so many times as long there as on the others."""


Remove = Callable[[Times, tuple[int, ...] | None], Times]


@dataclass(frozen=True)
class Candidate:
    """A cause that may cost time."""

    cause: Cause
    where: str
    """The place; empty for the whole step."""
    ranks: tuple[int, ...]
    """Positions of ranks in the graph."""
    remove: Remove
    """Takes the cause out of times, on some ranks; None for all of ``ranks``."""
    own_ns: float
    """The time per step that it takes by itself, on the rank where that is most."""
    only: int = NONE
    """The position of the only rank that has it, or `NONE`."""
    slower: float = 0.0
    """If no long pauses make a rank late but a host that is slower, by how many times; else 0."""


class Candidates:
    """Lists the candidates of a graph."""

    def __init__(self, replay: Replay, removals: Removals, slow_math: Ints, tensor_core_gain: float) -> None:
        self.replay, self.removals, self.graph = replay, removals, replay.graph
        self._slow_math, self._tensor_core_gain = slow_math, tensor_core_gain
        self._least = LEAST_SHARE * float(np.mean(replay.elapsed(self.graph.observed)))
        self._every = tuple(range(len(self.graph.ranks)))

    def all(self) -> list[Candidate]:
        """Return the candidates that take at least one percent of a step by themselves."""
        found = [
            *self._by_place(),
            self._allocation(WHOLE_STEP),
            *([self._host_bound(WHOLE_STEP)] if self._is_host_bound else ()),
            *self._communicating(),
            *self._late_ranks(),
            *self._math(),
            *self._contention(),
        ]
        return [one for one in found if one.own_ns >= self._least]

    def places(self) -> list[str]:
        """Return the places in which something happens, and those around them."""
        used = set(np.unique(self.graph.calls.place).tolist()) | set(
            np.unique(self.graph.pieces.place).tolist()
        )
        texts = {self.graph.places[number] for number in used if number != NONE}
        outer = {
            "/".join(parts[:n]) for parts in (text.split("/") for text in texts) for n in range(1, len(parts))
        }
        return sorted(texts | outer | ({self._place(NONE)} if NONE in used else set()))

    def _place(self, number: int) -> str:
        """Return the name of a place, also of `NONE`."""
        if number != NONE:
            return self.graph.places[number]
        return OUTSIDE if self.graph.places else WHOLE_STEP

    def _communicating(self) -> Iterator[Candidate]:
        """Yield the communication of each place, and that of the whole step."""
        work = self.graph.work
        communicates = work.category == Category.COMM
        used = map(self._place, np.unique(work.place[communicates]).tolist())
        for place in {*used, WHOLE_STEP}:
            yield self._communication(place)

    def _by_place(self) -> Iterator[Candidate]:
        for place in self.places():
            pauses, copies = self._host_work(place), self._copies(place)
            yield pauses
            yield copies
            if min(pauses.own_ns, copies.own_ns) >= self._least:
                yield self._pauses_and_copies(pauses, copies)
            yield self._host_sync(place)
            yield self._allocation(place)
            if self._is_short(place):
                yield self._short_kernels(place)
            elif self._is_host_bound:
                yield self._host_bound(place)

    def _host_work(self, place: str) -> Candidate:
        removals, pieces, calls = self.removals, self.graph.pieces, self.graph.calls
        inside = removals.inside(place)
        chosen = np.flatnonzero(inside[pieces.place] & removals.long_gap[pieces.call])
        long = np.flatnonzero(inside[calls.place] & removals.long_call)
        call = np.concatenate((pieces.call[chosen], long))
        time = np.concatenate((pieces.length[chosen], removals.call_times[long]))
        own = self._per_step(self.graph.call_rank[call], time)
        late = own[1] != NONE and self.graph.is_coupled
        return Candidate(
            Cause.LATE_RANK_HOST if late else Cause.HOST_WORK,
            place,
            (own[1],) if late else self._every,
            lambda times, ranks: removals.pauses(times, place, ranks),
            *own,
        )

    @cached_property
    def _is_host_bound(self) -> bool:
        """True if the host would be too slow for the GPU even if it never waited for it."""
        removals, elapsed = self.removals, self.replay.elapsed
        waiting = np.union1d(removals.calls_in(WHOLE_STEP, (CallKind.WAIT,)), self._waiting_copies())
        free = removals.waits(self.replay.measured, waiting)
        quick = removals.host_time(free, WHOLE_STEP, long=False)
        slow, least = (elapsed(self.replay.moments(times, exact=False)) for times in (free, quick))
        return 100 * float(np.mean(slow - least)) >= LEAST_ESTIMATE_PCT * float(np.mean(slow))

    def _host_bound(self, place: str) -> Candidate:
        pieces, removals = self.graph.pieces, self.removals
        chosen = removals.inside(place)[pieces.place] & ~removals.long_gap[pieces.call]
        rank, time = self.graph.call_rank[pieces.call[chosen]], pieces.length[chosen]
        where = place
        if place == WHOLE_STEP:
            total = np.bincount(pieces.place[chosen] + 1, time, len(self.graph.places) + 1)
            order = np.argsort(-total)
            most = order[: int(np.searchsorted(np.cumsum(total[order]), _MOSTLY * total.sum())) + 1]
            where = ", ".join(sorted(map(self._place, (most[:_NAMED] - 1).tolist())))
        return Candidate(
            Cause.HOST_BOUND,
            where,
            self._every,
            lambda times, ranks: removals.host_time(times, place, ranks, long=False),
            *self._per_step(rank, time),
        )

    def _host_sync(self, place: str) -> Candidate:
        removals, calls = self.removals, self.graph.calls
        copies = self._waiting_copies()
        waiting = np.union1d(
            removals.calls_in(place, (CallKind.WAIT,)),
            copies[removals.inside(place)[calls.place[copies]]],
        )
        held = np.intersect1d(waiting, self.graph.blocked)
        own = self._per_step(self.graph.call_rank[held], calls.end[held] - calls.start[held])

        def remove(times: Times, ranks: tuple[int, ...] | None) -> Times:
            return removals.waits(times, waiting[removals.of_ranks(self.graph.call_rank[waiting], ranks)])

        return Candidate(Cause.HOST_SYNC, place, self._every, remove, *own)

    def _waiting_copies(self) -> Ints:
        """Return the calls that wait for the work before their copy more than for the copy."""
        work, calls = self.graph.work, self.graph.calls
        rows = np.flatnonzero((work.category == Category.MEM) & np.isin(work.call, self.graph.blocked))
        call = work.call[rows]
        result: Ints = np.unique(
            call[2 * (work.end[rows] - work.start[rows]) < calls.end[call] - calls.start[call]]
        )
        return result

    def _allocation(self, place: str) -> Candidate:
        calls = self.graph.calls
        chosen = self.removals.calls_in(place, (CallKind.ALLOCATE, CallKind.FREE))
        time = calls.end[chosen] - calls.start[chosen]
        own = self._per_step(self.graph.call_rank[chosen], time)
        where = place
        if place == WHOLE_STEP and len(chosen):
            # What is freed in one place has to be allocated again elsewhere: the former is the cause.
            freed = np.where(calls.kind[chosen] == CallKind.FREE, time, 0)
            where = self._mostly(calls.place[chosen], freed if freed.any() else time)
        return Candidate(
            Cause.DEVICE_ALLOCATION,
            where,
            self._every,
            lambda times, ranks: self.removals.allocations(times, place, ranks),
            *own,
        )

    def _mostly(self, place: Ints, time: Ints | Floats) -> str:
        """Return the place with most of some time."""
        # `NONE` is -1.
        return self._place(int(np.bincount(place + 1, time).argmax()) - 1)

    def _copies(self, place: str) -> Candidate:
        work = self.graph.work
        chosen = np.flatnonzero(self.removals.with_host & self.removals.inside(place)[work.place])
        own = self._per_step(self.graph.work_rank[chosen], work.end[chosen] - work.start[chosen])
        return Candidate(
            Cause.BLOCKING_COPY,
            place,
            self._every,
            lambda times, ranks: self.removals.copies(times, place, ranks),
            *own,
        )

    def _pauses_and_copies(self, pauses: Candidate, copies: Candidate) -> Candidate:
        """Return both as one cause, as of a range that copies from the GPU and then writes a file."""
        only = pauses.only if pauses.only == copies.only else NONE
        larger = max(pauses, copies, key=lambda one: one.own_ns)
        ranks = pauses.ranks if only != NONE else self._every
        return replace(
            larger,
            cause=Cause.HOST_WORK if larger is pauses and only == NONE else larger.cause,
            ranks=ranks,
            remove=lambda times, of: copies.remove(pauses.remove(times, of), of),
            own_ns=pauses.own_ns + copies.own_ns,
            only=only,
        )

    def _communication(self, place: str) -> Candidate:
        work = self.graph.work
        chosen = np.flatnonzero((work.category == Category.COMM) & self.removals.inside(place)[work.place])
        own = self._per_step(self.graph.work_rank[chosen], work.end[chosen] - work.start[chosen])
        return Candidate(
            Cause.EXPOSED_COMMUNICATION,
            place,
            self._every,
            lambda times, _: self.removals.exposed_communication(times, place),
            *own,
        )

    def _is_short(self, place: str) -> bool:
        """Return whether most kernels of a place are short."""
        work = self.graph.work
        mine = (work.category == Category.COMP) & self.removals.inside(place)[work.place]
        count = int(mine.sum())
        short = int((mine & (work.end - work.start < SHORT_NS)).sum())
        steps = self.graph.steps * len(self.graph.ranks)
        return count >= _FEWEST_KERNELS * steps and short >= _MOST_SHORT * count

    def _short_kernels(self, place: str) -> Candidate:
        graph, removals = self.graph, self.removals
        work = graph.work
        mine = removals.inside(place)[work.place] & (work.category == Category.COMP)
        turn = np.where(work.before == NONE, work.start, np.minimum(work.end[work.before], work.start))
        # A long pause is another cause.
        since = np.maximum(turn, work.start - 10 * SHORT_NS)
        short = np.flatnonzero(mine & (work.end - work.start < SHORT_NS))
        own = self._per_step(graph.work_rank[short], (work.end - since)[short])
        return Candidate(
            Cause.SMALL_KERNELS,
            place,
            self._every,
            lambda times, ranks: removals.short_kernels(times, place, ranks),
            *own,
        )

    def _late_ranks(self) -> Iterator[Candidate]:
        """Yield the ranks whose own time is most above that of the others."""
        if len(self._every) < 2 or not self.graph.is_coupled:
            return
        removals, measured = self.removals, self.replay.measured
        if self.graph.is_pipeline:
            yield from self._bubble()
        for late, cause in (
            (removals.late_host, Cause.LATE_RANK_HOST),
            (removals.late_gpu, Cause.LATE_RANK_GPU),
        ):
            changed = {rank: late(measured, rank) for rank in self._longest(cause)}
            excess = {rank: self._less(measured, times) for rank, times in changed.items()}
            for ranks in late_groups(excess, len(self._every)):
                least = min(ranks, key=lambda rank: excess[rank])
                slower = self._slower(least) if cause is Cause.LATE_RANK_HOST else 0.0
                latest = sorted(ranks, key=lambda rank: -excess[rank])
                places = dict.fromkeys(self._most_excess(cause, rank) for rank in latest)
                place = ", ".join([*places][:_NAMED])
                yield Candidate(cause, place, ranks, of_ranks(late, ranks), excess[least], slower=slower)

            yield from self._in_turn(cause)

    def _in_turn(self, cause: Cause) -> Iterator[Candidate]:
        """Yield the ranks that are late in single steps, several of them in turn."""
        graph, measured, removals = self.graph, self.replay.measured, self.removals
        if cause is Cause.LATE_RANK_HOST:
            remove = removals.in_turn_host
            time = np.concatenate(removals.in_turn_excess(measured))
            place = np.concatenate((graph.calls.place, graph.pieces.place))
            rank = np.concatenate((graph.call_rank, graph.call_rank[graph.pieces.call]))
        else:
            remove = removals.in_turn_gpu
            time = (measured.alone - remove(measured).alone).clip(min=0)
            place, rank = graph.work.place, graph.work_rank
        where = self._mostly(place, time)
        time = np.where(removals.inside(where)[place], time, 0)
        own = np.bincount(rank, time, len(self._every)) / graph.steps
        ranks = np.flatnonzero(own >= _IN_TURN * own.max())
        if len(ranks) > 1 and own.any():
            ranked = tuple(ranks.tolist())
            yield Candidate(cause, where, ranked, lambda times, _: remove(times), float(own.max()))

    def _longest(self, cause: Cause) -> list[int]:
        """Return the ranks that take most longer in all than those with the same work; they may be late.

        A rank that takes much less in other steps is at most late in turn with others.
        """
        graph, measured = self.graph, self.replay.measured
        if cause is Cause.LATE_RANK_HOST:
            rows = np.flatnonzero(np.isin(graph.edges.kind, (EdgeKind.HOST, EdgeKind.CALL)))
            call = graph.edges.row[rows]
            rank, step, time = graph.call_rank[call], graph.calls.step[call], measured.lag[rows].astype(float)
        else:
            compute = graph.work.category == Category.COMP
            rank, step, time = graph.work_rank[compute], graph.work.step[compute], measured.alone[compute]
        _, number = numbered(step)
        total = np.zeros((int(number.max(initial=-1)) + 1, len(self._every)))
        np.add.at(total, (number, rank), time)
        excess = np.zeros_like(total)
        for one in self._every:
            excess[:, one] = total[:, one] - np.median(total[:, peers(one, graph.stage)], axis=1)
        in_turn = -excess.clip(max=0).sum(axis=0) > _EARLY * excess.clip(min=0).sum(axis=0)
        whole = total.sum(axis=0)
        longest = np.argsort(stage_medians(whole, graph.stage)[graph.stage] - whole, kind="stable").tolist()
        alone = np.bincount(graph.stage)[graph.stage] == 1
        return [one for one in longest if not alone[one] and not in_turn[one]][: 2 * _MOST_LATE]

    def _bubble(self) -> Iterator[Candidate]:
        """Yield the slowest stage of a pipeline."""
        work, measured = self.graph.work, self.replay.measured
        compute = work.category == Category.COMP
        total = (
            np.bincount(self.graph.work_rank, measured.alone * compute, len(self._every)) / self.graph.steps
        )
        usual = stage_medians(total, self.graph.stage)
        slowest = np.flatnonzero(self.graph.stage == usual.argmax())
        mine = np.isin(self.graph.work_rank, slowest) & compute
        where = self._mostly(work.place[mine], measured.alone[mine])
        yield Candidate(
            Cause.PIPELINE_BUBBLE,
            where,
            tuple(slowest.tolist()),
            lambda times, _: self.removals.balanced(times),
            float(usual.max() - usual.mean()),
        )

    def _most_excess(self, cause: Cause, rank: int) -> str:
        """Return the place where a rank takes most more time than the others."""
        graph, measured = self.graph, self.replay.measured
        if cause is Cause.LATE_RANK_HOST:
            own, between = self.removals.host_excess(measured, rank)
            place = np.concatenate((graph.calls.place, graph.pieces.place))
            excess = np.concatenate((own, between))
        else:
            place, excess = graph.work.place, measured.alone - self.removals.late_gpu(measured, rank).alone
        return self._mostly(place, excess)

    def _less(self, measured: Times, changed: Times) -> float:
        edges = np.flatnonzero(changed.lag != measured.lag)
        lag = (measured.lag[edges] - changed.lag[edges]).sum()
        return float(lag + (measured.alone - changed.alone).sum()) / self.graph.steps

    def _slower(self, rank: int) -> float:
        """Return how many times as long as the others a rank takes for its calls and between them.

        It is 0 if a rank is late by what it does at some point: then most of its excess lies in long pauses,
        and is more than the rank is slower in most places. It is 1 if the rank is slower in few places only.
        """
        pieces, removals, measured = self.graph.pieces, self.removals, self.replay.measured
        calls, between = removals.host_excess(measured, rank)
        short, short_call = ~removals.long_gap[pieces.call], ~removals.long_call
        least = _EVERYWHERE * float(calls.sum() + between.sum())
        excess = float(calls[short_call].sum() + between[short].sum())
        usual = self._usual_ratio(rank)
        mine = self.graph.call_rank[pieces.call] == rank
        if excess >= least:
            own = measured.lag[removals.edge_of_call[EdgeKind.CALL]]
            time = float(own[short_call & (calls > 0)].sum() + pieces.length[short & (between > 0)].sum())
            # In other places it may be as quick, or quicker.
            return time / max(time - excess, 1.0) if usual > _SLOWER else 1.0
        return usual if usual > 1 and pieces.length[mine].sum() * (1 - 1 / usual) >= least else 0.0

    def _usual_ratio(self, rank: int) -> float:
        """Return how many times as long as the others a rank takes between calls in half of what they do.

        Long pauses make no place weigh more: those of a single one say nothing about the others.
        """
        pieces, others = self.graph.pieces, peers(rank, self.graph.stage)
        long = self.removals.long_gap[pieces.call]
        total = np.zeros((2, len(self.graph.places) + 1, len(self._every)))
        np.add.at(
            total, (long.astype(np.int64), pieces.place, self.graph.call_rank[pieces.call]), pieces.length
        )
        usual = np.median(total.sum(axis=0)[:, others], axis=1)
        own = total.sum(axis=0)[:, rank]
        ratio = np.divide(own, usual, out=np.ones(len(usual)), where=usual > 0)
        # One long pause in each step makes a whole place take longer, and its pieces no slower.
        ratio = np.minimum(ratio, self._usual_piece(rank, others))
        order = np.argsort(ratio)
        done = np.cumsum(np.median(total[0][:, others], axis=1)[order])
        if not done[-1]:
            return 1.0
        return float(ratio[order][np.searchsorted(done, 0.5 * done[-1])])

    def _usual_piece(self, rank: int, others: Ints) -> Floats:
        """Return how many times as long as on the others the median piece of host time is, by place."""
        pieces, ranks = self.graph.pieces, len(self._every)
        found = summarize(pieces.place * ranks + self.graph.call_rank[pieces.call], pieces.length)
        # `NONE` is -1 and so selects the last row.
        medians = np.zeros((len(self.graph.places) + 1, ranks))
        medians[found.group // ranks, found.group % ranks] = found.median
        usual = np.median(medians[:, others], axis=1)
        ratio: Floats = np.divide(medians[:, rank], usual, out=np.ones(len(usual)), where=usual > 0)
        return ratio

    def _math(self) -> Iterator[Candidate]:
        slow = self._slow_math
        if not len(slow):
            return
        work = self.graph.work
        own = self._per_step(self.graph.work_rank[slow], work.end[slow] - work.start[slow])

        def remove(times: Times, _: tuple[int, ...] | None) -> Times:
            alone = times.alone.copy()
            alone[slow] /= self._tensor_core_gain
            return times.with_alone(alone)

        place = self._mostly(work.place[slow], np.ones(len(slow)))
        yield Candidate(Cause.SLOW_MATH, place, self._every, remove, *own)

    def _contention(self) -> Iterator[Candidate]:
        lost = self.replay.lost
        own = self._per_step(self.graph.work_rank, lost)
        yield Candidate(
            Cause.CONTENTION, "", self._every, lambda times, _: replace(times, contended=False), *own
        )

    def _per_step(self, rank: Ints, time: Ints | Floats) -> tuple[float, int]:
        """Return the time per step on the rank where it is most, and that rank if it alone has the time."""
        total = np.bincount(rank, time, len(self._every)) / self.graph.steps
        most = int(total.argmax())
        others = np.delete(total, most)
        alone = len(others) > 0 and _ALONE * float(np.median(others)) < total[most]
        return float(total[most]), most if alone else NONE


def late_groups(excess: Mapping[int, float], ranks: int) -> list[tuple[int, ...]]:
    """Return the latest of some ranks, each by itself, and those that are late together: at most half."""
    latest = sorted(excess, key=lambda rank: -excess[rank])
    several = tuple(sorted(rank for rank in latest if excess[rank] >= _ALIKE * excess[latest[0]] > 0))
    alone = [(rank,) for rank in latest[:_MOST_LATE]]
    return [*alone, *([several] if 1 < len(several) <= ranks // 2 else [])]


def of_ranks(late: Callable[[Times, int], Times], ranks: tuple[int, ...]) -> Remove:
    """Return what takes a lateness out of each of these ranks."""

    def remove(times: Times, _: tuple[int, ...] | None) -> Times:
        for rank in ranks:
            times = late(times, rank)
        return times

    return remove
