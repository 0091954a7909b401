"""Telling apart ranks of different programs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hpcprof.results.collect.same_program import CollectiveCounts, difference

SECOND = 10**9
DDP = {("AllReduce", 28_000_000): 48, ("AllReduce", 157_000_000): 4}
OTHER_MODEL = {("AllReduce", 1_000_000): 40}
FSDP = {("AllGather", 4_000_000): 96, ("ReduceScatter", 4_000_000): 48, ("AllReduce", 4): 8}


def calls(
    sizes: Mapping[tuple[str, int], int],
    ranks: int | None = 4,
    communicator: str = "",
    world: bool = True,
    span: tuple[int, int] = (0, SECOND),
) -> CollectiveCounts:
    operations: dict[str, int] = {}
    for (name, _), count in sizes.items():
        operations[name] = operations.get(name, 0) + count
    known = frozenset([communicator] if communicator else [])
    return CollectiveCounts(ranks, known, operations, sizes, sizes if world else {}, span)


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        (calls(DDP), calls(DDP), ""),
        (calls(DDP), calls(FSDP), "it calls AllGather and ReduceScatter, the other AllReduce"),
        (calls(DDP), calls(DDP, ranks=8), "it ran on 8 ranks, the other on 4"),
        (calls(DDP), calls(DDP, ranks=None), ""),
        (calls(DDP), calls(OTHER_MODEL), "its collective operations have other sizes"),
        # Stages of a pipeline train other parts, each in a communicator of its own.
        (calls(DDP, world=False), calls(OTHER_MODEL, world=False), ""),
        # What two ranks call in one communicator, they call together.
        (calls(DDP, communicator="0x0"), calls(FSDP, communicator="0x0"), ""),
        # One captured fewer steps than the other.
        (calls(DDP), calls({key: count // 4 for key, count in DDP.items()}), ""),
        (calls(DDP), calls({}), ""),
    ],
)
def test_ranks_of_a_program_call_the_same_together(
    one: CollectiveCounts, other: CollectiveCounts, why: str
) -> None:
    assert difference(one, other, 0, 0) == why


@pytest.mark.parametrize(
    ("later", "why"),
    [
        (30 * SECOND, ""),
        (3600 * SECOND, "its collective operations have other sizes"),
        (None, ""),
    ],
)
def test_other_sizes_at_another_time_are_another_program(later: int | None, why: str) -> None:
    one, other = calls(DDP, world=False), calls(OTHER_MODEL, world=False)
    assert difference(one, other, 0, later) == why
