"""Aligns the clocks of ranks by the ends of their collectives."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hpcprof.analysis.collectives.matching import MatchedCollectives
from hpcprof.common.robust import MAD_TO_DEVIATION
from hpcprof.profiles.collective_operations import ALIGNING, ALIGNING_EXPERTS
from hpcprof.profiles.timeline import Floats, Ints

MIN_COLLECTIVES = 5
"""Minimum number of collectives that align clocks."""

_BLOCK = 8
"""Number of collectives in a block with an offset of its own."""

_ROWS_AT_ONCE = 4096
"""Number of collectives that are aligned at a time, which limits the memory."""

_UNCERTAINTY_PERCENTILE = 95
_SIGMAS = 3.0
"""Minimum ratio of a drift to its standard error, from the median absolute deviation, for a certain drift."""

LARGEST_RATE = 1e-3
"""Maximum relative drift of a clock; computers stay below 1e-4, so a higher rate is not drift."""

NEAR_NS = 20_000
"""Maximum distance of moments on two ranks whose order is uncertain, in ns."""

ClockKey = tuple[str | None, bytes]
"""Identifies a set of clocks: the communicator and its ranks."""


@dataclass(frozen=True)
class AlignedClocks:
    """The clocks of a communicator's n ranks, aligned."""

    zero: Ints
    """The time stamp that is 0 on the common clock, of each rank; shape (n,)."""
    rate: Floats
    """The drift of each clock in ns per ns; 0 unless the collectives show one; shape (n,)."""
    moment: Floats
    offset: Floats
    """The lead of each clock beyond its drift, at the ``moment`` of each block of collectives, both in ns
    since ``zero``; interpolated between blocks; shape (blocks, n).
    """
    extent: Floats
    """The time from the first collective to the last one, on each rank's clock; shape (n,)."""
    uncertainty: Floats
    """The 95th percentile of the distance of a rank's aligned ends from the median of the other ranks' ends;
    shape (n,).
    """
    collectives: int
    """The number of collectives that aligned the clocks."""
    of_node: bool = False
    """True if the ranks share the clock of their node, and only its zeros differ."""

    def aligned(self, stamps: Ints) -> Floats:
        """Return time stamps of shape (m, n) on the common clock, in ns since its zero."""
        columns = enumerate(stamps.T)
        return np.column_stack([self.on_common_clock(rank, column_stamps) for rank, column_stamps in columns])

    def on_common_clock(self, column: int, stamps: Ints) -> Floats:
        """Return time stamps of one rank, of shape (m,), on the common clock."""
        elapsed = (stamps - self.zero[column]).astype(float)
        moment, offset = self.moment[:, column], self.offset[:, column]
        common: Floats = elapsed - self.rate[column] * elapsed - np.interp(elapsed, moment, offset)
        return common


def align_clocks(matched: Iterable[MatchedCollectives]) -> dict[ClockKey, AlignedClocks]:
    """Align the clocks of the ranks of each communicator, by exchanges of experts if there is nothing else.

    1. An all-reduce, all-gather or barrier ends at nearly the same time on all ranks.
    2. A significant drift of the clocks is removed first (`drift`).
    3. A clock is ahead by the median difference of its ends from those of the median rank. The median ignores
       a rank that sometimes ends a little later.
    4. Clocks jump by tens of microseconds: from 16 collectives on, each block of 8 has its own median.

    Communicators with too few collectives are left out.
    """
    ends: tuple[dict[ClockKey, list[Ints]], ...] = ({}, {})
    for calls in matched:
        if calls.op in ALIGNING | ALIGNING_EXPERTS and len(calls.ranks) > 1:
            ends[calls.op in ALIGNING].setdefault(clock_key(calls), []).append(calls.end[calls.part == 0])
    by_experts, by_others = map(align_ends, ends)
    return by_experts | by_others


def align_ends(ends: Mapping[ClockKey, Sequence[Ints]]) -> dict[ClockKey, AlignedClocks]:
    """Align the clocks of the ranks of each communicator by parts of the ends of collectives; (m, n)."""
    stamps = {key: np.concatenate(parts) for key, parts in ends.items()}
    return {
        key: _align(end[np.argsort(end[:, 0])]) for key, end in stamps.items() if len(end) >= MIN_COLLECTIVES
    }


