"""Skew: arrivals of ranks at collectives, own lateness, and its cost in each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np
import pandas as pd

from hpcprof.analysis.collectives.across_ranks import NO_COLLECTIVES
from hpcprof.analysis.collectives.clock_alignment import (
    MIN_COLLECTIVES,
    AlignedClocks,
    ClockKey,
    clock_key,
    later_than_others,
)
from hpcprof.analysis.collectives.communication import Communication
from hpcprof.analysis.collectives.matching import MatchedCollectives, in_few_sentences
from hpcprof.analysis.collectives.verdicts import hidden_lateness, with_cost
from hpcprof.analysis.collectives.waiting_balance import (
    MIN_STEPS,
    StepCosts,
    balanced_costs,
    cost_intervals,
    message_waits,
)
from hpcprof.analysis.framework.outcome import Outcome, no_rows
from hpcprof.analysis.statistics.components import connected_components
from hpcprof.profiles.collective_operations import WAITING
from hpcprof.profiles.columns.unique import numbered_rows, position_in_group
from hpcprof.profiles.timeline import Floats, Ints


class CollectiveArrivals(msgspec.Struct, frozen=True):
    """Arrivals of n ranks at the m collectives of one operation in one communicator."""

    matched: MatchedCollectives
    clock: AlignedClocks
    wait: Floats
    """The time that each rank waited for the last one, in ns; shape (m, n)."""
    late: Floats
    """The time by which each rank began later than the median of the others by its own work, in ns; negative
    if it was earlier; shape (m, n).
    """
    share: Floats
    """The share of all waiting during which the waiting ranks computed nothing; shape (m,)."""
    last: Ints
    """The column of the last rank; shape (m,)."""


def arrivals(
    matched: Sequence[MatchedCollectives], aligned: Mapping[ClockKey, AlignedClocks]
) -> dict[bytes, list[CollectiveArrivals]]:
    """Return the arrivals at the collectives in which all ranks wait, on aligned clocks, by their ranks."""
    groups: dict[bytes, list[MatchedCollectives]] = {}
    for calls in matched:
        groups.setdefault(calls.ranks.tobytes(), []).append(calls)
    grouped: dict[bytes, list[CollectiveArrivals]] = {}
    for key, group in groups.items():
        for calls, elsewhere in zip(group, _exposed_in_other_groups(group), strict=True):
            if calls.op in WAITING and clock_key(calls) in aligned:
                grouped.setdefault(key, []).append(_arrival(calls, aligned[clock_key(calls)], elsewhere))
    return grouped


def _exposed_in_other_groups(group: Sequence[MatchedCollectives]) -> list[Floats]:
    """Return the exposed communication of each rank in other groups since the last collective of its group.

    A group has all collectives of the same ranks. Only collectives with a kernel of their own count; the time
    before the first one is unknown, and counts as 0. In ns, shape (m, n) for each operation.
    """
    first_parts = [operation.part == 0 for operation in group]
    parts = list(zip(group, first_parts, strict=True))
    start, before, exposed = (
        np.concatenate([getattr(operation, name)[is_first] for operation, is_first in parts])
        for name in ("start", "before", "exposed")
    )
    order = np.argsort(start, axis=0, kind="stable")
    before, exposed = (np.take_along_axis(values, order, axis=0) for values in (before, exposed))
    since = np.zeros(start.shape)
    since[1:] = np.maximum(np.diff(before, axis=0) - exposed[:-1], 0)
    result = np.empty_like(since)
    np.put_along_axis(result, order, since, axis=0)
    return np.split(result, np.cumsum([np.count_nonzero(is_first) for is_first in first_parts])[:-1])


def _arrival(operation: MatchedCollectives, clock: AlignedClocks, elsewhere: Floats) -> CollectiveArrivals:
    # Collectives that share a kernel count only once.
    first = operation.part == 0
    start = clock.aligned(operation.start[first])
    wait = start.max(axis=1, keepdims=True) - start
    # Compute that runs during a waiting kernel is assumed to run at its beginning: any other order would
    # count more of the waiting as exposed.
    transfer = np.maximum((operation.end - operation.start)[first] - wait, 0)
    exposed = np.clip(operation.exposed[first] - transfer, 0, wait).sum(axis=1)
    waited = wait.sum(axis=1)
    share = np.divide(exposed, waited, out=np.zeros_like(waited), where=waited > 0)
    late = later_than_others(start)
    if elsewhere.any():
        late = np.minimum(late, later_than_others(start - elsewhere))
    return CollectiveArrivals(operation, clock, wait, late, share, start.argmax(axis=1))


def lateness_costs(group: Sequence[CollectiveArrivals]) -> dict[int, StepCosts]:
    """Return the cost of each rank's lateness in each step, in the order of the steps.

    The collectives to which the rank comes late are chosen by the other half of the steps
    (cross-validation): a choice by the same steps would take chance for lateness.
    """
    ranks = group[0].matched.ranks
    step = np.concatenate([arrival.matched.step[arrival.matched.part == 0] for arrival in group])
    late = np.concatenate([arrival.late for arrival in group])
    share = np.concatenate([arrival.share for arrival in group])
    count = [len(arrival.share) for arrival in group]
    error = np.repeat([arrival.clock.uncertainty for arrival in group], count, axis=0)
    part = np.repeat(np.arange(len(group)), count)
    # Ranks whose collectives are in the same steps are judged together. NaN would differ from NaN.
    _, alike = np.unique(np.where(np.isnan(step), -1.0, step), axis=1, return_inverse=True)
    costs_of_ranks: dict[int, StepCosts] = {}
    for number in range(alike.max() + 1):
        columns = np.flatnonzero(alike.ravel() == number)
        inside = np.flatnonzero(~np.isnan(step[:, columns[0]]))
        rows = np.ix_(inside, columns)
        costs = _costs_of_steps(
            step[inside, columns[0]], part[inside], share[inside], late[rows], error[rows]
        )
        costs_of_ranks |= dict(zip(ranks[columns].tolist(), costs, strict=True))
    return costs_of_ranks


def _costs_of_steps(
    step: Floats, part: Ints, share: Floats, late: Floats, error: Floats
) -> Iterator[StepCosts]:
    """Yield the costs of each of n ranks, from the m collectives that all of them have in the same steps.

    ``late`` and ``error`` have the shape (m, n), the others (m,).
    """
    steps, number = np.unique(step, return_inverse=True)
    _, operation = numbered_rows(part, number)
    _, kind = numbered_rows(part, position_in_group(operation))
    second = 2 * number >= len(steps)
    usual = np.full(late.shape, np.nan)
    for number_of_kind in range(kind.max(initial=-1) + 1):
        halves = [np.flatnonzero((kind == number_of_kind) & (second == half)) for half in (False, True)]
        for judged, reference in (halves, halves[::-1]):
            if len(reference):
                usual[judged] = np.median(late[reference], axis=0)
    order = np.argsort(number, kind="stable")
    begin = np.searchsorted(number[order], np.arange(len(steps)))

    def per_step(values: Floats) -> Floats:
        weighted = (values * share[:, np.newaxis])[order]
        return np.add.reduceat(weighted, begin, axis=0) if len(begin) else weighted

    # A collective that the other half lacks compares as false.
    beyond_error = late * (usual > error)
    sums = (per_step(values) for values in (beyond_error, np.maximum(late, 0), late, error))
    for columns in zip(*(np.ascontiguousarray(values.T) for values in sums), strict=True):
        yield StepCosts(*columns)


_MESSAGES = b""
"""Stands for the messages among the groups of ranks."""


class _Lateness(NamedTuple):
    """The cost of a rank's lateness in each step, its median and interval, in ns."""

    costs: StepCosts
    median: float
    interval: tuple[float, float] | None


