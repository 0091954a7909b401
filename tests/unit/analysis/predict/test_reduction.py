"""Steps of a program have the same operations, however they were timed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hpcprof.analysis.predict.noise import noise_of
from hpcprof.analysis.predict.reduction import (
    make_alike,
    operations_of_timelines,
    pieces_of_step,
    with_all_to_alls,
)
from hpcprof.common.errors import HpcprofError
from tests.unit.analysis.explain.programs import inputs_of
from tests.unit.analysis.timelines import timeline


def pieces(busy: list[tuple[int, int]], communication: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pieces of computing, times in µs, of a step of 1 ms."""
    starts, ends = (np.array([one[side] * 1000 for one in busy]) for side in (0, 1))
    columns = {
        "start_ns": [start * 1000 for start, _ in communication],
        "duration_ns": [(end - start) * 1000 for start, end in communication],
    }
    divided = pieces_of_step((starts, ends), pd.DataFrame(columns), 0, 1_000_000)
    return [(start // 1000, end // 1000) for between in divided for start, end in between]


def test_a_gap_is_a_wait_if_it_ends_soon_after_the_communication() -> None:
    waits = [(0, 100), (105, 300), (503, 800)]
    assert pieces(waits, [(100, 500)]) == [(0, 100), (105, 300), (503, 800)]
    by_chance = [(0, 100), (105, 300), (640, 800)]
    assert pieces(by_chance, [(100, 500)]) == [(0, 100), (105, 800)]
    between_kernels = [(0, 100), (105, 499), (501, 800)]
    assert pieces(between_kernels, [(100, 500)]) == [(0, 100), (105, 800)]


def test_nothing_computed_between_two_operations_takes_no_time() -> None:
    assert pieces([(0, 100), (400, 800)], [(100, 200), (200, 398)]) == [(0, 100), (100, 100), (400, 800)]


def test_steps_with_the_same_communication_have_the_same_operations() -> None:
    usual = [[(0, 100)], [(110, 300), (503, 800)]]
    steps = [
        usual,
        [*map(list, usual)],
        [[(0, 90)], [(100, 200), (204, 300), (500, 800)]],
        [[(0, 95)], [(110, 800)]],
    ]
    other = [[(0, 10), (40, 50)], [(60, 70)]]
    make_alike([*((("AllReduce",), pieces) for pieces in steps), (("AllGather",), other)])
    assert steps[0] == usual
    assert steps[2] == [[(0, 90)], [(100, 300), (500, 800)]]
    assert steps[3] == [[(0, 95)], [(110, 800), (800, 800)]]
    assert other == [[(0, 10), (40, 50)], [(60, 70)]]


def kernels(ranks: int, partners: dict[str, list[int]]) -> pd.DataFrame:
    """Return the sends and receives of one kernel on each rank, to the partners at some distances."""
    rows = [
        (rank, op, (rank + distance) % ranks)
        for rank in range(ranks)
        for op, distances in partners.items()
        for distance in distances
    ]
    table: pd.DataFrame = pd.DataFrame(rows, columns=["rank", "op", "comm_peer"])
    numbers: dict[str, float] = {
        "bytes": 8,
        "comm_ranks": np.nan,
        "world_ranks": ranks,
        "fused": len(rows) // ranks,
        "peer": np.nan,
    }
    table = table.assign(comm_id="world", start_ns=100, end_ns=200, **numbers)
    return table


def test_a_kernel_that_exchanges_with_all_ranks_is_an_all_to_all() -> None:
    for ranks, distances, size in ((2, [0, 1], 16), (4, [0, 1, 2, 3], 32), (4, [1, 2, 3], 32)):
        merged = with_all_to_alls(kernels(ranks, {"Send": distances, "Recv": distances}))
        assert merged["op"].tolist() == ["AlltoAll"] * ranks
        assert merged["bytes"].tolist() == [size] * ranks
        assert (merged["peer"] == -1).all()


def test_other_messages_keep_their_rows_and_know_their_partners() -> None:
    ring = with_all_to_alls(kernels(4, {"Send": [1], "Recv": [-1]}))
    assert ring["op"].tolist() == ["Send", "Recv"] * 4
    assert ring["peer"].tolist() == [1, 3, 2, 0, 3, 1, 0, 2]
    assert set(with_all_to_alls(kernels(4, {"Send": [1, -1], "Recv": [1, -1]}))["op"]) == {"Send", "Recv"}
    assert set(with_all_to_alls(kernels(2, {"Send": [1], "Recv": [1]}))["op"]) == {"Send", "Recv"}
    # A rank that copies to itself sends nothing.
    assert set(with_all_to_alls(kernels(4, {"Send": [0, 1], "Recv": [0, -1]}))["peer"]) == {0, 1, 2, 3}
    assert len(with_all_to_alls(kernels(4, {"Send": [0, 1], "Recv": [0, -1]}))) == 8


def test_a_program_of_mpi_has_no_collectives_of_gpus() -> None:
    empty = kernels(2, {"Send": [1]}).iloc[:0].astype("str")
    assert not len(with_all_to_alls(empty))


def test_noise_of_short_operations_is_not_that_of_long_ones_of_the_same_name() -> None:
    generator = np.random.default_rng(1)
    short = 1e4 * (1 + np.abs(generator.standard_normal((1, 2, 20))))
    long = 1e8 * (1 + 0.001 * generator.standard_normal((1, 2, 20)))
    noise = noise_of(np.concatenate([short, long]), np.zeros(2, np.int64), generator)
    assert noise.rest[1].std() < 0.01 * noise.mean[1]
    assert noise.rest[0].std() > 0.2 * noise.mean[0]


def test_profiles_without_steps_are_named_before_their_clocks() -> None:
    empty = inputs_of({rank: timeline() for rank in (0, 1)})
    with pytest.raises(HpcprofError, match="rank 0 has no steps"):
        operations_of_timelines(empty)
