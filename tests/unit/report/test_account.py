"""What the wall time of a step goes to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hpcprof.report.account import Account, account_lines, account_of_step, account_title
from hpcprof.report.contents import Contents
from hpcprof.results.analysis_table import AnalysisTable
from hpcprof.submit.runs.directory import Run

NAMES = ("compute_ns", "exposed_comm_ns", "wait_for_peer_ns", "exposed_mem_ns", "idle_ns")
PARTS = st.tuples(st.integers(1, 10**9), *[st.integers(0, 10**9)] * 4)


def account(
    rows: Sequence[tuple[int, int, tuple[int | None, ...]]], *causes: tuple[str, str, int]
) -> Account:
    """The account of rows of (rank, step, parts), and of causes of idle time as (cause, range, ns)."""
    table: dict[str, list[Any]] = {
        "rank": [rank for rank, _, _ in rows],
        "step": [step for _, step, _ in rows],
        "wall_ns": [sum(part or 0 for part in parts) for _, _, parts in rows],
    }
    for column, name in enumerate(NAMES):
        table[name] = [parts[column] for _, _, parts in rows]
    idle: dict[str, list[Any]] = {
        "rank": [0] * len(causes),
        "cause": [cause for cause, _, _ in causes],
        "range": [name for _, name, _ in causes],
        "idle_ns_per_step": [ns for _, _, ns in causes],
    }
    analyses = {"step_account": AnalysisTable(table), "idle_causes": AnalysisTable(idle)}
    made = account_of_step(Contents(Run("r", Path("r")), None, [], {}, analyses, [], [], str))
    assert made is not None
    return made


@given(st.integers(1, 4).flatmap(lambda ranks: st.lists(st.tuples(*[PARTS] * ranks), min_size=1)))
def test_the_parts_add_up_to_the_median_step_exactly(steps: list[tuple[tuple[int, ...], ...]]) -> None:
    rows = [(rank, step, parts) for step, ranks in enumerate(steps) for rank, parts in enumerate(ranks)]
    made = account(rows, ("host", "data", 3), ("sync", "", 7))
    assert sum(part.ns for part in made.parts) == made.wall_ns
    longest = sorted(max(map(sum, ranks)) for ranks in steps)
    middle = longest[(len(longest) - 1) // 2], longest[len(longest) // 2]
    assert made.wall_ns == round(sum(middle) / 2)


def test_idle_time_is_divided_by_its_causes_with_the_ranges_that_have_most() -> None:
    causes = [("host", "data", 300), ("host", "", 100), ("sync", "forward", 400)]
    made = account([(0, 0, (1000, 0, 0, 0, 80))], *causes)
    found = {part.name: (part.ns, part.where) for part in made.parts}
    assert found == {
        "compute": (1000, ""),
        "idle: host is busy": (40, "data"),
        "idle: synchronization": (40, "forward"),
    }


def test_what_the_slowest_rank_takes_longer_than_the_others_is_a_part() -> None:
    made = account([(0, 0, (100, 0, 0, 0, 0)), (1, 0, (60, 0, 0, 0, 0))])
    assert [(part.name, part.ns) for part in made.parts] == [("compute", 80), ("uneven steps", 20)]
    assert "slowest rank" in made.notes[-1]
    assert account_title(made) == "100.0 ns (median of 1 step on the slowest of 2 ranks)"


def test_waiting_that_is_unknown_is_said() -> None:
    made = account([(0, 0, (100, 9, None, 0, 0)), (1, 0, (60, 0, 49, 0, 0))])
    assert "their waiting counts as communication" in made.notes[-1]


def test_no_figure_is_cut_in_a_narrow_terminal() -> None:
    made = account([(0, 0, (1_000_000, 200_000, 30_000, 0, 1))])
    for width in (24, 40, 80):
        lines = account_lines(made, width)
        assert max(map(len, lines)) <= width
        assert all(figure in line for figure, line in zip(("81.3 %", "16.3 %", "2.4 %"), lines, strict=False))
    assert lines[0].count("█") == 16


def test_a_run_without_steps_has_no_account() -> None:
    assert account_of_step(Contents(Run("r", Path("r")), None, [], {}, {}, [], [], str)) is None
