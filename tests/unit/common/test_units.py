"""Numbers with their units, as people read them."""

from __future__ import annotations

import pytest

from hpcprof.common.units import (
    counted,
    format_bytes,
    format_duration,
    format_gbps,
    named_ranks,
    parse_ns,
    time_unit,
)


def test_a_number_has_its_noun_in_the_singular_or_plural() -> None:
    assert [counted(n, "rank") for n in (0, 1, 2, 1024)] == ["0 ranks", "1 rank", "2 ranks", "1,024 ranks"]


def test_sizes_and_bandwidths_carry_their_units() -> None:
    assert [format_bytes(n) for n in (4, 2048, 134_217_728, 3e9)] == [
        "4 B",
        "2.048 kB",
        "134.2 MB",
        "3.000 GB",
    ]
    assert [format_gbps(v) for v in (285.8485, 0.0123)] == ["285.8 GB/s", "0.0123 GB/s"]


def test_times_share_the_unit_of_the_longest() -> None:
    units = [time_unit(ns)[1] for ns in (0, 999, 1000, 5_000_000, 3_600_000_000_000)]
    assert units == ["ns", "ns", "µs", "ms", "s"]


def test_many_ranks_are_named_as_spans_and_those_of_further_spans_counted() -> None:
    assert [named_ranks([3]), named_ranks([0, 2]), named_ranks([0, 1, 2, 4, 6, 7, 9], most=2)] == [
        "rank 3",
        "ranks 0, 2",
        "ranks 0-2, 4 and 3 more",
    ]


def test_a_time_that_people_wait_for_has_its_two_largest_units() -> None:
    assert [format_duration(s) for s in (0, 1e-5, 0.37, 0.5, 59.6, 190, 7500)] == [
        "0 s",
        "0 s",
        "0.4 s",
        "0.5 s",
        "1 min 0 s",
        "3 min 10 s",
        "2 h 5 min",
    ]


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("24.5ms", 24_500_000), ("900 us", 900_000), ("7µs", 7_000), ("1.2s", 1_200_000_000), ("5ns", 5)],
)
def test_a_time_is_a_number_with_a_unit(text: str, nanoseconds: int) -> None:
    assert parse_ns(text) == nanoseconds


@pytest.mark.parametrize("text", ["", "12", "ms", "-1ms", "1e3ms", "1.2.3s", "5 minutes", "infs"])
def test_anything_else_is_no_time(text: str) -> None:
    assert parse_ns(text) is None
