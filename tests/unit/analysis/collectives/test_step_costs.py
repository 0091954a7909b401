"""Late ranks are found, and others are seldom called late, in the simulation of ``benchmarks/``."""

from __future__ import annotations

import pytest

from benchmarks.lateness import LATE, changing, counts


@pytest.mark.parametrize("noise", ["normal", "lognormal", "heavy tails", "outliers", "AR(0.5)", "common"])
@pytest.mark.parametrize(("ranks", "steps"), [(2, 6), (16, 20), (16, 100)])
def test_a_rank_like_the_others_is_called_late_in_less_than_one_of_200_programs(
    ranks: int, steps: int, noise: str
) -> None:
    anyone, _ = counts(ranks, steps, noise, 0.0, 200)
    # Of 200 programs, 4 or more are found by chance in one of 300 series at 0.3 %.
    assert anyone <= 3


def test_one_of_16_ranks_that_is_late_by_three_percent_of_43_noisy_steps_is_found() -> None:
    _, last = counts(16, 43, "normal", LATE, 200)
    assert last >= 0.95 * 200


@pytest.mark.parametrize("kind", ["jump", "own drift"])
def test_a_rank_whose_lateness_changes_is_found(kind: str) -> None:
    assert changing(4, 43, kind, 0.2, 16, 100) >= 95
    assert changing(4, 20, kind, 2.0, 16, 100) >= 95
