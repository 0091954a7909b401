"""Telling apart ranks of different programs."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from hpcprof.common.errors import HpcprofError
from hpcprof.results.collect.same_program import CollectiveCounts, check_same_program, difference

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


def test_ranks_that_wait_long_in_a_kernel_compute_with_those_of_the_last_one() -> None:
    # AMD-AGI/Hyperloom#1249: the profilers start seconds apart, and the first all-reduce lasts as long.
    waiting = [(0, "gemm", 700, "comp"), (0, "cross_device_reduce", 17_000, "comm")]
    late = [(1, "gemm", 700, "comp"), (1, "cross_device_reduce", 1, "comm")]
    other = [(1, "conv", 700, "comp"), (1, "cross_device_reduce", 1, "comm")]

    def check(rows: list[tuple[int, str, int, str]]) -> None:
        columns = dict(zip(("rank", "name", "total_ns", "class"), zip(*rows, strict=True), strict=True))
        store: Any = SimpleNamespace(
            profiles=lambda _: [SimpleNamespace(start_utc_ns=0, kind="torch", file="a")] * 2,
            table=lambda *_: SimpleNamespace(columns=columns),
        )
        check_same_program("run", store, {0: CollectiveCounts(2), 1: CollectiveCounts(2)})

    check(waiting + late)
    with pytest.raises(HpcprofError, match="they have no kernels in common"):
        check(waiting + other)
