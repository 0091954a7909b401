"""Skew: which ranks are late to collectives, by how much, and at what cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.across_ranks import NO_COLLECTIVES, unprofiled
from hpcprof.analysis.collectives.clock_alignment import (
    MIN_COLLECTIVES,
    AlignedClocks,
    ClockKey,
    align_clocks,
    clock_key,
    later_than_others,
)
from hpcprof.analysis.collectives.declarations import COST_PCT, EVEN_PCT
from hpcprof.analysis.collectives.matching import MatchedCollectives, match_collectives
from hpcprof.analysis.collectives.pair_clocks import align_pairs
from hpcprof.analysis.collectives.pair_matching import match_pairs
from hpcprof.analysis.collectives.step_costs import MIN_STEPS, StepCosts, cost_intervals
from hpcprof.analysis.collectives.waiting_balance import balanced_costs, message_waits, partners
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.collective_operations import WAITING
from hpcprof.profiles.timeline import Ints


@dataclass(frozen=True)
class _Arrivals:
    """When the n ranks arrived at the m collectives of one operation in one communicator.

    Attributes
    ----------
    matched : MatchedCollectives
    clock : AlignedClocks
    wait : ndarray of float64, shape (m, n)
        How long each rank waited for the last one, in ns.
    late : ndarray of float64, shape (m, n)
        How much later than the median of the others each rank began by its own work, in ns; negative if it
        was earlier.
    share : ndarray of float64, shape (m,)
        The share of all waiting during which the waiting ranks computed nothing.
    last : ndarray of int64, shape (m,)
        The column of the last rank.
    """

    matched: MatchedCollectives
    clock: AlignedClocks
    wait: Floats
    late: Floats
    share: Floats
    last: Ints


_MESSAGES = b""
"""Stands for the messages among the groups of ranks."""

_RankArrivals = tuple[_Arrivals, int]
"""Arrivals of several ranks, and the column of one of them."""


class _Lateness(NamedTuple):
    """What the lateness of a rank costs in each step, the median, and its interval, in ns."""

    costs: StepCosts
    median: float
    interval: tuple[float, float] | None


def skew(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Judge for each rank how late it is to the collectives in which every rank waits for all others.

    ``wait_ns`` is how long the rank waited in them for the last rank, and ``times_last`` how often it was the
    last. ``lateness_p50_ns`` is the median over steps of the cost of its lateness. In a collective, the
    lateness is the time by which the rank begins after the median of the other ranks. Its cost is that time
    multiplied by the share of all waiting during which the waiting ranks computed nothing. The cost of a step
    is the sum over the collectives to which the rank comes late in the other half of the steps too, by more
    than the uncertainty of the clocks.

    Where communicators overlap (data, tensor and pipeline groups), who waited for a late rank in one of them
    comes late to the next. So a rank is late by no more than it is when all are given back what they
    communicated exposed in other groups of ranks since their last collective. The same work makes a rank late
    to several groups, of which the one counts in which that costs most.

    Ranks that send each other messages (pipelines) wait for each other by design. Of these the cost of a step
    is by how much longer than the median of the others the rank works, and so waits less for them
    (`hpcprof.analysis.collectives.waiting_balance.balanced_costs`).

    The verdict is ``straggler`` if the rank is late beyond chance and the cost is at least `COST_PCT` of the
    wall time of the median step; ``even`` if the interval of the cost ends below `EVEN_PCT`; ``late`` if the
    rank is late beyond chance otherwise, and else ``unknown``.
    """
    table, reason = _judged(results["rank_collectives"], results["step_times"])
    names = ["rank", "collectives", "wait_ns", "times_last", "pct_last", "lateness_p50_ns", "verdict"]
    return Outcome(table[names], reason) if len(table) else no_rows(reason)


