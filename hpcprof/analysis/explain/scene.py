"""The scene of a search for causes: the graph of a run, its replay, and the removals of causes."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from hpcprof.analysis.account.call_kinds import CallKind
from hpcprof.analysis.account.places import NONE, OUTSIDE, WHOLE_STEP, without_numbers
from hpcprof.analysis.explain.cause import Candidate, CauseDeclaration, Remove, Trait, cause_names, find_cause
from hpcprof.analysis.explain.explanation import MIN_ESTIMATE_PCT
from hpcprof.analysis.explain.mpi_removals import MpiRemovals
from hpcprof.analysis.explain.removals import Removals
from hpcprof.analysis.explain.replay import Replay, Times
from hpcprof.profiles.timeline import Category, Floats, Gpu, Ints, Mask, Timeline

_MIN_SHARE = 0.01
"""Minimum own time of a candidate, as a share of a step."""

_MIN_ALONE_RATIO = 2
"""Minimum ratio of a rank's time to the median of the others, for a cause of this rank alone."""

_MIN_RANK_SHARE = 0.1
"""Minimum time of a cause on a rank that has it, as a share of the rank with most."""

_ComputedT = TypeVar("_ComputedT")


def place_with_most(place: Ints, time: Ints | Floats | None = None) -> int:
    """Return the place with most of some time, by default most rows; also `NONE`, which is -1."""
    return int(np.bincount(place + 1, time).argmax()) - 1


