"""Ranks that wait least for messages: the others wait for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcprof.analysis.collectives.clock_alignment import AlignedClocks, later_than_others
from hpcprof.analysis.collectives.pair_clocks import sender_later
from hpcprof.analysis.collectives.pair_matching import MatchedPairs
from hpcprof.analysis.collectives.step_costs import StepCosts
from hpcprof.analysis.statistics.grouped import Floats


def partners(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the lowest of the ranks that each rank is connected with by messages."""
    lowest: dict[int, int] = {}

    def root(rank: int) -> int:
        while lowest.setdefault(rank, rank) != rank:
            # Halving the way keeps later ones short.
            lowest[rank] = lowest[lowest[rank]]
            rank = lowest[rank]
        return rank

    for ranks in pairs:
        low, high = sorted(map(root, ranks))
        lowest[high] = low
    return {rank: root(rank) for rank in sorted(lowest)}


def message_waits(
    pairs: Sequence[MatchedPairs], clocks: Mapping[tuple[int, int], AlignedClocks]
) -> pd.DataFrame:
    """Return a row for each kernel that carried out messages, of pairs with aligned clocks.

    ``wait`` is the time until the last partner of the kernel has begun too, see `partner_waits`. ``last`` is
    whether the rank began after its partners, and ``clock`` the uncertainty of the clocks.

    Returns
    -------
    DataFrame
        With columns rank, start, wait, clock and last.
    """
    ends = [_ends(pair, clocks[pair.ranks]) for pair in pairs if pair.ranks in clocks]
    if not ends:
        none: pd.DataFrame = pd.DataFrame(columns=["rank", "start", "wait", "clock", "last"])
        return none
    columns = {name: np.concatenate([one[name] for one in ends], axis=None) for name in ends[0]}
    kernels = pd.DataFrame(columns, copy=False).groupby(["rank", "start"])
    found: pd.DataFrame = kernels[["wait", "clock"]].max().assign(last=kernels["last"].min()).reset_index()
    return found


def partner_waits(pair: MatchedPairs, clock: AlignedClocks) -> Floats:
    """Return how long each end of the messages waits for its partner to begin, in ns, shape (m, 2).

    That is at most the time by which its kernel is longer than its partner's: a send to a buffer does not
    wait for a receive that begins later.
    """
    later = sender_later(pair, clock)
    duration = pair.end - pair.start
    longer = duration - duration.min(axis=1, keepdims=True)
    return np.clip(np.column_stack([-later, later]), 0, longer)


def _ends(pair: MatchedPairs, clock: AlignedClocks) -> dict[str, NDArray[Any]]:
    """Return the columns of both ends of the messages of a pair, each of shape (m, 2)."""
    later = sender_later(pair, clock)
    return {
        "rank": np.broadcast_to([pair.sender, pair.receiver], pair.start.shape),
        "start": pair.start,
        "wait": partner_waits(pair, clock),
        "clock": np.full(pair.start.shape, clock.uncertainty[1]),
        "last": np.column_stack([later > 0, later < 0]),
    }


def exposed_by_step(rows: pd.DataFrame) -> pd.DataFrame:
    """Return how long each rank communicated exposed in each step, in ns, from ``rank_collectives``.

    Returns
    -------
    DataFrame
        With columns rank, step and exposed_ns.
    """
    # Calls that share a kernel count once.
    inside = rows[(rows["part"] == 0) & rows["step"].notna()]
    columns = {"rank": np.int64, "step": np.int64, "exposed_ns": np.float64}
    inside = inside[list(columns)].astype(columns)
    found: pd.DataFrame = inside.groupby(["rank", "step"], as_index=False)["exposed_ns"].sum()
    return found


def balanced_costs(exposed: pd.DataFrame, lowest: Mapping[int, int]) -> dict[int, StepCosts]:
    """Return by how much less than the median of the others each rank communicates in each step.

    Ranks that send each other messages take turns, so that each waits for the others by design. A step takes
    all of them the same time. What a rank does not spend in communication beside which nothing computes, it
    works; so this is how much longer than the others the rank works, whatever the transfers take. The
    durations are on each rank's own clock. The first step is left out: in it ranks also wait for those whose
    capture began later.

    Parameters
    ----------
    exposed : DataFrame
        See `exposed_by_step`.
    lowest : mapping of int to int
        Tells which ranks belong together, see `partners`.
    """
    inside = exposed[exposed["rank"].isin(list(lowest))]
    rank, ranks = pd.factorize(inside["rank"], sort=True)
    step, steps = pd.factorize(inside["step"], sort=True)
    times = np.full((len(steps), len(ranks)), np.nan)
    times[step, rank] = inside["exposed_ns"]
    first = np.array([lowest[one] for one in ranks.tolist()], np.int64)
    found: dict[int, StepCosts] = {}
    for group in np.unique(first).tolist():
        together = np.flatnonzero(first == group)
        known = ~np.isnan(times[:, together])
        taken = known.any(axis=1)
        often = together[known.sum(axis=0) * 2 >= taken.sum()]
        # A step that lacks a rank was cut by the capture.
        complete = times[taken][:, often]
        complete = complete[~np.isnan(complete).any(axis=1)][1:]
        if not len(complete) or len(often) < 2:
            continue
        less: Floats = -later_than_others(complete)
        for one, of_rank in zip(ranks[often].tolist(), less.T, strict=True):
            found[one] = StepCosts(of_rank, np.maximum(of_rank, 0), of_rank, np.zeros_like(of_rank))
    return found
