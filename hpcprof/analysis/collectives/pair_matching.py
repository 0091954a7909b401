"""Matches the sends of ranks with the receives of their partners, and aligns their clocks by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcprof.analysis.collectives.clock_alignment import (
    LARGEST_RATE,
    MIN_COLLECTIVES,
    NEAR_NS,
    AlignedClocks,
    drift,
)
from hpcprof.analysis.collectives.matching import NO_COMMUNICATOR, communicator_words
from hpcprof.profiles.collective_operations import POINT_TO_POINT
from hpcprof.profiles.columns.unique import distinct, numbered_rows, rows_by_key
from hpcprof.profiles.timeline import NO_PEER, Floats, Ints, Mask, Table, concatenate

if TYPE_CHECKING:
    import pandas as pd

_SEND, _RECV = "Send", "Recv"


@dataclass(frozen=True)
class MatchedPairs:
    """The m messages from one rank to another in one communicator, in the order in which they were sent.

    Arrays of shape (m, 2) hold the sender's values in the first column and the receiver's in the second.
    """

    comm_id: str | None
    """None if the communicator is unknown."""
    sender: int
    receiver: int
    """Ranks of the program."""
    seq: Ints
    """The position among the calls of the pair, which also counts messages without a kernel; shape (m,)."""
    message: Floats
    """In bytes; NaN if unknown; shape (m,)."""
    rows: Ints
    """Position of the send and the receive in the rows of their ranks; shape (m, 2)."""
    start: Ints
    end: Ints
    """Begin and end of the kernels that carried out the message, on each rank's own clock; shape (m, 2)."""
    exposed: Ints
    """The time without compute beside these kernels, in ns; shape (m, 2)."""
    step: Floats
    """NaN outside steps; shape (m, 2)."""
    fused: Ints
    """The number of calls that the kernels carried out; shape (m, 2)."""
    alone: Mask
    """True if the kernels communicated with this partner only; shape (m, 2)."""

    @property
    def ranks(self) -> tuple[int, int]:
        """Both ranks, the lower one first."""
        return min(self.sender, self.receiver), max(self.sender, self.receiver)


def match_pairs(rows: pd.DataFrame, whole_world: bool) -> tuple[list[MatchedPairs], list[str]]:
    """Match the n-th send of a rank to a partner with the partner's n-th receive from it.

    Both are counted within their communicator. The partner is, in this order:

    1. the recorded one;
    2. the member at the recorded position of the communicator, if it has all ranks of the program, or all its
       ranks were profiled: ranks of a communicator are in the order of the program's;
    3. without a record, the other rank of a communicator of two.

    Without communicators, all ranks are assumed to share one. Messages of a rank to itself are left out.
    ``rows`` are those of ``rank_collectives``, with ``row``, the position of each among the rows of its rank;
    ``whole_world`` tells whether all ranks of the program were profiled. The pairs are sorted by
    communicator, sender and receiver; the second value has a sentence for each cause of sends and receives
    that are not matched.
    """
    operations = rows["op"].to_numpy()
    message_rows = np.flatnonzero(np.isin(operations.astype(str), list(POINT_TO_POINT)))
    if not len(message_rows):
        return [], []
    sends = operations[message_rows] == _SEND
    directed = sends | (operations[message_rows] == _RECV)
    problems = []
    if not directed.all():
        problems.append(
            f"{np.count_nonzero(~directed)} sends and receives are known by their kernels' names only, which "
            "do not tell one from the other: they are not matched"
        )
    message_rows, sends = message_rows[directed], sends[directed]
    communicator, names = _communicators(rows)
    partner, reasons = _partners(rows, communicator, names, message_rows, whole_world)
    problems += reasons
    rank = rows["rank"].to_numpy(np.int64)[message_rows]
    has_partner = (partner != NO_PEER) & (partner != rank)
    alone = _has_one_partner(rows, message_rows, partner)[has_partner]
    message_rows, sends, partner, rank = (
        message_rows[has_partner],
        sends[has_partner],
        partner[has_partner],
        rank[has_partner],
    )
    sender, receiver = np.where(sends, rank, partner), np.where(sends, partner, rank)
    profiled = np.isin(partner, distinct(rows["rank"].to_numpy(np.int64)))
    pairs = []
    columns = _columns(rows, message_rows) | {"alone": alone, "sends": sends}
    keys = (communicator[message_rows], sender, receiver)
    for (number, source, target), places in rows_by_key(*keys):
        if not profiled[places[0]]:
            continue
        messages = {name: values[places] for name, values in columns.items()}
        pair = _match_pair(names[number], (source, target), messages)
        if isinstance(pair, str):
            problems.append(pair)
        else:
            pairs.append(pair)
    return pairs, problems


