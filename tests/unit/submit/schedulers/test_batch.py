"""The indices of job arrays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.submit.schedulers.command import parse_array_indices


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-3", [0, 1, 2, 3]),
        ("7", [7]),
        ("2-3%2", [2, 3]),
        ("0,2-3,10-14:2%1", [0, 2, 3, 10, 12, 14]),
        ("-", []),  # PBS, where none is left
        ("", []),
        ("1,3,...", [1, 3]),  # Slurm, cut
    ],
)
def test_ranges_steps_and_lists_are_read(text: str, expected: list[int]) -> None:
    assert parse_array_indices(text) == expected


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 7)), max_size=8))
def test_what_ranges_say_is_what_is_read(spans: list[tuple[int, int, int]]) -> None:
    text = ",".join(f"{first}-{first + length}:{step}" for first, length, step in spans)
    assert parse_array_indices(text) == [
        i for first, length, step in spans for i in range(first, first + length + 1, step)
    ]
