"""Messages of receives that record neither their sender, communicator nor tag (EZTrace's).

MPI lets no message of a stream (communicator, sender, tag) overtake another, and each rank receives all of
its messages. So the unnamed receives of a rank take the messages that its named receives leave over, in the
order of the senders' progress:

1. The progress of an operation is the number of collectives of all ranks before it, and its place among the
   operations until the next one.
2. Named receives take the messages of their stream whose send is nearest in progress, in their order.
3. Unnamed receives take the remaining messages one by one. Ranks that run the same program have the same
   progress, however late one of them is.
4. A rank whose senders send different numbers with a tag takes messages as they come, as a master does: then
   the times since the collective of all ranks before count, those of sends and those when receives end.
5. If there are more receives than messages, some are cancelled or from ``MPI_PROC_NULL``. Then the receives
   between two collectives of all ranks share the messages of this interval evenly.
"""

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from hpcprof.profiles.columns.unique import numbered_rows, rows_by_key
from hpcprof.profiles.timeline import NO_PEER, NO_TAG, Floats, Ints, Mask


class RankMessages(msgspec.Struct, frozen=True):
    """The n operations of a rank in the order of their begins; arrays of shape (n,).

    ``peer`` is a rank of the program, and ``comm`` a number that all ranks share, -1 if unknown; ``together``
    is True for collectives of all ranks.
    """

    comm: Ints
    peer: Ints
    tag: Ints
    sends: Mask
    receives: Mask
    together: Mask
    begin: Ints
    end: Ints
    """In ns on the clock of the rank."""

    @property
    def unnamed(self) -> Ints:
        """Positions of the receives without sender, communicator and tag."""
        nothing = (self.peer == NO_PEER) & (self.comm < 0) & (self.tag == NO_TAG)
        return np.flatnonzero(self.receives & nothing)

    @property
    def epoch(self) -> Ints:
        """Number of collectives of all ranks before each operation."""
        epoch: Ints = np.cumsum(self.together) - self.together
        return epoch

    def elapsed(self, stamps: Ints) -> Ints:
        """Return the time of a stamp of each operation since the collective of all ranks before it, in ns."""
        ends = np.append(self.begin[:1], self.end[self.together])
        passed: Ints = stamps - ends[self.epoch]
        return passed

    @property
    def progress(self) -> Floats:
        """Number of collectives before each operation, plus its place in [0, 1) before the next one."""
        epoch = self.epoch
        first = np.searchsorted(epoch, epoch)
        size = np.searchsorted(epoch, epoch, "right") - first
        position: Floats = epoch + (np.arange(len(epoch)) - first) / np.maximum(size, 1)
        return position


def messages_of_unnamed(ranks: Mapping[int, RankMessages]) -> dict[int, tuple[Ints, ...]]:
    """Return for each rank with unnamed receives their positions, communicators, senders and tags."""
    unnamed = {rank: ops.unnamed for rank, ops in ranks.items() if len(ops.unnamed)}
    if not unnamed or not any(ops.sends.any() for ops in ranks.values()):
        return {}
    sent = [
        np.column_stack((ops.comm[rows], np.full(len(rows), rank), ops.tag[rows], ops.peer[rows]))
        for rank, ops in ranks.items()
        for rows in [np.flatnonzero(ops.sends)]
    ]
    streams = np.concatenate(sent)
    progress, elapsed = (
        np.concatenate(columns)
        for columns in zip(
            *((ops.progress[ops.sends], ops.elapsed(ops.begin)[ops.sends]) for ops in ranks.values()),
            strict=True,
        )
    )
    inbound = {key[0]: rows for key, rows in rows_by_key(streams[:, 3])}
    result = {}
    for rank, rows in unnamed.items():
        chosen = (
            _unclaimed_messages(ranks[rank], streams, progress, inbound[rank])
            if rank in inbound
            else rows[:0]
        )
        if _take_turns(streams[chosen]):
            ops = ranks[rank]
            rows = rows[np.lexsort((ops.elapsed(ops.end)[rows], ops.epoch[rows]))]
            chosen = chosen[np.lexsort((elapsed[chosen], np.floor(progress[chosen])))]
        if len(chosen) != len(rows):
            places, taken = _pair_receives(np.floor(ranks[rank].progress[rows]), np.floor(progress[chosen]))
            rows, chosen = rows[places], chosen[taken]
        result[rank] = (rows, *streams[chosen, :3].T)
    return result


def _take_turns(streams: Ints) -> bool:
    """Return whether the senders of messages with a communicator and tag send different numbers of them."""
    keys, number = numbered_rows(streams[:, 0], streams[:, 2], streams[:, 1])
    comm, tag, _ = keys.T
    tags, _ = numbered_rows(comm, tag)
    counts, _ = numbered_rows(comm, tag, np.bincount(number, minlength=len(keys)))
    return len(counts) > len(tags)


def _pair_receives(receives: Floats, messages: Floats) -> tuple[Ints, Ints]:
    """Return positions of receives and messages that are paired, given the collectives before each."""
    pairs = []
    for epoch in np.intersect1d(receives, messages):
        unnamed, inbound = np.flatnonzero(receives == epoch), np.flatnonzero(messages == epoch)
        middle = np.arange(min(len(unnamed), len(inbound))) + 0.5
        positions = [(middle * len(side) / len(middle)).astype(np.int64) for side in (unnamed, inbound)]
        pairs.append((unnamed[positions[0]], inbound[positions[1]]))
    pairs.append((np.empty(0, np.int64), np.empty(0, np.int64)))
    return np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])


def _unclaimed_messages(ops: RankMessages, streams: Ints, at: Floats, inbound: Ints) -> Ints:
    """Return the messages that a rank's named receives leave, by the progress of the senders."""
    named = np.flatnonzero(ops.receives & (ops.peer != NO_PEER))
    taken = {
        key: ops.progress[named[rows]]
        for key, rows in rows_by_key(ops.comm[named], ops.peer[named], ops.tag[named])
    }
    sequences = [
        np.delete(inbound[rows], _taken_messages(at[inbound[rows]], taken.get(key, np.empty(0))))
        for key, rows in rows_by_key(*streams[inbound, :3].T)
    ]
    remaining = np.concatenate(sequences)
    return remaining[np.argsort(at[remaining], kind="stable")]


def _taken_messages(sent: Floats, received: Floats) -> NDArray[np.int64]:
    """Return positions of the messages of a stream that its receives take, given the progress of each."""
    count = min(len(sent), len(received))
    turn = np.arange(count)
    nearest = np.searchsorted(sent, received[:count])
    return np.minimum(np.maximum.accumulate(nearest - turn) + turn, len(sent) - count + turn)