def partner_ranks(rows: pd.DataFrame) -> Ints:
    """Return the rank of the partner of each send and receive, and `NO_PEER` in other rows; shape (rows,).

    ``rows`` are those of ``rank_collectives`` of all ranks of the program.
    """
    message_rows = np.flatnonzero(np.isin(rows["op"].to_numpy().astype(str), (_SEND, _RECV)))
    partner = np.full(len(rows), NO_PEER, np.int64)
    partner[message_rows] = _partners(rows, *_communicators(rows), message_rows, True)[0]
    return partner


def _communicators(rows: pd.DataFrame) -> tuple[Ints, list[str]]:
    """Return the number of each row's communicator and their names; the last one is unknown."""
    import pandas as pd

    number, names = pd.factorize(rows["comm_id"].replace({NO_COMMUNICATOR: None}), sort=True)
    return np.where(number < 0, len(names), number).astype(np.int64), [*names, NO_COMMUNICATOR]


def _partners(
    rows: pd.DataFrame, communicator: Ints, names: list[str], chosen: Ints, whole_world: bool
) -> tuple[Ints, list[str]]:
    """Return the partner's rank of each chosen row, or `NO_PEER`, and the reasons for unknown ones."""
    rank = rows["rank"].to_numpy(np.int64)
    partner = rows["peer"].to_numpy(np.float64)[chosen]
    within = rows["comm_peer"].to_numpy(np.float64)[chosen]
    partner = np.where(np.isnan(partner), NO_PEER, partner).astype(np.int64)
    within = np.where(np.isnan(within), NO_PEER, within).astype(np.int64)
    problems = []
    for number in distinct(communicator[chosen]).tolist():
        unknown = np.flatnonzero((communicator[chosen] == number) & (partner == NO_PEER))
        if not len(unknown):
            continue
        members = _members(rows, communicator == number, names[number], whole_world)
        position = within[unknown]
        if len(members) == 2:
            other = members[(rank[chosen[unknown]] == members[0]).astype(np.int64)]
            partner[unknown] = np.where(position == NO_PEER, other, NO_PEER)
        inside = (position >= 0) & (position < len(members))
        partner[unknown[inside]] = members[position[inside]]
        lost = int(np.count_nonzero(partner[unknown] == NO_PEER))
        if lost:
            problems.append(_unmatched_reason(names[number], lost, len(members)))
    return partner, problems


def _members(rows: pd.DataFrame, in_communicator: Mask, name: str, whole_world: bool) -> Ints:
    """Return the ranks of a communicator in their order; none if some of them may be missing."""
    sizes = rows["comm_ranks"][in_communicator].dropna().unique().tolist()
    worlds = rows["world_ranks"].dropna().unique().tolist()
    if len(sizes) == 1 and sizes == worlds:
        return np.arange(int(worlds[0]))
    ranks = rows["rank"].to_numpy(np.int64)
    members = distinct(ranks if name == NO_COMMUNICATOR else ranks[in_communicator])
    complete = sizes == [len(members)] or (not sizes and whole_world)
    return members if complete else members[:0]


def _unmatched_reason(name: str, lost: int, members: int) -> str:
    reason = (
        f"their partners are not recorded, and it has {members} ranks"
        if members
        else "it is unknown which ranks it has"
    )
    return f"{lost} sends and receives of {communicator_words(name)} are not matched: {reason}"


