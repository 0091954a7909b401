"""Messages between two ranks: their latency and bandwidth, and how far apart both ends begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.analysis.collectives.across_ranks import medians, nullable, six_decimals, unprofiled
from hpcprof.analysis.collectives.clock_alignment import MIN_COLLECTIVES, AlignedClocks
from hpcprof.analysis.collectives.pair_clocks import align_matched_pairs, sender_later
from hpcprof.analysis.collectives.pair_matching import MatchedPairs, match_pairs
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.framework.text_columns import object_array

NO_MESSAGES = "no rank has sends or receives"


def point_to_point(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """List the matched messages, one row each, in the order of their lower rank.

    ``latency_ns`` is the duration of the shorter of both kernels, because the one that begins last does not
    wait for the other. ``algbw_gbps`` is bytes over latency in 1e9 bytes per second, and None for calls that
    share a kernel. ``last_rank`` is the rank that began last, and ``spread_ns`` the time between both starts
    on the aligned clocks (`hpcprof.analysis.collectives.pair_clocks.align_pairs`).
    """
    rows = results["rank_collectives"]
    pairs, problems = match_pairs(rows) if len(rows) else ([], [])
    pairs = [pair for pair in pairs if len(pair.seq)]
    if not pairs:
        return no_rows("; ".join(problems) or NO_MESSAGES)
    clocks = align_matched_pairs(rows)
    tables = [_table(pair, clocks.get(pair.ranks)) for pair in pairs]
    columns = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    order = np.lexsort((columns["seq"], columns.pop("begin")))
    # With a given type, pandas does not look for text.
    series = {name: pd.Series(of[order], dtype=of.dtype, copy=False) for name, of in columns.items()}
    return Outcome(pd.DataFrame(series, copy=False), "; ".join([*problems, *_why_null(pairs, clocks, rows)]))


def point_to_point_summary(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Return the medians of the messages of each pair, communicator and size, by total latency.

    `point_to_point` gives the reasons why rows or values are missing.
    """
    rows = results["point_to_point"]
    if not len(rows):
        return no_rows("")
    return Outcome(medians(rows, ["sender", "receiver", "comm_id", "bytes"], bandwidths=["algbw_gbps"]))


def _table(pair: MatchedPairs, clock: AlignedClocks | None) -> dict[str, NDArray[Any]]:
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
        "algbw_gbps": nullable(six_decimals(bandwidth), timed),
        "last_rank": last,
        "spread_ns": spread,
        "begin": pair.start[:, int(pair.sender > pair.receiver)],
    }


def _why_null(
    pairs: list[MatchedPairs], clocks: Mapping[tuple[int, int], AlignedClocks], rows: pd.DataFrame
) -> list[str]:
    """Return a sentence for each cause of null values and missing rows."""
    reasons = []
    fused = sum(int(np.count_nonzero((pair.fused > 1).any(axis=1))) for pair in pairs)
    if fused:
        reasons.append(
            f"{fused} messages share a kernel with others: they have the latency of the group and no "
            "bandwidth"
        )
    if any(np.isnan(pair.message).any() for pair in pairs):
        reasons.append("sizes are unknown if the profiles have no payloads of NCCL's calls")
    if any(pair.comm_id is None for pair in pairs):
        reasons.append("communicators are unknown: all ranks are assumed to share one")
    if any(pair.ranks not in clocks for pair in pairs):
        reasons.append(
            f"the clocks of two ranks are aligned from {MIN_COLLECTIVES} messages on, in both directions or "
            "with receives that wait; otherwise the last rank and the spread are unknown"
        )
    missing = unprofiled(rows)
    return [*reasons, missing] if missing else reasons