def skew_summary(results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Return the figures behind the verdict of `skew` for each rank.

    ``lateness_low_ns`` and ``lateness_high_ns`` are the interval of the lateness per step. With 95 % the
    intervals of all ranks hold together. ``uncertainty_ns`` is the uncertainty of the aligned clocks in one
    collective, and ``cost_pct`` the lateness in percent of ``step_p50_ns``, the median wall time of a step
    over ranks. ``steps`` is the number of steps in which the rank had such collectives.
    """
    table, reason = _judged(results["rank_collectives"], results["step_times"])
    names = [
        *("rank", "steps", "lateness_p50_ns", "lateness_low_ns", "lateness_high_ns", "uncertainty_ns"),
        *("step_p50_ns", "cost_pct", "verdict"),
    ]
    return Outcome(table[names], reason) if len(table) else no_rows(reason)


@computed_once
def _judged(rows: pd.DataFrame, times: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the rows of both tables, and the reasons for missing values and unknown verdicts."""
    if not len(rows):
        return pd.DataFrame(), NO_COLLECTIVES
    matched, problems = match_collectives(rows)
    pairs, unpaired = match_pairs(rows)
    aligned, lowest = align_clocks(rows), partners(pairs)
    arrivals = _arrivals(matched, aligned)
    waits = message_waits(pairs, align_pairs(pairs))
    mine: dict[int, list[_RankArrivals]] = {rank: [] for rank in np.unique(rows["rank"]).tolist()}
    for one in arrivals:
        for column, rank in enumerate(one.matched.ranks.tolist()):
            mine[rank].append((one, column))
    step = _step_time(times)
    late = _latenesses(mine, rows, lowest)
    # As objects, integers stay integers next to None.
    table = pd.DataFrame(
        [
            _counted(rank, parts, waits[waits["rank"] == rank]) | _cost(late.get(rank), step)
            for rank, parts in mine.items()
        ],
        dtype=object,
    )
    reasons = [*problems, *unpaired, *_why_unknown(table, step)]
    if None in {one.comm_id for one in matched} | {pair.comm_id for pair in pairs}:
        reasons.append("communicators are unknown: all ranks are assumed to share one")
    missing = unprofiled(rows)
    if missing:
        reasons.append(f"{missing} and may be later than the others")
    return table, "; ".join(reasons)


def _latenesses(
    mine: Mapping[int, Sequence[_RankArrivals]], rows: pd.DataFrame, lowest: Mapping[int, int]
) -> dict[int, _Lateness]:
    """Return what the lateness of each rank costs, to collectives or among partners of messages.

    Ranks that send each other messages take turns, and so come to their collectives one after the other:
    these are left to the comparison of the ranks. Of a rank with several of these, or in several groups of
    ranks, it is the lateness that costs most.
    """
    series: dict[tuple[int, bytes], StepCosts] = {}
    for rank, parts in mine.items():
        groups: dict[bytes, list[_RankArrivals]] = {}
        for part in parts:
            if not _take_turns(part[0], lowest):
                groups.setdefault(part[0].matched.ranks.tobytes(), []).append(part)
        series |= {(rank, group): _step_costs(others) for group, others in groups.items()}
    series |= {(rank, _MESSAGES): costs for rank, costs in balanced_costs(rows, lowest).items()}
    intervals = cost_intervals(series)
    found: dict[int, _Lateness] = {}
    for key, costs in series.items():
        median = float(np.median(costs.cost)) if len(costs.cost) else 0.0
        one = _Lateness(costs, median, intervals.get(key))
        found[key[0]] = max(found.get(key[0], one), one, key=lambda lateness: lateness.median)
    return found


def _take_turns(one: _Arrivals, lowest: Mapping[int, int]) -> bool:
    """Return whether any two ranks of a collective are connected by messages."""
    connected = [lowest[rank] for rank in one.matched.ranks.tolist() if rank in lowest]
    return len(set(connected)) < len(connected)


def _why_unknown(table: pd.DataFrame, step: float | None) -> list[str]:
    """Return a sentence for each cause of missing values and unknown verdicts."""
    reasons = []
    if len(table) == 1:
        reasons.append("a single rank cannot be compared")
    elif table["wait_ns"].isna().any():
        reasons.append(
            f"ranks with fewer than {MIN_COLLECTIVES} matched all-reduces, all-gathers, barriers or messages "
            "cannot be compared, because their clocks are not aligned"
        )
    if step is None:
        reasons.append("no rank has step times, so the cost of lateness is unknown")
    elif ((table["steps"] > 0) & (table["steps"] < MIN_STEPS)).any():
        reasons.append(f"fewer than {MIN_STEPS} steps with collectives are too few to judge lateness")
    unknown = table[(table["verdict"] == "unknown") & table["lateness_high_ns"].notna()]
    if len(unknown):
        most = 100 * max(unknown["lateness_high_ns"]) / unknown["step_p50_ns"].iloc[0]
        reasons.append(
            f"a lateness of up to {most:.1f} % of a step may be hidden by chance and by the clocks, which "
            f"are aligned to {max(unknown['uncertainty_ns'])} ns per collective"
        )
    return reasons


def _step_time(times: pd.DataFrame) -> float | None:
    """Return the median wall time of the steps; that of a step is the maximum over ranks."""
    return float(times.groupby("step")["wall_ns"].max().median()) if len(times) else None


def _arrivals(
    matched: Sequence[MatchedCollectives], aligned: Mapping[ClockKey, AlignedClocks]
) -> list[_Arrivals]:
    """Return the arrivals at the collectives in which all ranks wait, on aligned clocks."""
    groups: dict[bytes, list[MatchedCollectives]] = {}
    for one in matched:
        groups.setdefault(one.ranks.tobytes(), []).append(one)
    found = []
    for group in groups.values():
        for one, elsewhere in zip(group, _elsewhere(group), strict=True):
            if one.op in WAITING and clock_key(one) in aligned:
                found.append(_arrival(one, aligned[clock_key(one)], elsewhere))
    return found


def _elsewhere(group: Sequence[MatchedCollectives]) -> list[Floats]:
    """Return how long each rank communicated exposed with others since the last collective of its group.

    The group is all collectives of the same ranks. Of each, the collectives count that have a kernel of their
    own; in the first one nothing is known of the time before.
    """
    of_own = [one.part == 0 for one in group]
    parts = list(zip(group, of_own, strict=True))
    start, before, exposed = (
        np.concatenate([getattr(one, name)[own] for one, own in parts])
        for name in ("start", "before", "exposed")
    )
    order = np.argsort(start, axis=0, kind="stable")
    before, exposed = (np.take_along_axis(values, order, axis=0) for values in (before, exposed))
    since = np.zeros(start.shape)
    since[1:] = np.maximum(np.diff(before, axis=0) - exposed[:-1], 0)
    result = np.empty_like(since)
    np.put_along_axis(result, order, since, axis=0)
    return np.split(result, np.cumsum([np.count_nonzero(own) for own in of_own])[:-1])


def _arrival(one: MatchedCollectives, clock: AlignedClocks, elsewhere: Floats) -> _Arrivals:
    # Collectives that share a kernel count only once.
    first = one.part == 0
    start = clock.aligned(one.start[first])
    wait = start.max(axis=1, keepdims=True) - start
    # Compute that runs during a waiting kernel is assumed to run at its beginning: any other order would
    # count more of the waiting as exposed.
    transfer = np.maximum((one.end - one.start)[first] - wait, 0)
    exposed = np.clip(one.exposed[first] - transfer, 0, wait).sum(axis=1)
    waited = wait.sum(axis=1)
    share = np.divide(exposed, waited, out=np.zeros_like(waited), where=waited > 0)
    late = later_than_others(start)
    if elsewhere.any():
        late = np.minimum(late, later_than_others(start - elsewhere))
    return _Arrivals(one, clock, wait, late, share, start.argmax(axis=1))


def _step_costs(mine: Sequence[_RankArrivals]) -> StepCosts:
    """Return what the lateness of a rank cost in each step, in the order of the steps.

    The collectives of a step to which the rank comes late are chosen by the other half of the steps. Choosing
    them by the same steps would make chance look like lateness.
    """
    parts = [
        pd.DataFrame(
            {
                "part": number,
                "step": one.matched.step[one.matched.part == 0, column],
                "late": one.late[:, column],
                "share": one.share,
                "error": one.clock.uncertainty[column],
            }
        )
        for number, (one, column) in enumerate(mine)
    ]
    table = pd.concat(parts).dropna(subset=["step"])
    table["place"] = table.groupby(["part", "step"]).cumcount()
    steps, number = np.unique(table["step"], return_inverse=True)
    table["second"] = 2 * number >= len(steps)
    usual = table.groupby(["part", "place", "second"])["late"].median().rename("usual").reset_index()
    usual["second"] = ~usual["second"]
    usual = table.merge(usual, how="left", on=["part", "place", "second"])["usual"].to_numpy()
    late, share, error = (table[name].to_numpy() for name in ("late", "share", "error"))

    def per_step(values: Floats) -> Floats:
        return np.bincount(number, values * share, len(steps)).astype(np.float64)

    # A collective that the other half lacks compares as false.
    return StepCosts(
        per_step(late * (usual > error)), per_step(np.maximum(late, 0)), per_step(late), per_step(error)
    )


def _counted(rank: int, mine: Sequence[_RankArrivals], waits: pd.DataFrame) -> dict[str, object]:
    """Return one rank's counts and sums over all its collectives and messages; unknown values are None."""
    count = sum(len(one.last) for one, _ in mine) + len(waits)
    row: dict[str, object] = dict.fromkeys(["wait_ns", "times_last", "pct_last", "uncertainty_ns"])
    row |= {"rank": rank, "collectives": count}
    if not count:
        return row
    last = sum(int(np.count_nonzero(one.last == column)) for one, column in mine) + int(waits["last"].sum())
    wait = sum(float(one.wait[:, column].sum()) for one, column in mine) + float(waits["wait"].sum())
    errors = [float(one.clock.uncertainty[column]) for one, column in mine]
    return row | {
        "wait_ns": round(wait),
        "times_last": last,
        "pct_last": round(100 * last / count, 2),
        "uncertainty_ns": round(max([*errors, *waits["clock"].tolist()])),
    }


def _cost(late: _Lateness | None, step: float | None) -> dict[str, object]:
    """Return what one rank's lateness costs per step, and the verdict; unknown values are None."""
    row: dict[str, object] = dict.fromkeys(
        ["lateness_p50_ns", "lateness_low_ns", "lateness_high_ns", "step_p50_ns", "cost_pct"]
    )
    row |= {"steps": 0 if late is None else len(late.costs.cost), "verdict": "unknown"}
    if late is None or late.interval is None or step is None:
        return row
    interval, lateness = late.interval, max(0.0, late.median)
    low, high, middle = (100 * value / step for value in (*interval, lateness))
    return row | {
        "lateness_p50_ns": round(lateness),
        "lateness_low_ns": round(interval[0]),
        "lateness_high_ns": round(interval[1]),
        "step_p50_ns": round(step),
        "cost_pct": round(middle, 2),
        "verdict": verdict(low, high, middle),
    }


def verdict(low: float, high: float, cost: float) -> str:
    """Return the verdict on a cost and its interval, in percent of a step."""
    if high < EVEN_PCT:
        return "even"
    if low <= 0:
        return "unknown"
    return "straggler" if cost >= COST_PCT else "late"
