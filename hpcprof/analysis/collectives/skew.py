"""Skew: which ranks come late to collectives, how late, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.analysis.collectives.across_ranks import NO_COLLECTIVES, unprofiled
from hpcprof.analysis.collectives.matching import (
    MINIMUM,
    Clocks,
    Matched,
    clocks,
    key,
    later_than_others,
    match,
)
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.collective_operations import WAITING
from hpcprof.profiles.timeline import Ints

Floats = NDArray[np.float64]

COST_PCT = 5.0
"""A rank is a straggler when its lateness costs at least this share of the step time, in percent."""


@dataclass(frozen=True)
class _Arrivals:
    """How the ranks came to the collectives of one communicator's operation.

    ``wait`` (for the last rank) and ``cost`` have shape (m, n), ``last`` (a column of the former) (m,).
    """

    matched: Matched
    clock: Clocks
    wait: Floats
    cost: Floats
    last: Ints


_Mine = tuple[_Arrivals, int]
"""Arrivals in which a rank takes part, and its column in them."""


def skew(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Tell for each rank how it comes to the collectives in which every rank waits for every other.

    ``wait_ns`` is how long it waited in them for the last rank, ``times_last`` how often it was that.
    ``lateness_p50_ns`` is the median over steps of what its lateness costs a step: the time by which it
    begins after the median of the other ranks, where that is beyond the clocks' uncertainty, counted by
    the share of all waiting in that collective during which the waiting ranks computed nothing; summed
    over the step's collectives.

    The verdict is ``straggler`` where that is at least `COST_PCT` of the median step's latency,
    ``even`` where it is not and a lateness below the uncertainty in every collective of a step could
    not amount to that either, else ``unknown``.
    """
    table, reason = _judged(results["rank_collectives"], results["step_times"])
    names = ["rank", "collectives", "wait_ns", "times_last", "pct_last", "lateness_p50_ns", "verdict"]
    return Outcome(table[names], reason) if len(table) else no_rows(reason)


def skew_summary(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Tell for each rank what `skew`'s verdict stands on.

    ``uncertainty_ns`` is that of one collective (`hpcprof.analysis.collectives.matching.Clocks`),
    ``cost_pct`` the lateness in percent of ``step_p50_ns``, the median latency of a step over ranks.
    ``steps`` are those in which the rank had such collectives.
    """
    table, reason = _judged(results["rank_collectives"], results["step_times"])
    names = ["rank", "steps", "lateness_p50_ns", "uncertainty_ns", "step_p50_ns", "cost_pct", "verdict"]
    return Outcome(table[names], reason) if len(table) else no_rows(reason)


@computed_once
def _judged(rows: pd.DataFrame, times: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the rows of both tables, and why values are missing or verdicts unknown."""
    if not len(rows):
        return pd.DataFrame(), NO_COLLECTIVES
    matched, problems = match(rows)
    aligned = clocks(rows)
    arrivals = [
        _arrivals(one, aligned[key(one)]) for one in matched if one.op in WAITING and key(one) in aligned
    ]
    step = _step_time(times)
    mine: dict[int, list[_Mine]] = {rank: [] for rank in np.unique(rows["rank"]).tolist()}
    for one in arrivals:
        for column, rank in enumerate(one.matched.ranks.tolist()):
            mine[rank].append((one, column))
    # Whole numbers beside None stay whole.
    table = pd.DataFrame([_row(rank, parts, step) for rank, parts in mine.items()], dtype=object)
    reasons = list(problems)
    if len(table) == 1:
        reasons.append("one rank has nobody to compare with")
    elif table["wait_ns"].isna().any():
        reasons.append(
            f"ranks with fewer than {MINIMUM} matched all-reduces, all-gathers or barriers cannot be "
            "compared, because their clocks are not aligned"
        )
    if step is None:
        reasons.append("no rank has step times: the cost of a lateness is unknown")
    if any(one.comm_id is None for one in matched):
        reasons.append("communicators are unknown: all ranks are taken to share one")
    missing = unprofiled(rows)
    if missing:
        reasons.append(f"{missing} and may be later than these")
    imprecise = table[(table["verdict"] == "unknown") & table["lateness_p50_ns"].notna()]
    if len(imprecise):
        worst = max(imprecise["uncertainty_ns"])
        reasons.append(
            f"the clocks are aligned to {worst} ns a collective, too little to tell {COST_PCT:g} % of a step"
        )
    return table, "; ".join(reasons)


def _step_time(times: pd.DataFrame) -> float | None:
    """Return the median latency of a step, which is the maximum over ranks."""
    return float(times.groupby("step")["latency_ns"].max().median()) if len(times) else None


def _arrivals(one: Matched, clock: Clocks) -> _Arrivals:
    # Collectives that share a kernel count once.
    first = one.part == 0
    start = clock.aligned(one.start[first])
    wait = start.max(axis=1, keepdims=True) - start
    late = later_than_others(start)
    late = np.where(late > clock.uncertainty, late, 0)
    # Compute beside a waiting kernel is taken to run at its beginning: less waiting counts as exposed
    # than by any other order.
    transfer = np.maximum((one.end - one.start)[first] - wait, 0)
    exposed = np.clip(one.exposed[first] - transfer, 0, wait)
    waited = wait.sum(axis=1, keepdims=True)
    share = np.divide(exposed.sum(axis=1, keepdims=True), waited, out=np.zeros_like(waited), where=waited > 0)
    return _Arrivals(one, clock, wait, late * share, start.argmax(axis=1))


def _row(rank: int, mine: Sequence[_Mine], step_time: float | None) -> dict[str, object]:
    """Return one rank's row of both tables; None for what is unknown."""
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
    # What lateness below the uncertainty could amount to in a step.
    hidden = 100 * uncertainty * float(np.median(times)) / step_time
    verdict = "straggler" if share >= COST_PCT else "even" if hidden < COST_PCT else "unknown"
    return row | {
        "lateness_p50_ns": round(lateness),
        "step_p50_ns": round(step_time),
        "cost_pct": round(share, 2),
        "verdict": verdict,
    }
