"""The bars of both sides of a comparison."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpcprof.report.comparison_page import side_accounts

NAMES = ("compute", "exposed communication", "waiting for peers", "exposed copies", "idle")
TIMES = st.integers(0, 10**9)
IDLE: list[dict[str, Any]] = [
    {"cause": "host", "a_ns": 10, "b_ns": 90},
    {"cause": "sync", "a_ns": 20, "b_ns": 10},
    {"cause": "host", "a_ns": 10, "b_ns": 0},
]


def rows(*parts: tuple[str, int, int]) -> list[dict[str, Any]]:
    """The rows of ``step_difference``, whose first one is the sum of the others."""
    whole = ("step", sum(a for _, a, _ in parts), sum(b for _, _, b in parts))
    return [{"part": name, "a_ns": a, "b_ns": b} for name, a, b in (whole, *parts)]


def test_idle_time_is_divided_by_cause_on_each_side_and_every_cause_has_its_pattern() -> None:
    bars, parts = side_accounts(rows(("compute", 5_000, 5_000), ("idle", 8_000, 9_000)), IDLE)
    assert [(part.name, part.a, part.b, part.difference, part.colour) for part in parts[1:]] == [
        ("idle: host is busy", "4.000 µs", "8.100 µs", "+4.100 µs", "idle idle-0"),
        ("idle: synchronization", "4.000 µs", "900.0 ns", "-3.100 µs", "idle idle-1"),
        ("step", "13.00 µs", "14.00 µs", "+1.000 µs", ""),
    ]
    assert [one.colour for bar in bars for one in bar.slices] == ["compute", "idle idle-0", "idle idle-1"] * 2


def test_both_bars_have_one_scale_and_a_part_below_zero_is_only_a_figure() -> None:
    (a, b), parts = side_accounts(rows(("compute", 600, 1_000), ("outside steps", -100, 0)), [])
    assert (a.width, b.width) == (60, 100)
    assert [one.name for one in a.slices] == ["compute"]
    assert [(part.a, part.difference) for part in parts] == [
        ("600.0 ns", "+400.0 ns"),
        ("-100.0 ns", "+100.0 ns"),
        ("500.0 ns", "+500.0 ns"),
    ]


@given(st.lists(st.tuples(TIMES, TIMES), min_size=5, max_size=5), st.lists(st.tuples(TIMES, TIMES)))
def test_the_slices_of_a_bar_fill_it(times: list[tuple[int, int]], idle: list[tuple[int, int]]) -> None:
    causes = [{"cause": str(n), "a_ns": a, "b_ns": b} for n, (a, b) in enumerate(idle)]
    steps = rows(*((name, a, b) for name, (a, b) in zip(NAMES, times, strict=True)))
    bars, _ = side_accounts(steps, causes)
    for bar in bars:
        assert not bar.slices or abs(sum(one.width for one in bar.slices) - 100) < 0.1
    assert not any(map(any, times)) or max(bar.width for bar in bars) == 100


def test_without_steps_there_are_no_bars() -> None:
    assert side_accounts([], IDLE) == ([], [])
