"""Skew: which ranks are late to collectives, by how much, and at what cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.across_ranks import NO_COLLECTIVES, unprofiled
from hpcprof.analysis.collectives.clock_alignment import (
    MIN_COLLECTIVES,
    AlignedClocks,
    align_clocks,
    clock_key,
    later_than_others,
)
from hpcprof.analysis.collectives.matching import MatchedCollectives, match_collectives
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.collective_operations import WAITING
from hpcprof.profiles.timeline import Ints

COST_PCT = 5.0
"""A rank is a straggler if its lateness costs at least this percentage of the step time."""


@dataclass(frozen=True)
class _Arrivals:
    """When the n ranks arrived at the m collectives of one operation in one communicator.

    Attributes
    ----------
    matched : MatchedCollectives
    clock : AlignedClocks
    wait : ndarray of float64, shape (m, n)
        How long each rank waited for the last one, in ns.
    cost : ndarray of float64, shape (m, n)
        What the lateness of each rank cost, in ns.
    last : ndarray of int64, shape (m,)
        The column of the last rank.
    """

    matched: MatchedCollectives
    clock: AlignedClocks
    wait: Floats
    cost: Floats
    last: Ints


_RankArrivals = tuple[_Arrivals, int]
"""Arrivals of several ranks, and the column of one of them."""


def skew(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Judge for each rank how late it is to the collectives in which every rank waits for all others.

    ``wait_ns`` is how long the rank waited in them for the last rank, and ``times_last`` how often it was the
    last. ``lateness_p50_ns`` is the median over steps of the cost of its lateness. In a collective, the
    lateness is the time by which the rank begins after the median of the other ranks, if that exceeds the
    uncertainty of the clocks. Its cost is that time multiplied by the share of all waiting during which the
    waiting ranks computed nothing. The cost of a step is the sum over its collectives.

    The verdict is ``straggler`` if the cost is at least `COST_PCT` of the wall time of the median step. It is
    ``even`` if the cost is lower, and would be lower even with a lateness just below the uncertainty in every
    collective of a step. Otherwise it is ``unknown``.
    """
    table, reason = _judged(results["rank_collectives"], results["step_times"])
    names = ["rank", "collectives", "wait_ns", "times_last", "pct_last", "lateness_p50_ns", "verdict"]
    return Outcome(table[names], reason) if len(table) else no_rows(reason)


