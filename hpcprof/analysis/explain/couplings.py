"""Coupling of ranks by communication, which ends some time after the last rank has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcprof.analysis.collectives.matches import MatchedGroup
from hpcprof.analysis.explain.common_clock import CommonClock
from hpcprof.analysis.explain.host_activity import NONE
from hpcprof.analysis.explain.rank_edges import EdgeKind, Edges
from hpcprof.profiles.collective_operations import FROM_ROOT, TO_ROOT, WAITING
from hpcprof.profiles.timeline import Ints, concatenate

MESSAGE = "SendRecv"
"""The operation of the couplings of sends and receives."""


@dataclass(frozen=True)
class Coupling:
    """Communication in the graph: the node at which the last rank comes, and the operation on each rank."""

    node: int
    op: str
    work: Ints


class Coupler:
    """Adds the nodes and edges that couple ranks.

    Parameters
    ----------
    kernels : mapping of int to mapping of int to int
        By rank, its communication by its start on the rank's own clock.
    observed : ndarray of int64
        When the nodes happened that exist so far.
    first_work : int
        The node of the start of the first operation.
    """

    def __init__(
        self, kernels: Mapping[int, Mapping[int, int]], observed: Ints, first_work: int, clock: CommonClock
    ) -> None:
        self.couplings: list[Coupling] = []
        self.moments: list[int] = []
        self._kernels, self._observed, self._first, self._clock = kernels, observed, first_work, clock
        self._parts: list[Edges] = []

    def edges(self) -> Edges:
        """Return the edges of all couplings."""
        return concatenate(Edges, self._parts) if self._parts else Edges.empty()

    def couple_collectives(self, matched: Sequence[MatchedGroup]) -> None:
        """Let the collectives that wait for their last rank end on all ranks their own time after that.

        A rank that is not in the graph comes as long after the last of these as it did. The own time is the
        median over the ranks. Where one rank is the root, all others wait for it, or it waits for all others
        (`_rooted`).
        """
        for one in matched:
            if len(one.ranks) < 2 or not self._clock.agree(one.ranks):
                continue
            rows = np.flatnonzero(one.part == 0).tolist()
            found = {
                row: work for row in rows if (work := self._found(one.ranks, one.start[row])) is not None
            }
            if one.op in WAITING:
                for row, work in found.items():
                    late = int(one.others_late[row])
                    own = self._end(work) - int(self._start(work).max()) - late
                    self._couple(one.op, work, work, np.full(len(work), max(0, int(np.median(own)))), late)
            elif found and one.op in FROM_ROOT | TO_ROOT:
                self._rooted(one.op, np.array([*found.values()]))

    def _rooted(self, op: str, work: Ints) -> None:
        """Let the ranks wait for the root of collectives, or the root for them; ``work`` is (n, ranks).

        Profiles do not record the root. No rank that gets data ends before the root has begun, and no root
        that gets data ends before another rank has begun. Of the ranks of which that holds always, or at
        least this time, the root is the one that the others wait for most, or that waits most itself.
        """
        start, end = self._start(work), self._end(work)
        ranks = work.shape[1]
        for row, root in enumerate(_roots(op in FROM_ROOT, start, end).tolist()):
            others = np.delete(np.arange(ranks), root)
            if op in TO_ROOT:
                own = max(0, int(end[row, root] - start[row].max()))
                self._couple(op, work[row], work[row, [root]], np.array([own]))
                continue
            for other in others.tolist():
                pair = work[row, [root, other]]
                own = max(0, int(end[row, other] - self._start(pair).max()))
                self._couple(op, pair, pair[1:], np.array([own]))

    def couple_messages(self, matched: Sequence[MatchedGroup]) -> None:
        """Let sends and receives end their own time after both ranks have come.

        A send that ended before its receive began went to a buffer: only the receive waits for it. A kernel
        with several messages ends its own time after the last of its partners.
        """
        pairs = []
        for one in matched:
            if self._clock.agree(one.ranks):
                found = (self._found(one.ranks, start) for start in one.start)
                pairs += [work for work in found if work is not None]
        both = [work for work in pairs if self._end(work)[0] > self._start(work)[1]]
        last: dict[int, int] = {}
        for work in both:
            come = int(self._start(work).max())
            for operation in work.tolist():
                last[operation] = max(last.get(operation, come), come)
        for work in both:
            own = self._end(work) - np.array([last[operation] for operation in work.tolist()])
            self._couple(MESSAGE, work, work, np.maximum(own, 0))
        for work in pairs:
            if self._end(work)[0] <= self._start(work)[1]:
                sent, received = self._nodes(work)
                self._add(np.array([sent + 1]), np.array([received + 1]), np.zeros(1, np.int64), work[1:])

    def _found(self, ranks: Ints, start: Ints) -> Ints | None:
        """Return the operations that began at these moments, None if one is not in the graph."""
        stamps = zip(ranks.tolist(), start.tolist(), strict=True)
        work = np.array([self._kernels.get(rank, {}).get(stamp, NONE) for rank, stamp in stamps], np.int64)
        return None if NONE in work else work

    def _nodes(self, work: Ints) -> Ints:
        return self._first + 2 * work

    def _start(self, work: Ints) -> Ints:
        start: Ints = self._observed[self._nodes(work)]
        return start

    def _end(self, work: Ints) -> Ints:
        end: Ints = self._observed[self._nodes(work) + 1]
        return end

    def _couple(self, op: str, work: Ints, waiting: Ints, own: Ints, late: int = 0) -> None:
        """Let some operations end their own time after all of ``work`` has begun, and ``late`` ns more."""
        node = len(self._observed) + len(self.couplings)
        self._add(self._nodes(work), np.full(len(work), node), np.full_like(work, late), work)
        end = self._nodes(waiting) + 1
        self._add(np.full(len(waiting), node), end, own, waiting, EdgeKind.TRANSFER)
        self.couplings.append(Coupling(node, op, work))
        self.moments.append(int(self._start(work).max()) + late)

    def _add(
        self, source: Ints, target: Ints, lag: Ints, work: Ints, kind: EdgeKind = EdgeKind.ARRIVE
    ) -> None:
        self._parts.append(Edges(source, target, lag, np.full(len(work), int(kind)), work))


def _roots(gives: bool, start: Ints, end: Ints) -> Ints:
    """Return the column of the root of each collective; ``start`` and ``end`` have shape (n, ranks).

    ``gives`` says whether the root gives its data to the others, or gets theirs.
    """
    if gives:
        possible = np.all(end[:, None, :] >= start[:, :, None], axis=2)
        waited = start - start.min(axis=1, keepdims=True)
    else:
        possible = np.all(start[:, None, :] <= end[:, :, None], axis=2)
        waited = start.max(axis=1, keepdims=True) - start
    always = possible.all(axis=0)
    if always.any():
        return np.full(len(start), int(np.argmax(np.where(always, waited.sum(axis=0), -1))))
    roots: Ints = np.argmax(np.where(possible, waited, -1), axis=1)
    return roots


def pipeline_stages(couplings: Sequence[Coupling], work_rank: Ints, ranks: int) -> Ints:
    """Return the number of the pipeline stage of each rank by its position; 0 if no rank sends messages.

    Ranks that messages connect, also over others, are stages of one pipeline. A collective without two such
    ranks joins ranks of one stage, as those of data and tensor groups do.
    """
    groups = {(one.op == MESSAGE, tuple(work_rank[one.work].tolist())) for one in couplings}
    if not any(sends for sends, _ in groups):
        return np.zeros(ranks, np.int64)
    pipeline = _connected([members for sends, members in groups if sends], ranks)
    inside = (members for sends, members in groups if not sends)
    alike = [members for members in inside if len(np.unique(pipeline[list(members)])) == len(members)]
    return _connected(alike, ranks)


def _connected(groups: Sequence[tuple[int, ...]], ranks: int) -> Ints:
    """Return a number for each rank that the ranks which the groups connect have in common, from 0 on."""
    # Only pipelines need scipy.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = [(members[0], other) for members in groups for other in members[1:]]
    first, other = np.array(pairs, np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(pairs)), (first, other)), (ranks, ranks))
    _, number = connected_components(graph, directed=False)
    return number.astype(np.int64)
