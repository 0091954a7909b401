"""Removals in the graph of a program with MPI: its times with a cause taken out."""

from dataclasses import replace
from functools import cached_property

import numpy as np

from hpcprof.analysis.account.host_activity import NONE
from hpcprof.analysis.explain.mpi_part import MpiPart
from hpcprof.analysis.explain.rank_edges import EdgeKind
from hpcprof.analysis.explain.removals import Removals
from hpcprof.analysis.explain.replay import Replay, Times
from hpcprof.analysis.statistics.grouped import quotient, sums_by
from hpcprof.analysis.statistics.student import student_quantile
from hpcprof.profiles.collective_operations import POINT_TO_POINT
from hpcprof.profiles.columns.unique import numbered_rows, position_in_group, rows_by_key
from hpcprof.profiles.timeline import Floats, Ints, Mask

SMALL_BYTES = 1 << 10
"""Maximum bytes of a message that takes the latency of the network and of the library, as one of a byte."""

_LATENCY_NS, _JOINT_LATENCY_NS = 5_000, 20_000
"""The latencies of a message and of a collective, where the steps have none of `SMALL_BYTES`."""

_MIN_SMALL_CALLS = 8
"""Minimum number of small calls for a measured latency."""

_QUICK_QUANTILE, _USUAL_QUANTILE = 0.25, 0.95
"""The quantiles of times of quick calls and steps, and of the longest usual steps."""

_MIN_ALONE_SHARE, _MAX_SHARED_SHARE = 0.75, 0.1
"""For serial work: minimum share in which all others wait, and maximum mean work of the others, over it."""

_FALSE_ALARM_RATE = 0.01
"""Accepted share of balanced programs in which a rank is called late."""

_MIN_VARIANCE_RATIO = 4.0
"""Minimum ratio of the variance of a lateness to chance for a rank that is late in some steps only."""

_MEDIAN_VARIANCE_RATIO = 1.57
"""Ratio of the variance of the median to that of the mean, for a normal distribution."""

_MAX_PAUSE_LATENCIES = 2.0
"""Maximum time between messages of one sequence, in latencies."""