def _has_one_partner(rows: pd.DataFrame, chosen: Ints, partner: Ints) -> Mask:
    """Return whether the kernels of each chosen row communicate with one partner only."""
    keys = (rows[name].to_numpy(np.int64)[chosen] for name in ("rank", "start_ns", "end_ns"))
    _, kernel = numbered_rows(*keys)
    order = np.lexsort((partner, kernel))
    first = np.searchsorted(kernel[order], kernel, side="left")
    last = np.searchsorted(kernel[order], kernel, side="right") - 1
    alone: Mask = partner[order][first] == partner[order][last]
    return alone


def _columns(rows: pd.DataFrame, chosen: Ints) -> dict[str, NDArray[Any]]:
    types = dict.fromkeys(("row", "seq", "fused", "start_ns", "end_ns", "exposed_ns"), np.int64)
    columns = {name: rows[name].to_numpy(kind)[chosen] for name, kind in types.items()}
    floating = {name: rows[name].to_numpy(np.float64)[chosen] for name in ("bytes", "step")}
    return columns | floating


def _match_pair(name: str, pair: tuple[int, int], columns: Mapping[str, NDArray[Any]]) -> MatchedPairs | str:
    """Match the messages of one pair in one communicator, or return the reason why they do not match."""
    sent, received = np.flatnonzero(columns["sends"]), np.flatnonzero(~columns["sends"])
    seq = columns["seq"]
    counts = [int(seq[side].max(initial=-1)) + 1 for side in (sent, received)]
    where = communicator_words(name)
    if counts[0] != counts[1]:
        return (
            f"messages from rank {pair[0]} to rank {pair[1]} in {where} are not matched: rank {pair[0]} "
            f"recorded {counts[0]} and rank {pair[1]} {counts[1]} of them"
        )
    common, first, second = np.intersect1d(seq[sent], seq[received], return_indices=True)
    both = np.column_stack([sent[first], received[second]])
    message = columns["bytes"][both]
    # Unknown sizes are NaN, which no comparison finds different.
    if np.any((message[:, 0] < message[:, 1]) | (message[:, 0] > message[:, 1])):
        return (
            f"messages from rank {pair[0]} to rank {pair[1]} in {where} are not matched: their sizes differ "
            "between the sender and the receiver"
        )
    return MatchedPairs(
        comm_id=None if name == NO_COMMUNICATOR else name,
        sender=pair[0],
        receiver=pair[1],
        seq=common,
        message=np.where(np.isnan(message[:, 0]), message[:, 1], message[:, 0]),
        rows=columns["row"][both],
        start=columns["start_ns"][both],
        end=columns["end_ns"][both],
        exposed=columns["exposed_ns"][both],
        step=columns["step"][both],
        fused=columns["fused"][both],
        alone=columns["alone"][both],
    )


_BLOCK = 64
"""Number of messages in a block with bounds of its own."""

_MAX_WIDTH_RATIO = 0.5
"""Maximum ratio of the uncertainty with a drift to that without one, for a drift that is taken out."""

_PRECISION_NS = 1000.0
"""Precision of a moment, which is added to ranges."""

_CLEARLY = 10
"""Minimum ratio of the ranges of messages, as shares of the usual time of receives, of which one counts."""

MIN_WAIT_RATIO = 2
"""Minimum duration of a receive that waited for its send, as a multiple of the shortest send or receive."""


@dataclass(frozen=True)
class Messages(Table):
    """The m messages between two ranks."""

    sent: Ints
    received: Ints
    """End of the send and of the receive, each on the clock of its rank, in ns; shape (m,)."""
    duration: Ints
    """Durations of the kernels that sent and received, in ns; shape (m, 2)."""
    up: Mask
    """True if the lower rank sent the message; shape (m,)."""