def one_clock(zero: Sequence[int], checks: int, error_ns: float) -> AlignedClocks:
    """Return the clocks of ranks that have one clock, whose stamps count from the moments ``zero``.

    ``checks`` is the number of collectives, or of messages, that agree with it, within ``error_ns``.
    """
    nothing, error = np.zeros(len(zero)), np.full(len(zero), error_ns)
    offsets = (np.array(zero, np.int64), nothing, nothing[None], nothing[None], nothing)
    return AlignedClocks(*offsets, error, checks)


def clock_key(matched: MatchedCollectives) -> ClockKey:
    """Return the key of the clocks that a set of collectives uses."""
    return matched.comm_id, matched.ranks.tobytes()


def _align(end: Ints) -> AlignedClocks:
    """Align by ends of shape (m, n), sorted by time."""
    zero = end[0]
    elapsed = (end - zero).astype(float)
    lead = elapsed - elapsed[:, :1]
    rate = drift(elapsed, lead)
    blocks = max(1, len(end) // _BLOCK)
    moment = _medians(elapsed, blocks)
    unknown = np.zeros(len(zero))
    offset = _medians(lead - rate * elapsed, blocks)
    rough = AlignedClocks(zero, rate, moment, offset, elapsed[-1], unknown, len(end))
    del elapsed, lead
    # Now that the clocks agree roughly, the reference is the median rank and no longer the first.
    fine = replace(rough, offset=offset + _medians(_by_parts(end, partial(_from_median, rough)), blocks))
    residual = _by_parts(end, lambda part: np.abs(later_than_others(fine.aligned(part))))
    return replace(fine, uncertainty=np.percentile(residual, _UNCERTAINTY_PERCENTILE, axis=0))


def _from_median(clocks: AlignedClocks, end: Ints) -> Floats:
    aligned = clocks.aligned(end)
    aligned -= np.median(aligned, axis=1, keepdims=True)
    return aligned


def _by_parts(end: Ints, function: Callable[[Ints], Floats]) -> Floats:
    """Apply a function to batches of rows, since it takes many times their memory."""
    parts = [function(end[at : at + _ROWS_AT_ONCE]) for at in range(0, len(end), _ROWS_AT_ONCE)]
    return np.concatenate(parts)


def drift(elapsed: Floats, lead: Floats) -> Floats:
    """Return the drift of clocks in ns per ns of their own time; 0 where it may be chance or is too large.

    It is the median slope between each moment of the first half and its partner in the second half (Theil and
    Sen), which outliers do not change. ``elapsed`` has moments in ascending order, and ``lead`` the lead of
    the clocks at these moments; both are in ns and have shape (m, ...).
    """
    half = len(elapsed) // 2
    slope = (lead[-half:] - lead[:half]) / np.maximum(elapsed[-half:] - elapsed[:half], 1.0)
    middle: Floats = np.median(slope, axis=0)
    spread = MAD_TO_DEVIATION * np.median(np.abs(slope - middle), axis=0) / np.sqrt(max(half, 1))
    certain = np.abs(middle) > _SIGMAS * spread
    return np.where(certain & (np.abs(middle) < LARGEST_RATE), middle, 0.0)


def _medians(values: Floats, blocks: int) -> Floats:
    """Return the medians of blocks of rows; the first ones have one row more than the others."""
    size, longer = divmod(len(values), blocks)
    ranks, cut = values.shape[1], longer * (size + 1)
    parts = (values[:cut].reshape(longer, size + 1, ranks), values[cut:].reshape(-1, size, ranks))
    return np.concatenate([np.median(part, axis=1) for part in parts if len(part)])


def later_than_others(stamps: Floats) -> Floats:
    """Return each time stamp minus the median of the other ranks' stamps, in ns, shape (m, n), n > 1."""
    count = stamps.shape[1]
    # Without a rank's own time stamp, the order statistics after it shift by one.
    low, high = (count - 2) // 2, (count - 1) // 2
    ordered = np.partition(stamps, sorted({low, high, high + 1}), axis=1)
    middle = [np.where(stamps <= ordered[:, [k]], ordered[:, [k + 1]], ordered[:, [k]]) for k in (low, high)]
    return stamps - (middle[0] + middle[1]) / 2