class MpiRemovals:
    """Takes causes out of the times of a graph of MPI calls; every method returns changed times."""

    def __init__(self, replay: Replay, part: MpiPart) -> None:
        self.graph, self.part, self.removals = replay.graph, part, Removals(replay)
        self._is_call = part.row != NONE

    @cached_property
    def transfer(self) -> Ints:
        """The time of each call after everything that it needs has come, in ns."""
        calls = self.graph.calls
        return np.where(self._is_call, calls.time - self.part.wait, 0)

    @cached_property
    def size(self) -> Ints:
        """The bytes that begin or end in each call, -1 if unknown or none."""
        ops = self.part.run.operations
        size = np.full(len(self.part.run.calls), -1)
        bytes_moved = np.maximum(ops.sent, ops.received)
        for call in (ops.begin, ops.completes):
            np.maximum.at(size, call, bytes_moved)
        return self._of_calls(size, -1)

    @cached_property
    def collective(self) -> Mask:
        """The calls that take part in a collective."""
        ops = self.part.run.operations
        return self._is_among(ops.begin[~ops.is_of(POINT_TO_POINT)])

    @cached_property
    def peer(self) -> Ints:
        """The number of the peer rank or the communicator of each call's first operation."""
        ops = self.part.run.operations
        partner = np.where(ops.peer == NONE, -2 - ops.comm, ops.peer)
        peer = np.full(len(self.part.run.calls), NONE)
        peer[ops.begin[::-1]] = partner[::-1]
        return self._of_calls(peer, NONE)

    def _of_calls(self, values: Ints, otherwise: int) -> Ints:
        row = self.part.row
        return np.where(row == NONE, otherwise, values[np.maximum(row, 0)])

    def _is_among(self, calls: Ints) -> Mask:
        mask: Mask = self._is_call & np.isin(self.part.row, calls)
        return mask

    @cached_property
    def latency(self) -> Ints:
        """The time of a message or a collective of one byte, by call, in ns."""
        transfer = np.zeros(len(self.transfer), np.int64)
        for chosen, otherwise in ((~self.collective, _LATENCY_NS), (self.collective, _JOINT_LATENCY_NS)):
            small = chosen & (self.size >= 0) & (self.size <= SMALL_BYTES) & (self.part.wait == 0)
            few = np.count_nonzero(small) < _MIN_SMALL_CALLS
            transfer[chosen] = otherwise if few else int(np.median(self.transfer[small]))
        return transfer

    @cached_property
    def usual_transfer(self) -> Ints:
        """The transfer time of each call, at most that of the quickest quarter of its name and size, in ns.

        A longer call has been held up by something else, such as another process on its core.
        """
        scale = np.frexp(np.maximum(self.size, 0).astype(float))[1].astype(np.int64)
        _, group = numbered_rows(self.graph.calls.name, scale)
        transfer: Ints = self.transfer.copy()
        for _, rows in rows_by_key(group):
            transfer[rows] = np.minimum(transfer[rows], int(np.quantile(transfer[rows], _QUICK_QUANTILE)))
        return transfer

    @cached_property
    def exposed(self) -> Ints:
        """The usual transfer time of each call beyond the latency, in ns; 0 for small messages."""
        excess: Ints = np.maximum(self.usual_transfer - self.latency, 0)
        small = (self.size >= 0) & (self.size <= SMALL_BYTES)
        return np.where(self._is_call & ~small, excess, 0)

    def less_transfer(self, times: Times, less: Ints | Floats) -> Times:
        """Shorten the transfer of calls by ``less`` ns each."""
        edges = self.graph.edges
        rows = edges.of(EdgeKind.MESSAGE, EdgeKind.RENDEZVOUS)
        call_edges = self.removals.edge_of_call[EdgeKind.CALL]
        short = np.rint(less).astype(np.int64)
        lag = times.lag.copy()
        lag[call_edges] = np.maximum(lag[call_edges] - short, 0)
        lag[rows] = np.where(lag[rows] > 0, np.maximum(lag[rows] - short[edges.row[rows]], 0), lag[rows])
        return replace(times, lag=lag)

    def communication(self, times: Times, calls: Mask, factor: float) -> Times:
        """Scale the transfer of calls, without what they wait for others."""
        return self.less_transfer(times, np.where(calls, self.transfer * (1 - factor), 0))

    def in_order_of_sending(self, times: Times) -> Times:
        """Let ranks receive messages in the order in which they are sent."""
        edges = self.graph.edges
        call, _, lag = self.part.reordered
        lag_of = np.zeros(len(self.graph.calls), np.int64)
        lag_of[call] = lag
        changed = np.isin(edges.row, call)
        removed = times.without(changed & (edges.kind == EdgeKind.MESSAGE))
        new = np.flatnonzero(changed & (edges.kind == EdgeKind.ORDER))
        return removed.set_lag(new, lag_of[edges.row[new]])

    @cached_property
    def follows_small(self) -> Mask:
        """The small messages and collectives that could be joined with one before them.

        A sequence of them has no other work in between that takes time. Each goes to the same rank, or joins
        the same communicator, as an earlier one of its sequence. Blocking calls of another name end a
        sequence: a sent message may depend on a received one.
        """
        calls = self.graph.calls
        small = self._is_call & (self.size >= 0) & (self.size <= _MAX_JOINED_BYTES)
        operations = self.part.run.operations
        blocking = small & self._is_among(operations.begin[operations.begin == operations.end])
        name = np.where(blocking, calls.name, NONE)
        last = np.maximum.accumulate(np.where(blocking, np.arange(len(calls)), 0))
        other = blocking & (name != np.append(NONE, name[last[:-1]]))
        latency = np.maximum(self.latency, np.where(self.collective, _JOINT_LATENCY_NS, _LATENCY_NS))
        new = other | (calls.gap > _MAX_PAUSE_LATENCIES * latency) | (calls.before == NONE)
        new |= self._is_call & ~small & (self.size >= 0)
        run = np.cumsum(new)
        keys, group = numbered_rows(run, calls.name, self.peer)
        first = np.full(len(keys), len(calls))
        np.minimum.at(first, group, np.arange(len(calls)))
        repeated: Mask = small & (first[group] != np.arange(len(calls)))
        return repeated

    def joined_messages(self, times: Times) -> Times:
        """Join the small messages of each sequence: all but the first take no time."""
        chosen = self.follows_small
        before = self.removals.edge_of_call[EdgeKind.HOST][chosen]
        joined = times.set_lag(before[before != NONE], 0)
        return self.less_transfer(joined, np.where(chosen, self.transfer, 0))

    def late_host(self, times: Times, rank: int) -> Times:
        """Reduce a rank's time outside MPI to the median of the others, in the places where it takes longer.

        Excess in single steps stays if the rank regains it in others. Where a server deals out the work as
        ranks become free, all served ranks gain alike: a quicker rank takes work from the others.
        """
        pieces = self.graph.pieces
        rank_of_piece = self.graph.call_rank[pieces.call]
        share = self.host_excess(rank)[1]
        chosen = rank_of_piece == rank
        gains_work = self._gains_work(rank)
        if gains_work:
            chosen = rank_of_piece != self.part.server
            total = np.delete(self.host_times, self.part.server, axis=1).sum(axis=1)
            less_time = share * self.host_times[:, rank]
            share = quotient(less_time, total)
        time = np.where(chosen, pieces.length * np.append(share, 0.0)[pieces.place], 0.0)
        if not gains_work:
            time = self._at_longer_visits(time, rank)
        return self.removals.less_between(times, self._at_late_steps(time, rank))

    def _gains_work(self, rank: int) -> bool:
        """Return whether a rank would get more work from a server if it were quicker.

        A rank that takes longer for a piece of work then has fewer pieces than the median rank, and else as
        many in each round.
        """
        if self.part.server == NONE:
            return False
        pieces = self._by_place(1).sum(axis=0)
        length = quotient(self.host_times.sum(axis=0), pieces)
        usual_pieces, usual_length = (np.median(np.delete(row, self.part.server)) for row in (pieces, length))
        quicker = quotient(usual_length, length, 1.0)[rank]
        return bool(pieces[rank] < usual_pieces * (1 + quicker) / 2)

    def _at_longer_visits(self, time: Floats, rank: int) -> Floats:
        """Move the time to remove from a rank's pieces to the visits of a place in which it takes longer.

        A step may visit a place several times; visits of a place are compared by their order in the step.
        """
        pieces = self.graph.pieces
        rank_of_piece = self.graph.call_rank[pieces.call]
        order = np.lexsort((self.graph.calls.start[pieces.call], self._step, pieces.place, rank_of_piece))
        turn = np.empty(len(order), np.int64)
        _, visit = numbered_rows(rank_of_piece[order], pieces.place[order], self._step[order])
        turn[order] = position_in_group(visit)
        keys, key = numbered_rows(pieces.place, turn)
        ranks = len(self.graph.ranks)
        count, total = (
            np.bincount(key * ranks + rank_of_piece, weights, len(keys) * ranks).reshape(-1, ranks)
            for weights in (None, pieces.length)
        )
        mean = quotient(total, count)
        # Ranks that visit the place less often have no value for this visit.
        peer_count, peer_mean = (np.delete(table, rank, axis=1) for table in (count, mean))
        masked = np.ma.masked_where(peer_count == 0, peer_mean)
        usual = np.ma.median(masked, axis=1).filled(0.0)  # type: ignore[no-untyped-call]
        longer = np.maximum(mean[:, rank] - usual, 0.0)
        share = quotient(longer, mean[:, rank])
        moved = np.where((rank_of_piece == rank) & (time > 0), pieces.length * share[key], 0.0)
        places = pieces.place + 1
        before, after = (np.bincount(places, values) for values in (time, moved))
        factor = quotient(before, after)
        lengths: Floats = np.where(after[places] > 0, moved * factor[places], time)
        return np.minimum(lengths, pieces.length)

    def like_the_others(self, times: Times, rank: int) -> Times:
        """Remove a rank's excess work over the others, and its serial work."""
        changed = self.late_host(times, rank)
        for place in np.flatnonzero(self.serial[:-1, rank]).tolist():
            without = self.removals.host_time(changed, self.graph.places[place])
            changed = self.removals.replay.on_ranks(changed, without, (rank,))
        return changed

    @cached_property
    def serial(self) -> Mask:
        """Mask of the places in which a rank works alone: all others wait, and hardly take any time there.

        Shape (places + 1, ranks).
        """
        total, alone = self.host_times, self._by_place(self.alone)
        count = total.shape[1]
        mean_of_others = (total.sum(axis=1, keepdims=True) - total) / max(count - 1, 1)
        serial: Mask = (
            (total > 0) & (alone >= _MIN_ALONE_SHARE * total) & (mean_of_others <= _MAX_SHARED_SHARE * total)
        )
        serial[-1] = False
        for place, rank in np.argwhere(serial).tolist():
            serial[place, rank] = not self._is_wavefront_block(place, rank)
        return serial if count > 1 else np.zeros_like(serial)

    def _is_wavefront_block(self, place: int, rank: int) -> bool:
        """Return whether a rank's work in a place is a block of a wavefront, in which the ranks take turns.

        The first block of a wavefront follows no message, and the last one leads to none. A block is known by
        the message on its other side, and by its length.
        """
        graph = self.graph
        pieces = graph.pieces
        is_own = (pieces.place == place) & (graph.call_rank[pieces.call] == rank)
        length = float(pieces.length[is_own].mean())
        for side in self._message_sides:
            names = side[is_own]
            is_peer = (side != NONE) & np.isin(side, names[names != NONE])
            is_peer &= graph.call_rank[pieces.call] != rank
            owner = graph.call_rank[pieces.call[is_peer]]
            time, count = (
                np.bincount(owner, weights, len(graph.ranks)) for weights in (pieces.length[is_peer], None)
            )
            usual = quotient(time, count)
            if length <= _MAX_BLOCK_RATIO * usual.max():
                return True
        return False

    @cached_property
    def _message_sides(self) -> tuple[Ints, Ints]:
        """The calls that send or receive before and after each piece of host time, by name, or NONE."""
        calls, operations = self.graph.calls, self.part.run.operations
        messages = operations.is_of(POINT_TO_POINT)
        ends = np.concatenate((operations.begin[messages], operations.completes[messages]))
        name = np.where(self._is_among(ends), calls.name, NONE)
        call = self.graph.pieces.call
        return name[calls.before[call]], name[call]

    @cached_property
    def host_times(self) -> Floats:
        """The time outside MPI of each rank in each place, and outside all, in ns; (places + 1, ranks)."""
        return self._by_place(self.graph.pieces.length)

    def _by_place(self, values: Ints | Floats | int) -> Floats:
        graph, pieces = self.graph, self.graph.pieces
        shape = len(graph.places) + 1, len(graph.ranks)
        return sums_by(shape, (pieces.place, graph.call_rank[pieces.call]), values)

    @cached_property
    def _usual_times(self) -> Floats:
        """The `host_times` with the longest steps of each rank cut to the `_USUAL_QUANTILE` of its steps."""
        pieces, work = self.graph.pieces, self._work_of_steps
        most = np.quantile(work, _USUAL_QUANTILE, axis=0, method="lower")
        factor = np.divide(most, work, out=np.ones_like(work), where=work > most)
        return self._by_place(pieces.length * factor[self._step, self.graph.call_rank[pieces.call]])

    def is_late(self, rank: int) -> bool:
        """Return whether a rank works longer than the others beyond chance, by a t-test.

        The variance is that of the other ranks from step to step: single long steps of the late rank are no
        chance if the others have none. For ranks that a server gives work, the time of a piece counts.
        """
        work_of_others = self._work_of_others(rank)
        if rank == self.part.server or not work_of_others.size:
            return False
        later = self._later_excess(rank)
        # If another rank is late in each step, every rank is on average later than the median.
        mean = self._work_of_steps[:, rank].mean() - work_of_others.mean()
        variance, free = self._chance(rank)
        # Bonferroni correction: one of many ranks is the latest.
        least = student_quantile(free, 1 - _FALSE_ALARM_RATE / len(self.graph.ranks))
        return bool(min(later.mean(), mean) > least * np.sqrt(variance / len(later)))

    def _later_excess(self, rank: int) -> Floats:
        return self._work_of_steps[:, rank] - np.median(self._work_of_others(rank), axis=1)

    def _work_of_others(self, rank: int) -> Floats:
        """Return the columns of `_work_of_steps` with which a rank is compared: never a server."""
        return np.delete(
            self._work_of_steps, [rank, self.part.server] if self.part.server != NONE else rank, axis=1
        )

    def _chance(self, rank: int) -> tuple[float, int]:
        """Return the variance of `_later_excess` by chance, and its degrees of freedom.

        It follows from the residuals of the other ranks; with a single other rank, from `_later_excess`
        itself, as the part that both have in common is unknown.
        """
        work_of_others = self._work_of_others(rank)
        steps, count = work_of_others.shape
        if count == 1:
            later = self._later_excess(rank)
            return float(np.square(later - later.mean()).sum()) / max(steps - 1, 1), max(steps - 1, 1)
        residuals = work_of_others - work_of_others.mean(axis=1, keepdims=True)
        free = max((steps - 1) * (count - 1), 1)
        each = float(np.square(residuals - residuals.mean(axis=0)).sum()) / free
        return each * (1 + _MEDIAN_VARIANCE_RATIO / count), free

    @cached_property
    def late_by_chance(self) -> Floats:
        """Each rank's excess over its usual work in a step, beyond the median rank's, in ns.

        Shape (steps, ranks). Excess of all ranks in a step is no lateness, and neither is excess of one rank
        in all steps.
        """
        more = self._excess_over_usual
        return np.maximum(more - _lower_median(more), 0.0)

    @cached_property
    def stand_out(self) -> bool:
        """True if lateness by chance is far larger than the usual spread of the ranks."""
        more = self._excess_over_usual
        spread = float((_lower_median(more)[:, 0] - more.min(axis=1)).mean())
        return (
            more.shape[1] > 2
            and float(self.late_by_chance.max(axis=1).mean()) >= _MIN_LATENESS_RATIO * spread
        )

    @cached_property
    def _excess_over_usual(self) -> Floats:
        return self._work_of_steps - np.quantile(self._work_of_steps, _QUICK_QUANTILE, axis=0)

    def without_chance(self, times: Times) -> Times:
        """Remove `late_by_chance` from the work of each rank."""
        graph, pieces = self.graph, self.graph.pieces
        rank = graph.call_rank[pieces.call]
        work = self._work_of_steps
        share = quotient(self.late_by_chance, work)
        counts = ~self.serial[pieces.place, rank]
        less = np.where(counts, pieces.length * share[self._step, rank], 0.0)
        return self.removals.less_between(times, less)

    @cached_property
    def held_up(self) -> float:
        """The mean excess of transfers over the usual ones per step and rank, in ns.

        A rank that has lost its core, or shares it, is held up inside MPI as it is outside.
        """
        more = self.transfer - self.usual_transfer
        return float(more.sum()) / self.graph.steps / len(self.graph.ranks)

    def _at_late_steps(self, time: Floats, rank: int) -> Floats:
        """Move the time to remove from a rank's pieces to its late steps, if only some steps are late.

        That is so if the lateness varies more than by chance.
        """
        later = self._later_excess(rank)
        weight = np.maximum(later, 0)
        is_random = np.var(later) <= _MIN_VARIANCE_RATIO * self._chance(rank)[0]
        if self.part.server != NONE or is_random or not weight.any():
            return time
        per_step = np.bincount(self._step, time, len(weight))
        factor = quotient(weight, per_step)
        moved: Floats = time * factor[self._step] * time.sum() / weight.sum()
        return moved

    @cached_property
    def _work_of_steps(self) -> Floats:
        """The time outside MPI of each rank in each step, without its serial work, in ns; (steps, ranks).

        With a server it is the mean time of the pieces between two calls.
        """
        graph, pieces = self.graph, self.graph.pieces
        rank = graph.call_rank[pieces.call]
        counts = ~self.serial[pieces.place, rank]
        shape, keys = (graph.steps, len(graph.ranks)), (self._step[counts], rank[counts])
        totals = sums_by(shape, keys, pieces.length[counts])
        if self.part.server != NONE:
            totals /= np.maximum(sums_by(shape, keys, 1), 1)
        return totals

    @cached_property
    def _step(self) -> Ints:
        step = self.graph.calls.step
        steps: Ints = np.clip(step - step.min(initial=0), 0, self.graph.steps - 1)[self.graph.pieces.call]
        return steps

    def host_excess(self, rank: int) -> tuple[float, Floats]:
        """Return a rank's excess work over the others per step in ns, and its share of each place's time.

        Work in one place instead of another is no excess, and neither is serial work. Ranks that a server
        gives work are compared by the time for an equal number of pieces. Single long steps of other ranks,
        as of one that has lost its core, are cut (`_usual_times`). The shares have the shape (places + 1,).
        """
        total = np.where(self.serial, 0.0, self._usual_times)
        other_ranks = np.delete(np.arange(total.shape[1]), rank)
        rank_time = np.where(self.serial[:, rank], 0.0, self.host_times[:, rank])
        server = self.part.server
        if server == NONE:
            usual = np.median(total[:, other_ranks], axis=1)
            whole = float(rank_time.sum() - np.median(total[:, other_ranks].sum(axis=0)))
        else:
            pieces = self._by_place(1)
            each = quotient(total, pieces)
            usual = np.median(each[:, other_ranks[other_ranks != server]], axis=1) * pieces[:, rank]
            whole = 0.0 if rank == server else float((rank_time - usual).sum())
        longer, whole = np.maximum(rank_time - usual, 0), max(whole, 0.0)
        share = min(whole / longer.sum(), 1.0) if longer.sum() else 0.0
        excess = longer * share
        return whole / self.graph.steps, quotient(excess, rank_time)

    @cached_property
    def alone(self) -> Floats:
        """The part of each piece of host time in which all other ranks are inside MPI, in ns; (pieces,)."""
        graph = self.graph
        calls = graph.calls
        in_main = self.part.run.calls.main[np.maximum(self.part.row, 0)] | (self.part.row == NONE)
        gaps = np.flatnonzero((calls.before != NONE) & in_main)
        start, end = calls.end[calls.before[gaps]], calls.start[gaps]
        moment = np.concatenate((start, end))
        change = np.repeat([1, -1], len(gaps))
        order = np.lexsort((change, moment))
        time = moment[order]
        working = np.cumsum(change[order])
        single = np.where(working[:-1] == 1, np.diff(time), 0)
        until = np.append(0, np.cumsum(single))
        at = np.searchsorted(time, np.column_stack((start, end)))
        gap_time = np.zeros(len(calls))
        gap_time[gaps] = until[at[:, 1]] - until[at[:, 0]]
        share = quotient(gap_time, np.bincount(graph.pieces.call, graph.pieces.length, len(calls)))
        return graph.pieces.length.astype(float) * np.minimum(share, 1.0)[graph.pieces.call]


def _lower_median(values: Floats) -> Floats:
    """Return the lower median of each row; shape (rows, 1)."""
    return np.quantile(values, 0.5, axis=1, keepdims=True, method="lower")


_MIN_LATENESS_RATIO = 10.0
"""Minimum ratio of the mean lateness by chance to the spread of the ranks below their median.

Work with an exponential distribution, which has no cause, reaches 4.5 on four ranks and less on more."""

_MAX_BLOCK_RATIO = 2.0
"""Maximum ratio of a block's work to the blocks of the other ranks."""

_MAX_JOINED_BYTES = 8 << 10
"""Maximum bytes of a message that could be joined with others."""
