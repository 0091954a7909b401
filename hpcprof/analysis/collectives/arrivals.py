"""Arrivals of ranks at collectives, their own lateness, and its cost in each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcprof.analysis.collectives.clock_alignment import (
    AlignedClocks,
    ClockKey,
    clock_key,
    later_than_others,
)
from hpcprof.analysis.collectives.matching import MatchedCollectives
from hpcprof.analysis.collectives.step_costs import StepCosts
from hpcprof.analysis.statistics.grouped import Floats
from hpcprof.profiles.collective_operations import WAITING
from hpcprof.profiles.columns.unique import numbered_rows, position_in_group
from hpcprof.profiles.timeline import Ints


@dataclass(frozen=True)
class CollectiveArrivals:
    """Arrivals of n ranks at the m collectives of one operation in one communicator.

    Attributes
    ----------
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


def arrivals(
    matched: Sequence[MatchedCollectives], aligned: Mapping[ClockKey, AlignedClocks]
) -> dict[bytes, list[CollectiveArrivals]]:
    """Return the arrivals at the collectives in which all ranks wait, on aligned clocks, by their ranks."""
    groups: dict[bytes, list[MatchedCollectives]] = {}
    for one in matched:
        groups.setdefault(one.ranks.tobytes(), []).append(one)
    found: dict[bytes, list[CollectiveArrivals]] = {}
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


def _arrival(one: MatchedCollectives, clock: AlignedClocks, elsewhere: Floats) -> CollectiveArrivals:
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
    return CollectiveArrivals(one, clock, wait, late, share, start.argmax(axis=1))


def lateness_costs(group: Sequence[CollectiveArrivals]) -> dict[int, StepCosts]:
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
    # Ranks nearly always have a collective in the same step. NaN would differ from NaN.
    _, alike = np.unique(np.where(np.isnan(step), -1.0, step), axis=1, return_inverse=True)
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
