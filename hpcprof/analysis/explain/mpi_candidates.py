"""Candidate causes in the graph of a program with MPI, each with the run without it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcprof.analysis.account.host_activity import NONE
from hpcprof.analysis.explain.candidates import LEAST_SHARE, Candidate, late_groups, of_ranks
from hpcprof.analysis.explain.explanation import Cause
from hpcprof.analysis.explain.mpi_part import MpiPart
from hpcprof.analysis.explain.mpi_removals import MpiRemovals
from hpcprof.analysis.explain.rank_edges import EdgeKind
from hpcprof.analysis.explain.removals import WHOLE_STEP
from hpcprof.analysis.explain.replay import Replay
from hpcprof.profiles.timeline import Floats, Ints

_ALIKE = 0.5
"""Several ranks have a cause together if the one that has least has so much of what the others have."""

HELD_UP = 0.25
"""If calls are held up for so much of the time that ranks are late, the machine may be the reason."""


class MpiCandidates:
    """Lists the candidates of a graph."""

    def __init__(self, replay: Replay, part: MpiPart) -> None:
        self.graph, self.part = replay.graph, part
        self.removals = MpiRemovals(replay, part)
        self._every = tuple(range(len(self.graph.ranks)))
        self._least = LEAST_SHARE * float(np.mean(replay.elapsed(self.graph.observed)))

    def all(self) -> list[Candidate]:
        """Return the candidates of a program without work on GPUs.

        They take at least one percent of a step by themselves.
        """
        found = [*self._late_ranks(), *self._by_chance(), *self._serial(), *self._server(), *self._files()]
        return [*(one for one in found if one.own_ns >= self._least), *self.of_messages()]

    def of_messages(self) -> list[Candidate]:
        """Return the candidates that are about messages and collectives themselves."""
        found = [*self._small(), *self._late_receivers(), *self._reordered(), *self._exposed()]
        return [one for one in found if one.own_ns >= self._least]

    def _late_ranks(self) -> Iterator[Candidate]:
        """Yield the ranks that work most longer than the others, each and those that do together."""
        if len(self._every) < 2:
            return
        removals = self.removals
        excess = {rank: removals.host_excess(rank)[0] for rank in self._every if removals.is_late(rank)}
        if not excess:
            return
        cause = Cause.PIPELINE_BUBBLE if self.part.is_pipeline else Cause.LATE_RANK_HOST
        for ranks in late_groups(excess, len(self._every)):
            least = min(ranks, key=lambda rank: excess[rank])
            where = self._where(removals.host_times[:, least] * removals.host_excess(least)[1])
            yield Candidate(cause, where, ranks, of_ranks(removals.late_host, ranks), excess[least])

    def _by_chance(self) -> Iterator[Candidate]:
        """Yield what ranks work longer in turn: each in some steps, none in all.

        Where calls of MPI are held up too, other processes on the machine may be the reason.
        """
        removals = self.removals
        late = removals.late_by_chance
        if self.part.server != NONE or self.part.is_pipeline or not removals.stand_out:
            return
        if removals.held_up > HELD_UP * float(late.mean()):
            return
        where = self._where(np.where(removals.serial, 0.0, removals.host_times).sum(axis=1))
        yield Candidate(
            Cause.LATE_RANK_HOST,
            where,
            self._every,
            lambda times, _: removals.without_chance(times),
            float(late.max(axis=1).mean()),
        )

    def _where(self, time: Ints | Floats) -> str:
        """Return the place with most of some time; ``time`` has one more for that outside all places."""
        most = int(time.argmax())
        return self.graph.places[most] if most < len(self.graph.places) else WHOLE_STEP

    def _serial(self) -> Iterator[Candidate]:
        """Yield the places in which one rank works while all others wait, and which hardly take them time."""
        total = self.removals.host_times
        for place, rank in np.argwhere(self.removals.serial).tolist():
            yield self._serial_at(self.graph.places[place], rank, total[place, rank] / self.graph.steps)

    def _serial_at(self, place: str, rank: int, own: float, where: str | None = None) -> Candidate:
        return Candidate(
            Cause.SERIAL_SECTION,
            place if where is None else where,
            (rank,),
            lambda times, _: self.removals.removals.host_time(times, place, (rank,)),
            own,
        )

    def _server(self) -> Iterator[Candidate]:
        """Yield the rank that serves all others, and does nothing else."""
        rank = self.part.server
        if rank != NONE:
            times = self.removals.host_times[:, rank]
            yield self._serial_at(WHOLE_STEP, rank, times.sum() / self.graph.steps, self._where(times))

    def _files(self) -> Iterator[Candidate]:
        """Yield the ranks that read and write files, where the profile has these calls."""
        graph, time = self.graph, self.part.in_files
        by_rank = np.bincount(graph.call_rank, time, len(self._every))
        ranks = np.flatnonzero(by_rank >= _ALIKE * max(by_rank.max(), 1))
        if not len(ranks):
            return
        less = np.where(np.isin(graph.call_rank, ranks), time, 0)
        calls = np.flatnonzero(less)
        where = self._where(np.bincount(graph.calls.place[calls], less[calls], len(graph.places)))
        yield Candidate(
            Cause.SLOW_IO,
            where,
            tuple(ranks.tolist()),
            lambda times, _: self.removals.removals.less_before(times, less),
            self._per_step(less),
        )

    def _small(self) -> Iterator[Candidate]:
        """Yield the small messages that could be sent together, of each call and of all."""
        removals, graph = self.removals, self.graph
        chosen = removals.follows_small
        if not chosen.any():
            return
        gap = np.where(graph.calls.before == NONE, 0, graph.calls.start - graph.calls.end[graph.calls.before])
        own = self._per_step(np.where(chosen, removals.transfer + gap, 0))
        yield Candidate(
            Cause.SMALL_MESSAGES,
            self._call_with_most(np.where(chosen, removals.transfer, 0)),
            self._every,
            lambda times, _: removals.joined_messages(times),
            own,
        )

    def _reordered(self) -> Iterator[Candidate]:
        """Yield the ranks that wait for a message while a later one has come."""
        graph, removals = self.graph, self.removals
        calls = self.part.reordered[:, 0]
        waits = np.zeros(len(graph.calls))
        waits[calls] = self.part.wait[calls]
        by_rank = np.bincount(graph.call_rank, waits, len(self._every))
        if not by_rank.any():
            return
        yield Candidate(
            Cause.WRONG_ORDER,
            self._call_with_most(waits),
            tuple(np.flatnonzero(by_rank >= _ALIKE * by_rank.max()).tolist()),
            lambda times, _: removals.in_order_of_sending(times),
            self._per_step(waits),
        )

    def _late_receivers(self) -> Iterator[Candidate]:
        """Yield the receivers that hold their senders."""
        graph = self.graph
        held = np.flatnonzero(graph.edges.kind == EdgeKind.RENDEZVOUS)
        if not len(held):
            return
        call = graph.edges.row[held]
        receiver = (graph.edges.source[held] - 1) // 2
        late = np.maximum(graph.calls.start[receiver] - graph.calls.start[call], 0)
        by_receiver = np.bincount(graph.call_rank[receiver], late, len(self._every))
        ranks = np.flatnonzero(by_receiver >= _ALIKE * by_receiver.max())
        waits = np.zeros(len(graph.calls))
        np.maximum.at(waits, call, late)
        yield Candidate(
            Cause.LATE_RECEIVER,
            self._call_with_most(waits),
            tuple(ranks.tolist()),
            lambda times, _: self.removals.late_receivers(times),
            self._per_step(waits),
        )

    def _exposed(self) -> Iterator[Candidate]:
        """Yield the transfer that nothing hides, of the calls of each name and of all."""
        exposed, name = self.removals.exposed, self.graph.calls.name
        used = np.unique(name[exposed > 0]).tolist()
        for one in [*used, *([NONE] if len(used) > 1 else [])]:
            less = np.where((name == one) | (one == NONE), exposed, 0)
            where = self.graph.names[one] if one != NONE else WHOLE_STEP
            yield Candidate(
                Cause.EXPOSED_COMMUNICATION,
                where,
                self._every,
                lambda times, _, less=less: self.removals.less_transfer(times, less),  # type: ignore[misc]
                self._per_step(less),
            )

    def _call_with_most(self, time: Ints | Floats) -> str:
        """Return the name of the calls with most of some time."""
        name = self.graph.calls.name
        return self.graph.names[int(np.bincount(name + 1, time)[1:].argmax())]

    def _per_step(self, time: Ints | Floats) -> float:
        """Return the time per step of the rank where it is most."""
        total = np.bincount(self.graph.call_rank, time, len(self._every))
        return float(total.max()) / self.graph.steps
