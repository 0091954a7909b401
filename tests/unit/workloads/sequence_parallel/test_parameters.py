"""A shape that the ranks cannot share is rejected with the nearest valid values."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.common.errors import UsageError
from hpcprof.workloads.sequence_parallel.parameters import PointParameters


def accepts(parameters: PointParameters, ranks: int) -> bool:
    try:
        parameters.validate(ranks)
    except UsageError:
        return False
    return True


def suggestions(parameters: PointParameters, ranks: int) -> list[int]:
    with pytest.raises(UsageError) as caught:
        parameters.validate(ranks)
    proposal = str(caught.value).partition("use ")[2]
    return [int(number) for number in re.findall(r"\d+", proposal)]


def test_the_sentence_names_the_nearest_sequence_lengths() -> None:
    with pytest.raises(UsageError) as caught:
        PointParameters(sequence_length=1000).validate(3)
    assert str(caught.value) == "--sequence-length 1000 is not divisible by 3 ranks: use 999 or 1002."


def test_zero_is_not_offered_as_a_sequence_length() -> None:
    assert suggestions(PointParameters(sequence_length=3), 8) == [8]


@given(st.integers(1, 10_000), st.integers(1, 300), st.integers(1, 8))
def test_sequence_lengths_that_are_offered_are_the_nearest_valid_ones(
    length: int, ranks: int, batch: int
) -> None:
    def valid(value: int) -> bool:
        return accepts(PointParameters(value, hidden_size=ranks, batch_size=batch), ranks)

    assert valid(length) == (length % ranks == 0)
    if not valid(length):
        offered = suggestions(PointParameters(length, hidden_size=ranks, batch_size=batch), ranks)
        _assert_nearest(offered, length, [v for v in range(1, length + ranks + 1) if v % ranks == 0])
        assert all(valid(value) for value in offered)


@given(st.integers(1, 500), st.integers(1, 60), st.integers(1, 16))
def test_hidden_sizes_that_are_offered_are_the_nearest_valid_ones(
    hidden: int, ranks: int, multiplier: int
) -> None:
    def shape(value: int) -> PointParameters:
        return PointParameters(sequence_length=ranks, hidden_size=value, ffn_multiplier=multiplier)

    assert accepts(shape(hidden), ranks) == (hidden * multiplier % ranks == 0)
    if not accepts(shape(hidden), ranks):
        offered = suggestions(shape(hidden), ranks)
        every = [v for v in range(1, hidden + ranks + 1) if accepts(shape(v), ranks)]
        _assert_nearest(offered, hidden, every)


def _assert_nearest(offered: list[int], value: int, valid: list[int]) -> None:
    below = [v for v in valid if v < value]
    above = [v for v in valid if v > value]
    assert offered == [*below[-1:], above[0]]
