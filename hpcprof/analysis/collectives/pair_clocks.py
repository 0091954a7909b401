"""Aligns the clocks of ranks that send each other messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.collectives.clock_alignment import MIN_COLLECTIVES, AlignedClocks, drift
from hpcprof.analysis.collectives.pair_matching import MatchedPairs
from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.profiles.timeline import Ints

_BLOCK = 64
_NARROWER = 0.5
_WAITED = 2
"""A receive that takes this many times the shortest send or receive has waited for its send."""


@dataclass(frozen=True)
class _Messages:
    """The m messages between two ranks, in the order of time."""

    sent: Ints
    received: Ints
    """Until when the send and the receive lasted, each on its rank's own clock; shape (m,)."""
    duration: Ints
    """Of the kernels that sent and received; shape (m, 2)."""
    up: NDArray[np.bool_]
    """Whether the lower rank sent the message; shape (m,)."""


def align_pairs(pairs: Sequence[MatchedPairs]) -> dict[tuple[int, int], AlignedClocks]:
    """Align the clocks of each two ranks that exchange at least `MIN_COLLECTIVES` messages.

    A receive ends after its send, and the sooner the less the message was delayed. So the message with the
    least delay in each direction bounds by how much one clock is ahead of the other: above in one direction,
    below in the other. The clocks are aligned to the middle, and the uncertainty of the higher rank is half
    the width; the lower one gives the clock, and so has none. Each
    block of 64 messages has its own bounds, because clocks drift. A constant drift is taken out first if that
    halves the width.

    A send to a buffer can end long before its receive begins. So where receives waited for their sends in
    one direction only, these alone align the clocks: the promptest lag by no more than the shortest transfer.
    The uncertainty is then at least the median distance from these, since nothing bounds the other side. A
    constant drift is taken out first if these messages then differ less.

    Returns
    -------
    dict of (lower rank, higher rank) to AlignedClocks
        The columns of the clocks are in this order.
    """
    between: dict[tuple[int, int], list[MatchedPairs]] = {}
    for pair in pairs:
        between.setdefault(pair.ranks, []).append(pair)
    found = {ranks: _align(_messages(ranks[0], both)) for ranks, both in between.items()}
    return {ranks: clock for ranks, clock in found.items() if clock is not None}


def _messages(low: int, pairs: Sequence[MatchedPairs]) -> _Messages:
    """Return the messages of pairs, whose lower rank is ``low``, in the order of its clock."""
    # A kernel with several partners may last beyond this send; then only its start is certain.
    sent = np.concatenate([np.where(p.alone[:, 0], p.end[:, 0], p.start[:, 0]) for p in pairs])
    received = np.concatenate([p.end[:, 1] for p in pairs])
    duration = np.concatenate([p.end - p.start for p in pairs])
    up = np.concatenate([np.full(len(p.seq), p.sender == low) for p in pairs])
    order = np.argsort(np.where(up, sent, received), kind="stable")
    return _Messages(sent[order], received[order], duration[order], up[order])


def _align(messages: _Messages) -> AlignedClocks | None:
    """Align two clocks; None if the messages do not bound how far they are apart."""
    up = messages.up
    if len(up) < MIN_COLLECTIVES:
        return None
    both_ways = up.any() and not up.all()
    together = _aligned(messages, np.ones(len(up), bool), None) if both_ways else None
    shortest = int(messages.duration.min())
    # What is short beside the width of the bounds was no wait for the other rank: it would narrow them.
    least = max(_WAITED * shortest, together.uncertainty[1] if together else 0)
    waited = messages.duration[:, 1] >= least
    one_way = not (waited & up).any() or not (waited & ~up).any()
    if one_way and np.count_nonzero(waited) >= MIN_COLLECTIVES:
        # The delay is between none and a transfer.
        return _aligned(messages, waited, shortest / 2)
    return together


def _aligned(messages: _Messages, kept: NDArray[np.bool_], usual: float | None) -> AlignedClocks:
    """Align by the kept messages; ``usual`` is the least delay where one direction shows none."""
    sent, received, up = messages.sent[kept], messages.received[kept], messages.up[kept]
    stamps = np.column_stack([np.where(up, sent, received), np.where(up, received, sent)])
    own = (stamps - stamps[0]).astype(float)
    blocks = np.array_split(np.arange(len(up)), max(1, len(up) // _BLOCK))
    moment = np.array([np.median(own[block], axis=0) for block in blocks])

    def by_rate(rate: float) -> AlignedClocks:
        apart = own[:, 1] - own[:, 0] - rate * own[:, 1]
        ahead, uncertainty = _bounds(apart, up, blocks, usual)
        rates, offset = np.array([0.0, rate]), np.column_stack([np.zeros(len(blocks)), ahead])
        return AlignedClocks(stamps[0], rates, moment, offset, own[-1], np.array([0.0, uncertainty]), len(up))

    rate = _drift(own, up)
    steady, drifting = by_rate(0.0), by_rate(rate)
    if usual is not None:
        # One direction has no width that a drift would add to.
        return drifting if _spread(own, rate) < _spread(own, 0.0) else steady
    # Delays that vary can look like a little drift.
    return drifting if drifting.uncertainty[1] < _NARROWER * steady.uncertainty[1] else steady


def _spread(own: Floats, rate: float) -> float:
    """Return by how much messages differ in how far apart both ends are, once a drift is taken out."""
    return float(np.ptp(own[:, 1] - own[:, 0] - rate * own[:, 1]))


def _drift(own: Floats, up: NDArray[np.bool_]) -> float:
    """Return by how much the higher rank's clock gets ahead per ns, by messages in the same direction."""
    apart = own[:, 1] - own[:, 0]
    most = max((up, ~up), key=np.count_nonzero)
    return float(drift(own[most, 1], apart[most]))


def _bounds(
    apart: Floats, up: NDArray[np.bool_], blocks: Sequence[Ints], usual: float | None
) -> tuple[Floats, float]:
    """Return by how much the higher rank's clock is ahead in each block, and the uncertainty."""
    # By how much it is at most and at least ahead.
    most = np.array([apart[block][up[block]].min(initial=np.inf) for block in blocks])
    least = np.array([apart[block][~up[block]].max(initial=-np.inf) for block in blocks])
    both = np.isfinite(most) & np.isfinite(least)
    delay = np.median((most - least)[both]) / 2 if both.any() else usual or 0.0
    ahead = np.where(np.isfinite(most), most - delay, least + delay)
    ahead[both] = (most + least)[both] / 2
    width: Floats = np.abs((most - least)[both]) / 2
    error = max(float(width.max(initial=0)), delay)
    if usual is not None:
        of_message = np.repeat(ahead, [len(block) for block in blocks])
        error = max(error, float(np.median(np.abs(apart - of_message))))
    return ahead, error


def sender_later(pair: MatchedPairs, clock: AlignedClocks) -> Floats:
    """Return by how much later than the receiver the sender began each message, in ns, shape (m,)."""
    order = [0, 1] if pair.sender < pair.receiver else [1, 0]
    start = clock.aligned(pair.start[:, order])[:, order]
    later: Floats = start[:, 0] - start[:, 1]
    return later