def align_pairs(pairs: Sequence[MatchedPairs]) -> dict[tuple[int, int], AlignedClocks]:
    """Align the clocks of each two ranks that exchange at least `MIN_COLLECTIVES` messages.

    1. A receive ends after its send. The message with the least delay in each direction bounds the lead of
       one clock over the other: from above in one direction, from below in the other.
    2. The clocks are aligned to the middle of the bounds. The lower rank gives the clock; the uncertainty of
       the higher one is half the width. The bound of one direction counts alone where its messages lie much
       closer together for the time that receives take (`_CLEARLY`), as those in the other direction come to
       a rank that is late. The first of them is then late by a transfer and the range of the first five.
    3. Clocks drift, so each block of 64 messages has its own bounds. A constant drift is taken out first if
       that halves the width.
    4. Messages in one direction align the clocks if receives waited for them: the promptest are late by no
       more than the shortest transfer. The uncertainty is then at least the median distance from these, since
       nothing bounds the other side. A constant drift is taken out first if these messages then differ less.

    The key of a pair is (lower rank, higher rank), and the columns of its clocks are in this order.
    """
    between: dict[tuple[int, int], list[Messages]] = {}
    for pair in pairs:
        # A kernel with several partners may last beyond this send; then only its start is certain.
        sent = np.where(pair.alone[:, 0], pair.end[:, 0], pair.start[:, 0])
        up = np.full(len(pair.seq), pair.sender < pair.receiver)
        between.setdefault(pair.ranks, []).append(Messages(sent, pair.end[:, 1], pair.end - pair.start, up))
    return align_messages(between)


def align_messages(
    between: Mapping[tuple[int, int], Sequence[Messages]],
) -> dict[tuple[int, int], AlignedClocks]:
    """Align the clocks of each two ranks, the lower one first, by their messages; see `align_pairs`."""
    clocks = {ranks: _align(concatenate(Messages, parts)) for ranks, parts in between.items()}
    return {ranks: clock for ranks, clock in clocks.items() if clock is not None}


def _align(messages: Messages) -> AlignedClocks | None:
    """Return the aligned clocks of two ranks; None if the messages do not bound their offset."""
    # The order is that of the lower rank's clock.
    moment = np.where(messages.up, messages.sent, messages.received)
    messages = messages.take(np.argsort(moment, kind="stable"))
    if len(messages.up) < MIN_COLLECTIVES:
        return None
    if messages.up.any() and not messages.up.all():
        return _align_by_messages(messages, None)
    shortest = int(messages.duration.min())
    waited = messages.duration[:, 1] >= max(MIN_WAIT_RATIO * shortest, NEAR_NS)
    enough = np.count_nonzero(waited) >= MIN_COLLECTIVES
    # The delay is between none and a transfer.
    return _align_by_messages(messages.take(waited), shortest / 2) if enough else None


