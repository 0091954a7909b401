"""The choice of the ranks of a large run that are replayed."""

from __future__ import annotations

import numpy as np
import pytest

from hpcprof.analysis.collectives.matches import MESSAGE, UNKNOWN, Arrivals, Matches, arrivals_of, groups_of
from hpcprof.analysis.explain.replayable import matches_among, replayed_ranks, waits_caused
from hpcprof.profiles.columns.unique import object_array
from hpcprof.profiles.timeline import Ints

RANKS, TENSOR, STEPS = 256, 8, 5


def collective(group: int, ranks: Ints, late: dict[int, int], known: bool = True) -> Matches:
    """All-reduces of some ranks, of which some begin late by so many ns."""
    start = np.array([[1000 * step + late.get(rank, 0) for rank in ranks.tolist()] for step in range(STEPS)])
    arrived = np.broadcast_to(start.max(axis=1, keepdims=True), start.shape)
    count = start.size
    return Matches(
        rank=np.tile(ranks, STEPS),
        row=np.arange(count),
        group=np.full(count, group),
        match=np.repeat(np.arange(STEPS), len(ranks)),
        op=object_array(["AllReduce"] * count),
        part=np.zeros(count, np.int64),
        start=start.ravel(),
        end=start.ravel() + 500,
        peer=np.full(count, UNKNOWN),
        sends=np.zeros(count, bool),
        arrived=arrived.ravel() if known else np.full(count, UNKNOWN),
    )


def program(late: dict[int, int], ranks: int = RANKS) -> Matches:
    """Tensor groups of neighbours, and for each place in them a group over all."""
    every = np.arange(ranks)
    tensor = [collective(0, every[first : first + TENSOR], late) for first in range(0, ranks, TENSOR)]
    data = [collective(0, every[first::TENSOR], late) for first in range(TENSOR)]
    return Matches.concatenate([*tensor, *data])


def arrivals(matches: Matches) -> list[Arrivals]:
    """Return who came last in each half of the groups, from batches that cut operations."""
    low = matches.group <= np.median(matches.group)
    halves = [matches.take(low), matches.take(~low)]
    return [
        arrivals_of(half.take(np.arange(at, min(at + 7, len(half)))) for at in range(0, len(half), 7))
        for half in halves
    ]


def test_all_ranks_of_a_run_that_is_not_large_are_replayed() -> None:
    assert replayed_ranks(range(128), arrivals(program({}, 128))) == tuple(range(128))


def test_a_rank_that_others_wait_for_in_mpi_is_replayed() -> None:
    left_out = sorted({*range(RANKS)} - {*replayed_ranks(range(RANKS), [], 64)})[100]
    assert left_out in replayed_ranks(range(RANKS), [], 64, {left_out: 1e9})


@pytest.mark.parametrize("culprit", [0, 77, 254])
def test_the_rank_that_others_wait_for_is_replayed_with_its_whole_small_group(culprit: int) -> None:
    found = replayed_ranks(range(RANKS), arrivals(program({culprit: 300, 13: 2, 140: 1})), 64)
    assert len(found) == 64 and list(found) == sorted(found)
    first = culprit // TENSOR * TENSOR
    assert {*range(first, first + TENSOR)} <= {*found}
    assert all(
        {*range(rank // TENSOR * TENSOR, rank // TENSOR * TENSOR + TENSOR)} <= {*found} for rank in found
    )


def test_where_nobody_waits_the_ranks_are_spread_over_the_run() -> None:
    found = np.array(replayed_ranks(range(RANKS), arrivals(program({})), 64))
    assert len(found) == 64 and found[0] == 0 and found[-1] == RANKS - 1
    assert np.diff(found).max() <= 5 * TENSOR


def test_without_matches_single_ranks_are_spread_over_the_run() -> None:
    found = np.array(replayed_ranks([10 * one for one in range(RANKS)], [], 64))
    assert len(found) == 64 and np.diff(found).max() <= 50


def test_the_last_rank_to_come_causes_the_waiting_of_all_others() -> None:
    caused = np.sum([waits_caused(np.arange(RANKS), one) for one in arrivals(program({9: 100}))], axis=0)
    assert caused[9] == STEPS * 100 * (TENSOR - 1 + RANKS // TENSOR - 1)
    assert caused.sum() == caused[9]


def test_of_a_group_that_is_cut_it_is_known_how_late_the_others_came() -> None:
    matches = collective(0, np.arange(6), {4: 70, 1: 20})
    (whole,), (cut,) = groups_of(matches), groups_of(matches_among(matches, [0, 1, 2]))
    assert whole.others_late.tolist() == [0] * STEPS
    assert cut.ranks.tolist() == [0, 1, 2] and cut.others_late.tolist() == [50] * STEPS
    (unknown,) = groups_of(matches_among(collective(0, np.arange(6), {4: 70}, known=False), [0, 1]))
    assert unknown.others_late.tolist() == [0] * STEPS


def test_a_message_is_left_out_with_its_partner() -> None:
    one = collective(0, np.array([3, 4]), {})
    messages = Matches(
        **{**vars(one), "op": object_array([MESSAGE] * len(one)), "peer": np.tile([4, 3], STEPS)}
    )
    assert len(matches_among(messages, [3, 4])) == 2 * STEPS
    assert len(matches_among(messages, [3, 5])) == 0