def skew(parts: Sequence[Waiting], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Judge the lateness of each rank to the collectives in which every rank waits for all others.

    ``wait_ns`` is the time that the rank waited in them for the last rank, and ``times_last`` the number of
    collectives to which it came last. ``lateness_p50_ns`` is the median over steps of the cost of its
    lateness:

    1. In a collective, the lateness is the time by which the rank begins after the median of the others.
    2. Its cost is that time multiplied by the share of all waiting during which the waiting ranks computed
       nothing.
    3. The cost of a step is the sum over the collectives to which the rank comes late in the other half of
       the steps too, by more than the uncertainty of the clocks.

    Where communicators overlap (data, tensor and pipeline groups), a rank that waited for a late rank in one
    of them comes late to the next. So the exposed communication of all ranks in other groups since their last
    collective is subtracted before a rank counts as late. If the same work makes a rank late to several
    groups, the group where that costs most counts.

    Ranks that send each other messages (pipelines) wait for each other by design. Their cost of a step is the
    rank's work beyond the median of the others, by which it waits less for them
    (`hpcprof.analysis.collectives.waiting_balance.balanced_costs`).

    The verdict is ``straggler`` if the rank is late beyond chance, or by a finding, and the cost is at least
    `hpcprof.analysis.collectives.declarations.COST_PCT` of the elapsed time per step; ``even`` if the
    interval of the lateness ends below ``EVEN_PCT`` of it; ``late`` if the rank is late otherwise, and else
    ``unknown``.
    """
    summary = results["skew_summary"]
    if not len(summary):
        return no_rows("")  # for the reason of `skew_summary`
    counts = _all_counts(parts)
    counted = pd.DataFrame(
        [_counts_of_rank(rank, counts[rank]) for rank in summary["rank"].tolist()], dtype=object
    )
    names = ["rank", "collectives", "wait_ns", "times_last", "pct_last"]
    return Outcome(pd.concat([counted[names], summary[["lateness_p50_ns", "verdict"]]], axis=1))


def skew_summary(parts: Sequence[Waiting], results: Mapping[str, pd.DataFrame]) -> Outcome:
    """Return the figures behind the verdict of `skew` for each rank.

    ``lateness_low_ns`` and ``lateness_high_ns`` are the interval of the lateness per step. With 95 % the
    intervals of all ranks hold together. ``uncertainty_ns`` is the uncertainty of the aligned clocks in one
    collective, and ``steps`` the number of steps in which the rank had such collectives. ``cost_ns`` is the
    cost of the lateness per step: the saving of the finding that calls the rank late, once the run is
    explained, and else the lateness. ``cost_pct`` is its share of ``elapsed_ns``, the elapsed time per step
    (`hpcprof.analysis.collectives.verdicts.with_cost`).
    """
    if not parts:
        return no_rows(NO_COLLECTIVES)
    # A rank may have communicators in several parts.
    exposed_rows = pd.concat([part.exposed for part in parts], ignore_index=True)
    exposed: pd.DataFrame = exposed_rows.groupby(["rank", "step"])["exposed_ns"].sum().reset_index()
    table, reason = judge(parts, exposed, results["step_kinds"], parts[0].missing)
    return Outcome(table, reason) if len(table) else no_rows(reason)


class Waiting(msgspec.Struct, frozen=True):
    """Waits of ranks for each other in all communicators, or in some that share no groups with others."""

    costs: Mapping[tuple[int, bytes], StepCosts]
    """The cost of the lateness of each rank in each step, by the rank and the ranks of the collectives."""
    counts: Mapping[int, Counts]
    """By rank."""
    pairs: set[tuple[int, int]]
    """The ranks that sent each other messages."""
    problems: list[str]
    """The reasons why some collectives and messages are not matched."""
    unpaired: list[str]
    unnamed: bool
    """True if communicators are unknown."""
    exposed: pd.DataFrame
    missing: str
    """See `Communication`."""


def find_waiting(matched: Communication) -> Waiting:
    """Return the waits between ranks in whole communicators."""
    groups = arrivals(matched.collectives, matched.clocks)
    waits = message_waits(matched.pairs, matched.pair_clocks)
    return Waiting(
        {(rank, key): cost for key, group in groups.items() for rank, cost in lateness_costs(group).items()},
        _counts(matched.ranks, groups, waits),
        {pair.ranks for pair in matched.pairs},
        matched.problems,
        matched.unpaired,
        any(calls.comm_id is None for calls in matched.collectives),
        matched.exposed,
        matched.missing,
    )


def judge(
    parts: Sequence[Waiting], exposed: pd.DataFrame, kinds: pd.DataFrame, missing: str
) -> tuple[pd.DataFrame, str]:
    """Judge each rank by all of its communicators.

    ``exposed`` is the exposed communication of each rank in each step (`waiting_balance.exposed_by_step`),
    ``kinds`` are the rows of ``step_kinds``, and ``missing`` is `Communication.missing`. Returned are the
    rows of ``skew_summary``, and the reasons for missing values.
    """
    counts = _all_counts(parts)
    step = int(kinds["elapsed_ns"].iloc[0]) if len(kinds) else None
    late = _latenesses(parts, exposed)
    # As objects, integers stay integers next to None.
    table = pd.DataFrame(
        [
            _counts_of_rank(rank, count) | _cost(late.get(rank), step)
            for rank, count in sorted(counts.items())
        ],
        dtype=object,
    )
    problems, unpaired = (
        in_few_sentences([sentence for part in parts for sentence in getattr(part, name)])
        for name in ("problems", "unpaired")
    )
    reasons = [*problems, *unpaired, *_why_unknown(table, step)]
    if any(part.unnamed for part in parts):
        reasons.append("communicators are unknown: all ranks are assumed to share one")
    if missing:
        reasons.append(f"{missing} and may be later than the others")
    return table, "; ".join(reasons)


def _latenesses(parts: Sequence[Waiting], exposed: pd.DataFrame) -> dict[int, _Lateness]:
    """Return the cost of each rank's lateness, to collectives or among partners of messages.

    Ranks that send each other messages take turns, and so come to their collectives one after the other: for
    these, `balanced_costs` counts instead of their collectives. If a rank is late in several ways, or in
    several groups of ranks, the most expensive lateness counts.
    """
    lowest = connected_components({pair for part in parts for pair in part.pairs})
    groups = {group for part in parts for _, group in part.costs}
    apart = {
        group for group in groups if not _exchange_messages(np.frombuffer(group, np.int64).tolist(), lowest)
    }
    series = {key: costs for part in parts for key, costs in part.costs.items() if key[1] in apart}
    # The result must not depend on the order of the parts.
    series = dict(sorted(series.items(), key=lambda item: item[0]))
    series |= {(rank, _MESSAGES): costs for rank, costs in balanced_costs(exposed, lowest).items()}
    intervals = cost_intervals(series)
    latest: dict[int, _Lateness] = {}
    for key, costs in series.items():
        median = float(np.median(costs.cost)) if len(costs.cost) else 0.0
        estimate = _Lateness(costs, median, intervals.get(key))
        latest[key[0]] = max(latest.get(key[0], estimate), estimate, key=lambda lateness: lateness.median)
    return latest


def _exchange_messages(ranks: Sequence[int], lowest: Mapping[int, int]) -> bool:
    """Return whether messages connect any two ranks of a group."""
    connected = [lowest[rank] for rank in ranks if rank in lowest]
    return len(set(connected)) < len(connected)


def _why_unknown(table: pd.DataFrame, step: int | None) -> list[str]:
    """Return a sentence for each cause of missing values and unknown verdicts."""
    reasons = []
    if len(table) == 1:
        reasons.append("a single rank cannot be compared")
    elif table["wait_ns"].isna().any():
        reasons.append(
            f"ranks with fewer than {MIN_COLLECTIVES} matched all-reduces, all-gathers, barriers or messages "
            "cannot be compared, because their clocks are not aligned"
        )
    if step is not None and ((table["steps"] > 0) & (table["steps"] < MIN_STEPS)).any():
        reasons.append(f"fewer than {MIN_STEPS} steps with collectives are too few to judge lateness")
    return [*reasons, *filter(None, [hidden_lateness(table.to_dict("records"))])]


class Counts(msgspec.Struct):
    """Counts of a rank's collectives and messages, of those it came to last, and its wait in ns.

    ``error`` is the largest uncertainty of the clocks.
    """

    count: int = 0
    last: int = 0
    wait: float = 0.0
    error: float = 0.0

    def add(self, other: Counts) -> None:
        """Add the counts of other communicators."""
        self.count += other.count
        self.last += other.last
        self.wait += other.wait
        self.error = max(self.error, other.error)


def _counts(
    ranks: Sequence[int], groups: Mapping[bytes, Sequence[CollectiveArrivals]], waits: pd.DataFrame
) -> dict[int, Counts]:
    counts = {rank: Counts() for rank in ranks}
    for arrival in chain.from_iterable(groups.values()):
        last = np.bincount(arrival.last, minlength=len(arrival.matched.ranks))
        figures = zip(last, arrival.wait.sum(axis=0), arrival.clock.uncertainty, strict=True)
        for rank, (times, wait, error) in zip(arrival.matched.ranks.tolist(), figures, strict=True):
            counts[rank].add(Counts(len(arrival.last), int(times), float(wait), float(error)))
    totals = waits.groupby("rank").agg({"start": "size", "last": "sum", "wait": "sum", "clock": "max"})
    for rank, count, last, wait, clock in totals.itertuples():
        counts[rank].add(Counts(int(count), int(last), float(wait), float(clock)))
    return counts


def _all_counts(parts: Sequence[Waiting]) -> dict[int, Counts]:
    counts: dict[int, Counts] = {}
    for part in parts:
        for rank, count in part.counts.items():
            counts.setdefault(rank, Counts()).add(count)
    return counts


def _counts_of_rank(rank: int, counts: Counts) -> dict[str, object]:
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


def _cost(late: _Lateness | None, step: int | None) -> dict[str, object]:
    """Return the cost of one rank's lateness per step, and the verdict; unknown values are None."""
    row: dict[str, object] = dict.fromkeys(
        ["lateness_p50_ns", "lateness_low_ns", "lateness_high_ns", "elapsed_ns"]
    )
    row["steps"] = 0 if late is None else len(late.costs.cost)
    if late is not None and late.interval is not None and step is not None:
        low, high = map(round, late.interval)
        row |= {"lateness_p50_ns": round(max(0.0, late.median)), "lateness_low_ns": low}
        row |= {"lateness_high_ns": high, "elapsed_ns": step}
    return with_cost(row, None)