class Scene:
    """The data for the search of candidates of causes.

    ``gpus`` and ``timelines`` are by rank, and ``ranks`` are the positions of all ranks in the graph. ``mpi``
    is None unless all ranks call MPI. ``least`` is the minimum time per step of a candidate by itself, in ns.
    """

    def __init__(
        self, replay: Replay, gpus: Mapping[int, Sequence[Gpu]], timelines: Mapping[int, Timeline]
    ) -> None:
        self.replay, self.graph, self.gpus, self.timelines = replay, replay.graph, gpus, timelines
        self.removals = Removals(replay)
        self.mpi = None if self.graph.mpi is None else MpiRemovals(replay, self.graph.mpi)
        self.ranks = tuple(range(len(self.graph.ranks)))
        self.least = _MIN_SHARE * float(np.mean(replay.elapsed(self.graph.observed)))
        self._computed: dict[Callable[[Scene], object], object] = {}

    def candidates(self) -> list[Candidate]:
        """Return the candidates of all causes that take at least one percent of a step by themselves."""
        declared = (find_cause(name) for name in cause_names())
        all_candidates = (
            candidate
            for cause in declared
            if cause.candidates and not (self.graph.is_of_host and Trait.ON_GPU in cause.traits)
            for candidate in cause.candidates(self)
        )
        return [candidate for candidate in all_candidates if candidate.own_ns >= self.least]

    def once(self, compute: "Callable[[Scene], _ComputedT]") -> _ComputedT:
        """Return the result of a function of the scene, computed at its first use."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        return self._computed[compute]  # type: ignore[return-value]

    @cached_property
    def multiprocessors(self) -> int:
        """The multiprocessors of the smallest GPU, 0 if unknown."""
        return min((gpu.sm_count for gpus in self.gpus.values() for gpu in gpus if gpu.sm_count), default=0)

    def named(self, fits: Callable[[str], object]) -> Mask:
        """Return a mask of the operations whose name fits, shape (operations,)."""
        return self.graph.is_named(self.graph.work.name, fits)

    def of_operations(
        self,
        cause: CauseDeclaration,
        rows: Ints,
        time: Ints | Floats | None = None,
        less: Ints | Floats | None = None,
        advice: str = "",
    ) -> Iterator[Candidate]:
        """Yield the candidate of a cause in operations ``rows``, if there are any.

        ``time`` is the cause's own time in each operation, by default all of it, and the place with most of
        it is the candidate's. Without the cause, operations take ``less`` ns less, by default that time;
        those without any time left are not launched either. Arrays have shape (n,).
        """
        if not len(rows):
            return
        work, rank = self.graph.work, self.graph.work_rank[rows]
        time = work.time[rows] if time is None else time
        where, ranks = self.mostly(work.place[rows], time), self.ranks_of_most(rank, time)
        has_cause = np.isin(rank, ranks)
        chosen, removed_ns = rows[has_cause], (time if less is None else less)[has_cause]
        whole = chosen[removed_ns >= work.time[chosen]]

        def remove(times: Times) -> Times:
            shorter = times.set_alone(chosen, np.maximum(times.alone[chosen] - removed_ns, 0.0))
            return self.removals.without_launches(shorter, whole)

        yield self.candidate(cause, where, remove, rank, time, ranks=ranks, advice=advice)

    def candidate(
        self,
        cause: CauseDeclaration,
        where: str,
        remove: Remove,
        rank: Ints,
        time: Ints | Floats,
        *,
        ranks: tuple[int, ...] | None = None,
        advice: str = "",
    ) -> Candidate:
        """Return a cause in a place, by default on all ranks, with its own time in rows of each rank.

        ``rank``, as positions in the graph, and ``time``, in ns, have shape (n,).
        """
        per_step = self.per_step(rank, time)
        return Candidate(
            cause, where, self.ranks if ranks is None else ranks, remove, *per_step, advice=advice
        )

    def on_its_ranks(self, candidate: Candidate) -> Candidate:
        """Return a candidate whose removal leaves the times of other ranks as they are."""

        def remove(times: Times) -> Times:
            return self.replay.on_ranks(times, candidate.remove(times), candidate.ranks)

        return replace(candidate, remove=remove)

    def ranks_of_most(
        self, rank: Ints, time: Ints | Floats, share: float = _MIN_RANK_SHARE
    ) -> tuple[int, ...]:
        """Return the ranks with at least a share of the time of the rank that has most."""
        total = np.bincount(rank, time, len(self.ranks))
        return tuple(np.flatnonzero(total >= share * total.max()).tolist())

    @cached_property
    def places(self) -> list[str]:
        """The places in which something happens, those around them, and ``layers.N`` for numbered ones."""
        graph = self.graph
        used = {*np.unique(graph.calls.place).tolist(), *np.unique(graph.pieces.place).tolist()}
        texts = {graph.places[number] for number in used if number != NONE}
        outer = {
            "/".join(parts[:n]) for parts in (text.split("/") for text in texts) for n in range(1, len(parts))
        }
        counts = Counter(map(without_numbers, texts | outer))
        numbered = {name for name, count in counts.items() if count > 1}
        return sorted(texts | outer | numbered | ({self.place(NONE)} if NONE in used else set()))

    def place(self, number: int) -> str:
        """Return the name of a place, also of `NONE`."""
        if number != NONE:
            return self.graph.places[number]
        return OUTSIDE if self.graph.places else WHOLE_STEP

    def joint_place(self, number: int) -> str:
        """Return the name of a place, with ``N`` for its numbers if other places differ in them alone."""
        text = self.place(number)
        joint = without_numbers(text)
        return joint if joint in self.places else text

    def mostly(self, place: Ints, time: Ints | Floats) -> str:
        """Return the place with most of some time; ``place`` and ``time`` have shape (n,)."""
        return self.place(place_with_most(place, time))

    def inside(self, place: Ints, time: Ints | Floats) -> str:
        """Return the innermost place with more than half of some time, given as for `mostly`."""
        name, total = self.mostly(place, time), float(time.sum())
        while name and 2 * float(time[self.removals.inside(name)[place]].sum()) <= total:
            name = name.rpartition("/")[0]
        return name

    def per_step(self, rank: Ints, time: Ints | Floats) -> tuple[float, int]:
        """Return the maximum over the ranks of the time per step, and its rank if it alone has the time."""
        total = np.bincount(rank, time, len(self.ranks)) / self.graph.steps
        most = int(total.argmax())
        other_totals = np.delete(total, most)
        alone = len(other_totals) > 0 and _MIN_ALONE_RATIO * float(np.median(other_totals)) < total[most]
        return float(total[most]), most if alone else NONE

    @cached_property
    def is_host_bound(self) -> bool:
        """True if the host would be too slow for the GPU even if it never waited for it."""
        removals, elapsed = self.removals, self.replay.elapsed
        waiting = np.union1d(removals.calls_in(WHOLE_STEP, (CallKind.WAIT,)), self.held_calls)
        free = removals.waits(self.replay.measured, waiting)
        quick = removals.host_time(free, WHOLE_STEP, long=False)
        slow, least = (elapsed(self.replay.moments(times, exact=False)) for times in (free, quick))
        return 100 * float(np.mean(slow - least)) >= MIN_ESTIMATE_PCT * float(np.mean(slow))

    @cached_property
    def held_calls(self) -> Ints:
        """The launches that wait, and the calls that wait longer for earlier work than for their own copy."""
        work, calls = self.graph.work, self.graph.calls
        rows = np.flatnonzero((work.category == Category.MEM) & np.isin(work.call, self.graph.blocked))
        call = work.call[rows]
        held = call[2 * work.time[rows] < calls.time[call]]
        return np.union1d(held, self.graph.blocked[calls.kind[self.graph.blocked] == CallKind.LAUNCH])

    def mostly_outside_mpi(self, time: Ints | Floats) -> str:
        """Return the place with most time; ``time`` is by place, with that outside all places last."""
        most = int(time.argmax())
        return self.graph.places[most] if most < len(self.graph.places) else WHOLE_STEP

    def call_with_most(self, time: Ints | Floats) -> str:
        """Return the name of the calls with most of a time, given by call."""
        return self.graph.names[int(np.bincount(self.graph.calls.name + 1, time)[1:].argmax())]
