"""The calls of MPI in the graph of a run: what each of them needs, and how long it waits for that.

A call ends when all that it needs has come: a receive needs the start of its send, a send that waits the
start of its receive, a collective the start of every rank, or of the root. After that it takes its own time,
the transfer. A nonblocking operation begins in one call and ends in another, its wait.
"""

from collections.abc import Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import numpy as np

from hpcprof.analysis.account.host_activity import NONE
from hpcprof.analysis.collectives.clock_alignment import NEAR_NS
from hpcprof.analysis.explain.rank_activity import HostCalls
from hpcprof.analysis.explain.rank_edges import EARLIEST, EdgeKind, Edges, edges_of
from hpcprof.analysis.mpi.matching import RunMpi
from hpcprof.analysis.mpi.waits import (
    blocked_sends,
    collective_needs,
    completion_needs,
    exchangeable_receives,
    stalled_calls,
)
from hpcprof.analysis.statistics.grouped import sums_by
from hpcprof.profiles.collective_operations import TO_ROOT
from hpcprof.profiles.timeline import Ints

_MIN_RELAYED_SHARE = 0.75
"""Minimum share of relayed messages among those of a pipeline's inner ranks that follow another one."""


class MpiPart:
    """The calls of MPI among those of a graph, and the other calls that each of them needs.

    ``run`` has the calls of the run, and ``row`` the position there of each call of the graph, `NONE` for
    calls outside MPI. ``rank`` is the position of each call's rank, and ``ranks`` the number of ranks.
    ``in_files`` is the time of reads and writes by the thread of each call since the one before, in ns. The
    arrays have shape (calls,).
    """

    def __init__(
        self, run: RunMpi, row: Ints, calls: HostCalls, rank: Ints, ranks: int, in_files: Ints
    ) -> None:
        self.run, self.row, self.ranks, self.in_files = run, row, ranks, in_files
        self._calls, self._rank = calls, rank
        has_row, self._node = np.flatnonzero(row != NONE), np.full(len(run.calls) + 1, NONE)
        self._node[row[has_row]] = has_row
        node, operations = self._node, run.operations
        receives, sends, partner = operations.matched_receives, operations.matched_sends, operations.partner
        self._received, self._sent = self._pairs([(receives, partner[receives])])
        both = [(rows, partner[rows]) for rows in (receives, sends)]
        both += [(ends, other) for _, ends, other in completion_needs(run)]
        stalls = [stalled_calls(run, ends, other) for ends, other in both]
        stalled, resumed = (node[np.concatenate(columns)] for columns in zip(*stalls, strict=True))
        has_both = (stalled != NONE) & (resumed != NONE)
        needs = [*collective_needs(run, node != NONE)]
        gives = [need for need in needs if need.op in TO_ROOT]
        takes = [need for need in needs if need.op not in TO_ROOT]
        held = blocked_sends(run)
        held_sends = [(held, partner[held]), *((need.waiters, need.awaited) for need in gives)]
        leaves = [(need.waiters, need.awaited) for need in takes]
        self._needs = (
            (self._received, self._sent, EdgeKind.MESSAGE),
            (*self._pairs(held_sends), EdgeKind.RENDEZVOUS),
            (stalled[has_both], resumed[has_both], EdgeKind.MESSAGE),
            (*self._pairs(leaves), EdgeKind.MESSAGE),
        )
        # The calls that come to a collective, and those that end when the last of them has come.
        begin, completed = node[operations.begin], node[operations.completes]
        self._groups = [
            (begin[rows], completed[rows[waits]])
            for need in (*takes, *gives)
            for rows, waits in zip(need.together, need.waits, strict=True)
        ]

    def _pairs(self, operations: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
        """Return waiting calls and the calls waited for, both of shape (n,), from pairs of operations."""
        rows, partner = np.concatenate([np.empty((2, 0), np.int64), *map(np.stack, operations)], axis=1)
        waiter = self._node[self.run.operations.completes[rows]]
        other = self._node[self.run.operations.begin[partner]]
        is_pair = (waiter != NONE) & (other != NONE) & (waiter != other)
        return waiter[is_pair], other[is_pair]

    @cached_property
    def messages(self) -> Ints:
        """The sending and the receiving rank of each message, by position; shape (m, 2)."""
        return self._rank[np.column_stack((self._sent, self._received))]

    @cached_property
    def relays(self) -> Ints:
        """The messages whose sender had received another one before, shape (r, 3).

        The columns are the sender of the last message before, the sender, and the receiver. If several
        messages came in one call, the one from the new message's receiver counts. A message that is passed
        on at once, as in a tree, counts as sent back: no rank works on it.
        """
        calls, rank = self._calls, self._rank
        order = np.argsort(self._received, kind="stable")
        sent, received = self._sent[order], self._received[order]
        last = np.searchsorted(received, sent) - 1
        # Calls that exchange messages with one rank pass nothing on.
        count, thread = len(calls), calls.thread
        exchange = np.isin(received * count + sent, sent * count + received)
        rows = np.flatnonzero((last >= 0) & (thread[received[last]] == thread[sent]) & ~exchange)
        came, target = received[last[rows]], rank[received[rows]]
        answers = np.isin(came * self.ranks + target, received * self.ranks + rank[sent])
        at_once = calls.start[sent[rows]] - calls.end[received[last[rows]]] <= NEAR_NS
        source = np.where(answers | at_once, target, rank[sent[last[rows]]])
        return np.column_stack((source, rank[sent[rows]], target))

    @cached_property
    def directions(self) -> Ints:
        """The messages from each rank to each other one, shape (ranks, ranks)."""
        sent, received = self.messages.T
        return sums_by((self.ranks, self.ranks), (sent, received), 1).astype(np.int64)

    @cached_property
    def is_pipeline(self) -> bool:
        """True if messages pass from rank to rank, through others, and not around a ring.

        They may pass back the same way. Ranks that exchange messages with their neighbours send as often to
        the neighbour that sent last as to another one.
        """
        directions = self.directions
        inner = np.count_nonzero(directions + directions.T, axis=0) > 1
        relays = self.relays[inner[self.relays[:, 1]]]
        passed = relays[relays[:, 0] != relays[:, 2]]
        if not len(passed) or len(passed) < _MIN_RELAYED_SHARE * len(relays):
            return False
        # No message comes back to where it was, by the messages that each one leads to.
        after: dict[tuple[int, int], set[tuple[int, int]]] = {}
        for source, rank, target in np.unique(passed, axis=0).tolist():
            after.setdefault((source, rank), set()).add((rank, target))
        try:
            TopologicalSorter(after).prepare()
        except CycleError:
            return False
        return True

    @cached_property
    def server(self) -> int:
        """The position of the rank with which all others exchange their messages; `NONE` without."""
        directions = self.directions
        if len(directions) <= 2 or not directions.any():
            return NONE
        hub = int((directions.sum(axis=0) + directions.sum(axis=1)).argmax())
        clients = np.delete(np.arange(len(directions)), hub)
        serves = (directions[hub, clients] > 0) & (directions[clients, hub] > 0)
        return hub if serves.all() and not directions[np.ix_(clients, clients)].any() else NONE

    @cached_property
    def reordered(self) -> Ints:
        """The calls that receive messages out of the order of sending, shape (3, r).

        The rows are the call, the call that sends the message that it would receive in order, and the time
        from that send to the end of the receive.
        """
        calls, ops = self._calls, self.run.operations
        places, sequence = exchangeable_receives(self.run)
        receives = ops.matched_receives[places]
        ended, sent = self._node[ops.completes[receives]], self._node[ops.begin[ops.partner[receives]]]
        has_both = (ended != NONE) & (sent != NONE)
        ended, sent, run = ended[has_both], sent[has_both], sequence[has_both]
        moment = calls.start[sent]
        late = (np.diff(moment) < 0) & (run[1:] == run[:-1])
        transfer = calls.time - self.wait
        parts = [np.empty((3, 0), np.int64)]
        for number in np.unique(run[1:][late]).tolist():
            rows = np.flatnonzero(run == number)
            by_time = rows[np.argsort(moment[rows], kind="stable")]
            rows, by_time = rows[rows != by_time], by_time[rows != by_time]
            lag = np.minimum(transfer[ended[by_time]], calls.end[ended[rows]] - moment[by_time])
            parts.append(np.stack((ended[rows], sent[by_time], lag)))
        return np.concatenate(parts, axis=1)

    @cached_property
    def wait(self) -> Ints:
        """The time that each call waits for the last one that it needs, in ns, shape (calls,)."""
        start, end = self._calls.start, self._calls.end
        last = start.copy()
        for waiter, other, _ in self._needs:
            np.maximum.at(last, waiter, start[other])
        for arriving, waiting in self._groups:
            last[waiting] = np.maximum(last[waiting], start[arriving].max())
        transfer: Ints = np.minimum(last, end) - start
        return transfer

    def moments(self) -> Ints:
        """Return when the last rank comes to each collective with a node of its own."""
        start = self._calls.start
        return np.array([int(start[arriving].max()) for arriving, _ in self._groups], np.int64)

    def edges(self, first: int) -> list[Edges]:
        """Return the edges between calls; the nodes of collectives have numbers from ``first`` on."""
        start, end = self._calls.start, self._calls.end
        transfer = end - start - self.wait
        edges = []
        for waiter, other, kind in self._needs:
            lag = np.minimum(transfer[waiter], end[waiter] - start[other])
            edges.append(edges_of(1 + 2 * other, 2 + 2 * waiter, lag, kind, waiter))
        waiter, sent, _ = self.reordered
        edges.append(edges_of(1 + 2 * sent, 2 + 2 * waiter, EARLIEST, EdgeKind.ORDER, waiter))
        sources, targets = [], []
        for number, (arriving, waiting) in enumerate(self._groups, first):
            sources.append(np.stack((arriving, np.full(len(arriving), number))))
            targets.append(np.stack((waiting, np.full(len(waiting), number))))
        if sources:
            arriving, joined = np.concatenate(sources, axis=1)
            waiting, leaving = np.concatenate(targets, axis=1)
            last = self.moments()[leaving - first]
            edges += [
                edges_of(1 + 2 * arriving, joined, 0, EdgeKind.JOIN, arriving),
                edges_of(
                    leaving,
                    2 + 2 * waiting,
                    np.minimum(transfer[waiting], end[waiting] - last),
                    EdgeKind.MESSAGE,
                    waiting,
                ),
            ]
        return edges
