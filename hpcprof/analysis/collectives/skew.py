"""Skew: which ranks are late to collectives, by how much, and at what cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from hpcprof.analysis.collectives.pair_clocks import align_matched_pairs
from hpcprof.analysis.collectives.pair_matching import match_pairs
from hpcprof.analysis.collectives.step_costs import MIN_STEPS, StepCosts, cost_intervals
from hpcprof.analysis.collectives.waiting_balance import balanced_costs, message_waits, partners
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.common.memoize import computed_once
from hpcprof.profiles.collective_operations import WAITING
from hpcprof.profiles.columns.unique import numbered_rows, position_in_group
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
    groups = _arrivals(matched, aligned)
    waits = message_waits(pairs, align_matched_pairs(rows))
    step = _step_time(times)
    late = _latenesses(groups, rows, lowest)
    counts = _counts(np.unique(rows["rank"]).tolist(), groups, waits)
    # As objects, integers stay integers next to None.
    table = pd.DataFrame(
        [_counted(rank, one) | _cost(late.get(rank), step) for rank, one in counts.items()], dtype=object
    )
    reasons = [*problems, *unpaired, *_why_unknown(table, step)]
    if None in {one.comm_id for one in matched} | {pair.comm_id for pair in pairs}:
        reasons.append("communicators are unknown: all ranks are assumed to share one")
    missing = unprofiled(rows)
    if missing:
        reasons.append(f"{missing} and may be later than the others")
    return table, "; ".join(reasons)


def _latenesses(
    groups: Mapping[bytes, Sequence[_Arrivals]], rows: pd.DataFrame, lowest: Mapping[int, int]
) -> dict[int, _Lateness]:
    """Return what the lateness of each rank costs, to collectives or among partners of messages.

    Ranks that send each other messages take turns, and so come to their collectives one after the other:
    these are left to the comparison of the ranks. Of a rank with several of these, or in several groups of
    ranks, it is the lateness that costs most.
    """
    series: dict[tuple[int, bytes], StepCosts] = {}
    for ranks, group in groups.items():
        if not _take_turns(group[0], lowest):
            series |= {(rank, ranks): costs for rank, costs in _step_costs(group).items()}
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
) -> dict[bytes, list[_Arrivals]]:
    """Return the arrivals at the collectives in which all ranks wait, on aligned clocks, by their ranks."""
    groups: dict[bytes, list[MatchedCollectives]] = {}
    for one in matched:
        groups.setdefault(one.ranks.tobytes(), []).append(one)
    found: dict[bytes, list[_Arrivals]] = {}
    for key, group in groups.items():
        for one, elsewhere in zip(group, _elsewhere(group), strict=True):
            if one.op in WAITING and clock_key(one) in aligned:
                found.setdefault(key, []).append(_arrival(one, aligned[clock_key(one)], elsewhere))
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


def _step_costs(group: Sequence[_Arrivals]) -> dict[int, StepCosts]:
    """Return what the lateness of each rank of a group cost in each step, in the order of the steps.

    The collectives of a step to which the rank comes late are chosen by the other half of the steps. Choosing
    them by the same steps would make chance look like lateness.
    """
    ranks = group[0].matched.ranks
    step = np.concatenate([one.matched.step[one.matched.part == 0] for one in group])
    late = np.concatenate([one.late for one in group])
    share = np.concatenate([one.share for one in group])
    count = [len(one.share) for one in group]
    error = np.repeat([one.clock.uncertainty for one in group], count, axis=0)
    part = np.repeat(np.arange(len(group)), count)
    # Ranks nearly always have a collective in the same step.
    _, alike = np.unique(step, axis=1, return_inverse=True)
    found: dict[int, StepCosts] = {}
    for number in range(alike.max() + 1):
        columns = np.flatnonzero(alike.ravel() == number)
        inside = np.flatnonzero(~np.isnan(step[:, columns[0]]))
        rows = np.ix_(inside, columns)
        costs = _costs_of_steps(
            step[inside, columns[0]], part[inside], share[inside], late[rows], error[rows]
        )
        found |= dict(zip(ranks[columns].tolist(), costs, strict=True))
    return found


def _costs_of_steps(
    step: Floats, part: Ints, share: Floats, late: Floats, error: Floats
) -> Iterator[StepCosts]:
    """Yield the costs of each of n ranks, from the m collectives that all of them have in the same steps.

    ``late`` and ``error`` have the shape (m, n), the others (m,).
    """
    steps, number = np.unique(step, return_inverse=True)
    _, of_part = numbered_rows(part, number)
    _, kind = numbered_rows(part, position_in_group(of_part))
    second = 2 * number >= len(steps)
    usual = np.full(late.shape, np.nan)
    for one in range(kind.max(initial=-1) + 1):
        halves = [np.flatnonzero((kind == one) & (second == half)) for half in (False, True)]
        for mine, other in (halves, halves[::-1]):
            if len(other):
                usual[mine] = np.median(late[other], axis=0)
    order = np.argsort(number, kind="stable")
    begin = np.searchsorted(number[order], np.arange(len(steps)))

    def per_step(values: Floats) -> Floats:
        weighted = (values * share[:, np.newaxis])[order]
        return np.add.reduceat(weighted, begin, axis=0) if len(begin) else weighted

    # A collective that the other half lacks compares as false.
    chosen = late * (usual > error)
    found = (per_step(values) for values in (chosen, np.maximum(late, 0), late, error))
    for columns in zip(*(np.ascontiguousarray(values.T) for values in found), strict=True):
        yield StepCosts(*columns)


@dataclass
class _Counts:
    """How often a rank took part in collectives and messages, and how they went."""

    count: int = 0
    last: int = 0
    wait: float = 0.0
    error: float = 0.0


def _counts(
    ranks: Sequence[int], groups: Mapping[bytes, Sequence[_Arrivals]], waits: pd.DataFrame
) -> dict[int, _Counts]:
    """Count the collectives and messages of each rank."""
    found = {rank: _Counts() for rank in ranks}
    for one in (one for group in groups.values() for one in group):
        last = np.bincount(one.last, minlength=len(one.matched.ranks))
        figures = zip(last, one.wait.sum(axis=0), one.clock.uncertainty, strict=True)
        for rank, (times, wait, error) in zip(one.matched.ranks.tolist(), figures, strict=True):
            _add(found[rank], len(one.last), times, wait, error)
    of_rank = waits.groupby("rank").agg({"start": "size", "last": "sum", "wait": "sum", "clock": "max"})
    for rank, *message in of_rank.itertuples():
        _add(found[rank], *message)
    return found


def _add(counts: _Counts, count: int, last: int, wait: float, error: float) -> None:
    counts.count += int(count)
    counts.last += int(last)
    counts.wait += float(wait)
    counts.error = max(counts.error, float(error))


def _counted(rank: int, counts: _Counts) -> dict[str, object]:
    """Return one rank's counts and sums over all its collectives and messages; unknown values are None."""
    row: dict[str, object] = dict.fromkeys(["wait_ns", "times_last", "pct_last", "uncertainty_ns"])
    row |= {"rank": rank, "collectives": counts.count}
    if not counts.count:
        return row
    return row | {
        "wait_ns": round(counts.wait),
        "times_last": counts.last,
        "pct_last": round(100 * counts.last / counts.count, 2),
        "uncertainty_ns": round(counts.error),
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
