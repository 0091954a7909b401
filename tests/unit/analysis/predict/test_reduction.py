"""Steps of a program have the same operations, however they were timed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hpcprof.analysis.predict.noise import noise_of
from hpcprof.analysis.predict.reduction import _pieces


def pieces(busy: list[tuple[int, int]], communication: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pieces of computing, times in µs, of a step of 1 ms."""
    starts, ends = (np.array([one[side] * 1000 for one in busy]) for side in (0, 1))
    columns = {
        "start_ns": [start * 1000 for start, _ in communication],
        "duration_ns": [(end - start) * 1000 for start, end in communication],
    }
    found = _pieces((starts, ends), pd.DataFrame(columns), 0, 1_000_000)
    return [(start // 1000, end // 1000) for start, end in found]


def test_a_gap_is_a_wait_if_it_ends_soon_after_the_communication() -> None:
    waits = [(0, 100), (105, 300), (503, 800)]
    assert pieces(waits, [(100, 500)]) == [(0, 100), (105, 300), (503, 800)]
    by_chance = [(0, 100), (105, 300), (640, 800)]
    assert pieces(by_chance, [(100, 500)]) == [(0, 100), (105, 800)]
    between_kernels = [(0, 100), (105, 499), (501, 800)]
    assert pieces(between_kernels, [(100, 500)]) == [(0, 100), (105, 800)]


def test_nothing_computed_between_two_operations_takes_no_time() -> None:
    assert pieces([(0, 100), (400, 800)], [(100, 200), (200, 398)]) == [(0, 100), (100, 100), (400, 800)]


def test_noise_of_short_operations_is_not_that_of_long_ones_of_the_same_name() -> None:
    generator = np.random.default_rng(1)
    short = 1e4 * (1 + np.abs(generator.standard_normal((1, 2, 20))))
    long = 1e8 * (1 + 0.001 * generator.standard_normal((1, 2, 20)))
    noise = noise_of(np.concatenate([short, long]), np.zeros(2, np.int64), generator)
    assert noise.rest[1].std() < 0.01 * noise.mean[1]
    assert noise.rest[0].std() > 0.2 * noise.mean[0]