def skew_summary(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Return the figures behind the verdict of `skew` for each rank.

    ``uncertainty_ns`` is the uncertainty of the aligned clocks in one collective, and ``cost_pct`` the
    lateness in percent of ``step_p50_ns``, the median wall time of a step over ranks. ``steps`` is the number
    of steps in which the rank had such collectives.
    """
    table, reason = _judged(results["rank_collectives"], results["step_times"])
    names = ["rank", "steps", "lateness_p50_ns", "uncertainty_ns", "step_p50_ns", "cost_pct", "verdict"]
    return Outcome(table[names], reason) if len(table) else no_rows(reason)


@computed_once
def _judged(rows: pd.DataFrame, times: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the rows of both tables, and the reasons for missing values and unknown verdicts."""
    if not len(rows):
        return pd.DataFrame(), NO_COLLECTIVES
    matched, problems = match_collectives(rows)
    aligned = align_clocks(rows)
    arrivals = [
        _arrivals(one, aligned[clock_key(one)])
        for one in matched
        if one.op in WAITING and clock_key(one) in aligned
    ]
    step = _step_time(times)
    mine: dict[int, list[_RankArrivals]] = {rank: [] for rank in np.unique(rows["rank"]).tolist()}
    for one in arrivals:
        for column, rank in enumerate(one.matched.ranks.tolist()):
            mine[rank].append((one, column))
    # As objects, integers stay integers next to None.
    table = pd.DataFrame([_row(rank, parts, step) for rank, parts in mine.items()], dtype=object)
    reasons = list(problems)
    if len(table) == 1:
        reasons.append("a single rank cannot be compared")
    elif table["wait_ns"].isna().any():
        reasons.append(
            f"ranks with fewer than {MIN_COLLECTIVES} matched all-reduces, all-gathers or barriers cannot be "
            "compared, because their clocks are not aligned"
        )
    if step is None:
        reasons.append("no rank has step times, so the cost of lateness is unknown")
    if any(one.comm_id is None for one in matched):
        reasons.append("communicators are unknown: all ranks are assumed to share one")
    missing = unprofiled(rows)
    if missing:
        reasons.append(f"{missing} and may be later than the others")
    imprecise = table[(table["verdict"] == "unknown") & table["lateness_p50_ns"].notna()]
    if len(imprecise):
        worst = max(imprecise["uncertainty_ns"])
        reasons.append(
            f"the clocks are aligned to {worst} ns per collective, too imprecise for {COST_PCT:g} % of a step"
        )
    return table, "; ".join(reasons)


def _step_time(times: pd.DataFrame) -> float | None:
    """Return the median wall time of the steps; that of a step is the maximum over ranks."""
    return float(times.groupby("step")["wall_ns"].max().median()) if len(times) else None


def _arrivals(one: MatchedCollectives, clock: AlignedClocks) -> _Arrivals:
    # Collectives that share a kernel count only once.
    first = one.part == 0
    start = clock.aligned(one.start[first])
    wait = start.max(axis=1, keepdims=True) - start
    late = later_than_others(start)
    late = np.where(late > clock.uncertainty, late, 0)
    # Compute that runs during a waiting kernel is assumed to run at its beginning: any other order would
    # count more of the waiting as exposed.
    transfer = np.maximum((one.end - one.start)[first] - wait, 0)
    exposed = np.clip(one.exposed[first] - transfer, 0, wait)
    waited = wait.sum(axis=1, keepdims=True)
    share = np.divide(exposed.sum(axis=1, keepdims=True), waited, out=np.zeros_like(waited), where=waited > 0)
    return _Arrivals(one, clock, wait, late * share, start.argmax(axis=1))


def _row(rank: int, mine: Sequence[_RankArrivals], step_time: float | None) -> dict[str, object]:
    """Return one rank's row of both tables; unknown values are None."""
    count = sum(len(one.last) for one, _ in mine)
    row: dict[str, object] = dict.fromkeys(
        ["wait_ns", "times_last", "pct_last", "lateness_p50_ns", "uncertainty_ns", "step_p50_ns", "cost_pct"]
    )
    row |= {"rank": rank, "collectives": count, "steps": 0, "verdict": "unknown"}
    if not count:
        return row
    last = sum(int(np.count_nonzero(one.last == column)) for one, column in mine)
    uncertainty = max(float(one.clock.uncertainty[column]) for one, column in mine)
    row |= {
        "wait_ns": round(sum(float(one.wait[:, column].sum()) for one, column in mine)),
        "times_last": last,
        "pct_last": round(100 * last / count, 2),
        "uncertainty_ns": round(uncertainty),
    }
    step = np.concatenate([one.matched.step[one.matched.part == 0, column] for one, column in mine])
    cost = np.concatenate([one.cost[:, column] for one, column in mine])
    inside = ~np.isnan(step)
    steps, number, times = np.unique(step[inside], return_inverse=True, return_counts=True)
    row["steps"] = len(steps)
    if step_time is None or not len(steps):
        return row
    lateness = float(np.median(np.bincount(number, cost[inside])))
    share = 100 * lateness / step_time
    # The most that lateness below the uncertainty could cost in a step, in percent.
    hidden = 100 * uncertainty * float(np.median(times)) / step_time
    verdict = "straggler" if share >= COST_PCT else "even" if hidden < COST_PCT else "unknown"
    return row | {
        "lateness_p50_ns": round(lateness),
        "step_p50_ns": round(step_time),
        "cost_pct": round(share, 2),
        "verdict": verdict,
    }