def _align_by_messages(messages: Messages, usual: float | None) -> AlignedClocks:
    """Align by messages in both directions, or in one direction with the assumed least delay ``usual``."""
    sent, received, up = messages.sent, messages.received, messages.up
    stamps = np.column_stack([np.where(up, sent, received), np.where(up, received, sent)])
    elapsed = (stamps - stamps[0]).astype(float)
    blocks = np.array_split(np.arange(len(up)), max(1, len(up) // _BLOCK))
    moment = np.array([np.median(elapsed[block], axis=0) for block in blocks])

    def by_rate(rate: float) -> AlignedClocks:
        apart = elapsed[:, 1] - elapsed[:, 0] - rate * elapsed[:, 1]
        ahead, uncertainty = _bounds(apart, messages, blocks, moment[:, 1], usual)
        rates, offset = np.array([0.0, rate]), np.column_stack([np.zeros(len(blocks)), ahead])
        return AlignedClocks(
            stamps[0], rates, moment, offset, elapsed[-1], np.array([0.0, uncertainty]), len(up)
        )

    rate = _drift(elapsed, up)
    steady, drifting = by_rate(0.0), by_rate(rate)
    if usual is not None:
        # One direction has no width that a drift would add to.
        return drifting if _spread(elapsed, rate) < _spread(elapsed, 0.0) else steady
    # Delays that vary can look like a little drift.
    return drifting if drifting.uncertainty[1] < _MAX_WIDTH_RATIO * steady.uncertainty[1] else steady


def _spread(elapsed: Floats, rate: float) -> float:
    """Return the range of the offsets of all messages after a drift is removed, in ns."""
    return float(np.ptp(elapsed[:, 1] - elapsed[:, 0] - rate * elapsed[:, 1]))


def _drift(elapsed: Floats, up: Mask) -> float:
    """Return the drift of the higher rank's clock in ns per ns, from messages in one direction."""
    apart = elapsed[:, 1] - elapsed[:, 0]
    majority = max((up, ~up), key=np.count_nonzero)
    return float(drift(elapsed[majority, 1], apart[majority]))


def _bounds(
    apart: Floats, messages: Messages, blocks: Sequence[Ints], moment: Floats, usual: float | None
) -> tuple[Floats, float]:
    """Return the offset of the higher rank's clock in each block, and its uncertainty, in ns."""
    up, length = messages.up, messages.duration[:, 1]
    ups, downs = ([apart[block][way[block]] for block in blocks] for way in (up, ~up))
    # Upper and lower bounds of the offset.
    most = np.array([part.min(initial=np.inf) for part in ups])
    least = np.array([part.max(initial=-np.inf) for part in downs])
    most, least = _upper_bounds(most, moment), -_upper_bounds(-least, moment)
    both = np.isfinite(most) & np.isfinite(least)
    late = error = (most - least)[both] / 2
    from_least = False
    if np.any(late > NEAR_NS):
        ranges = [_range_of_least(parts) for parts in (ups, [-part for part in downs])]
        waits = [float(np.median(length[way])) for way in (up, ~up)]
        above, below = (
            (part + _PRECISION_NS) / (wait + _PRECISION_NS) for part, wait in zip(ranges, waits, strict=True)
        )
        if min(above, below) * _CLEARLY < max(above, below):
            from_least, nearest = below < above, ranges[below < above]
            late = np.where(late > NEAR_NS, np.minimum(late, nearest + messages.duration.min() / 2), late)
            error = np.minimum(error, nearest + NEAR_NS)
    delay = float(np.median(late)) if both.any() else usual or 0.0
    ahead = np.where(np.isfinite(most), most - delay, least + delay)
    ahead[both] = least[both] + late if from_least else most[both] - late
    uncertainty = max(float(np.abs(error).max(initial=0)), delay)
    if usual is not None:
        message_ahead = np.repeat(ahead, [len(block) for block in blocks])
        uncertainty = max(uncertainty, float(np.median(np.abs(apart - message_ahead))))
    return ahead, uncertainty


def _range_of_least(parts: Iterable[Floats]) -> float:
    """Return the median range of the least `MIN_COLLECTIVES` values of parts that have as many, else NaN."""
    ranges = [np.ptp(np.sort(part)[:MIN_COLLECTIVES]) for part in parts if len(part) >= MIN_COLLECTIVES]
    return float(np.median(ranges)) if ranges else np.nan


def _upper_bounds(bound: Floats, moment: Floats) -> Floats:
    """Return upper bounds of a clock's offset in ns, whose rate of change is at most `LARGEST_RATE`.

    Longer transfers in later blocks are then not taken for a drift.
    """
    reach = LARGEST_RATE * moment
    earlier = np.minimum.accumulate(bound - reach) + reach
    later = np.minimum.accumulate((bound + reach)[::-1])[::-1] - reach
    return np.where(np.isfinite(bound), np.minimum(earlier, later), bound)


def sender_later(pair: MatchedPairs, clock: AlignedClocks) -> Floats:
    """Return the start of each send minus the start of its receive, in ns; shape (m,)."""
    order = [0, 1] if pair.sender < pair.receiver else [1, 0]
    start = clock.aligned(pair.start[:, order])[:, order]
    return start[:, 0] - start[:, 1]
