"""Messages between two ranks: their latency and bandwidth, and how far apart both ends begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.across_ranks import (
    Columns,
    Gaps,
    Listed,
    by_latency,
    in_order,
    joined,
    medians_of,
    nullable,
    outcome_of,
)
from hpcprof.analysis.collectives.clock_alignment import MIN_COLLECTIVES, AlignedClocks
from hpcprof.analysis.collectives.communication import Communication
from hpcprof.analysis.collectives.pair_matching import MatchedPairs, sender_later
from hpcprof.analysis.framework.outcome import Outcome
from hpcprof.analysis.framework.text_columns import object_array

NO_MESSAGES = "no rank has sends or receives"


def list_messages(found: Communication) -> Listed:
    """List the messages in some communicators whose pairs of ranks share no others."""
    pairs = [pair for pair in found.pairs if len(pair.seq)]
    clocks = found.pair_clocks
    gaps = Gaps(
        fused=sum(int(np.count_nonzero((pair.fused > 1).any(axis=1))) for pair in pairs),
        unsized=any(bool(np.isnan(pair.message).any()) for pair in pairs),
        unnamed=any(pair.comm_id is None for pair in pairs),
        uncounted=False,
        unaligned=any(pair.ranks not in clocks for pair in pairs),
    )
    rows = joined([_table(pair, clocks.get(pair.ranks)) for pair in pairs])
    medians = medians_of(rows, ("sender", "receiver", "comm_id", "bytes"), ("algbw_gbps",))
    return Listed(rows, medians, found.unpaired, gaps, found.missing)


def point_to_point(parts: Sequence[Listed], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """List the matched messages, one row each, in the order of their lower rank.

    ``latency_ns`` is the duration of the shorter of both kernels, because the one that begins last does not
    wait for the other. ``algbw_gbps`` is bytes over latency in 1e9 bytes per second, and None for calls that
    share a kernel. ``last_rank`` is the rank that began last, and ``spread_ns`` the time between both starts
    on the aligned clocks (`hpcprof.analysis.collectives.pair_matching.align_pairs`).
    """
    return outcome_of(in_order(parts), parts, NO_MESSAGES, NO_MESSAGES, _why_null)


def point_to_point_summary(parts: Sequence[Listed], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Return the medians of the messages of each pair, communicator and size, by total latency."""
    return outcome_of(by_latency(parts), parts, NO_MESSAGES, NO_MESSAGES, _why_null)


def _table(pair: MatchedPairs, clock: AlignedClocks | None) -> Columns:
    """Return the columns of one pair; ``begin`` is for sorting."""
    count = len(pair.seq)
    latency = (pair.end - pair.start).min(axis=1)
    known = ~np.isnan(pair.message)
    timed = (latency > 0) & (pair.fused == 1).all(axis=1) & known
    size = np.where(known, pair.message, 0)
    bandwidth = np.divide(size, latency, out=np.zeros(count), where=timed)
    last = spread = np.full(count, None, object)
    if clock is not None:
        later = sender_later(pair, clock)
        last = np.where(later > 0, pair.sender, pair.receiver)
        spread = np.rint(np.abs(later)).astype(np.int64)
    return {
        "sender": np.full(count, pair.sender),
        "receiver": np.full(count, pair.receiver),
        "comm_id": np.repeat(object_array([pair.comm_id]), count),
        "seq": pair.seq,
        "bytes": nullable(size.astype(np.int64), known),
        "latency_ns": latency,
        "algbw_gbps": nullable(np.round(bandwidth, 6), timed),
        "last_rank": last,
        "spread_ns": spread,
        "begin": pair.start[:, int(pair.sender > pair.receiver)],
    }


def _why_null(gaps: Gaps, missing: str) -> list[str]:
    """Return a sentence for each cause of null values and missing rows."""
    reasons = []
    if gaps.fused:
        reasons.append(
            f"{gaps.fused} messages share a kernel with others: they have the latency of the group and no "
            "bandwidth"
        )
    if gaps.unsized:
        reasons.append("sizes are unknown if the profiles have no payloads of NCCL's calls")
    if gaps.unnamed:
        reasons.append("communicators are unknown: all ranks are assumed to share one")
    if gaps.unaligned:
        reasons.append(
            f"the clocks of two ranks are aligned from {MIN_COLLECTIVES} messages on, in both directions or "
            "with receives that wait; otherwise the last rank and the spread are unknown"
        )
    return [*reasons, missing] if missing else reasons
