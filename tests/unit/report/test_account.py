"""The account of the elapsed time of a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.analysis.steps.step_set import StepRule, StepSet
from hpcprof.report.account import Account, account_lines, account_title, accounts_of_steps
from hpcprof.report.contents import Contents
from hpcprof.runs.directory import Run

NAMES = ("compute_ns", "exposed_comm_ns", "wait_for_peer_ns", "exposed_mem_ns", "idle_ns", "uneven_ns")


def accounts(
    *kinds: tuple[int | None, ...],
    ranks: int = 1,
    causes: Sequence[tuple[str, str, int]] = (),
    by_step: Sequence[tuple[int, str, str, int]] = (),
    counted: int | None = None,
) -> list[Account]:
    """The accounts of all steps and of each kind, with causes of idle time as (cause, range, ns).

    ``by_step`` has those of rank 0 as (step, cause, range, ns); the kind of a step is its number.
    """
    rows = [
        {"counted_steps": counted, "once_steps": 0}
        | {"kind": kind, "steps": 8 >> (kind > 0), "share_pct": 100 / (1 + (kind > 0)), "wall_p50_ns": 90}
        | {"elapsed_ns": sum(part or 0 for part in parts)}
        | dict(zip(NAMES, parts, strict=True))
        for kind, parts in enumerate(kinds)
    ]
    idle: dict[str, list[Any]] = {
        "rank": [0] * len(causes),
        "cause": [cause for cause, _, _ in causes],
        "range": [name for _, name, _ in causes],
        "idle_ns_per_step": [ns for _, _, ns in causes],
    }
    table = AnalysisTable({name: [row[name] for row in rows] for name in rows[0]})
    waits: dict[str, list[Any]] = {
        "rank": [*range(ranks)],
        "wait_for_peer_ns": [kinds[0][2], *[0] * (ranks - 1)],
        "step": [0] * ranks,
        "kind": [0] * ranks,
    }
    if by_step:
        steps = sorted({step for step, *_ in by_step})
        waits = {"rank": [0] * len(steps), "wait_for_peer_ns": [0] * len(steps)}
        waits |= {"step": steps, "kind": steps}
    step, cause, name, time = map(list, zip(*by_step, strict=True)) if by_step else ([], [], [], [])
    divided = {"rank": [0] * len(step), "step": step, "cause": cause, "range": name, "idle_ns": time}
    analyses = {
        "step_kinds": table,
        "step_account": AnalysisTable(waits),
        "idle_causes": AnalysisTable(idle),
        "step_idle_causes": AnalysisTable(divided),
    }
    return accounts_of_steps(Contents(Run("r", Path("r")), None, [], {}, analyses, [], [], str))


def account(parts: tuple[int | None, ...], *causes: tuple[str, str, int], ranks: int = 1) -> Account:
    """The account of all steps."""
    (made,) = accounts(parts, ranks=ranks, causes=causes)
    return made


@given(st.tuples(st.integers(1, 10**9), *[st.integers(0, 10**9)] * 5))
def test_the_parts_add_up_to_the_elapsed_time_exactly(parts: tuple[int, ...]) -> None:
    made = account(parts, ("host", "data", 3), ("sync", "", 7))
    assert sum(part.ns for part in made.parts) == made.elapsed_ns == sum(parts)


def test_idle_time_is_divided_by_its_causes_with_the_ranges_that_have_most() -> None:
    causes = [("host", "data", 300), ("host", "", 100), ("sync", "forward", 400)]
    made = account((1000, 0, 0, 0, 80, 0), *causes)
    found = {part.name: (part.ns, part.where) for part in made.parts}
    assert found == {
        "compute": (1000, ""),
        "idle: host is busy": (40, "data"),
        "idle: synchronization": (40, "forward"),
    }


def test_elapsed_time_that_ranks_do_not_spend_in_steps_is_a_part() -> None:
    made = account((80, 0, 0, 0, 0, 20), ranks=2)
    assert [(part.name, part.ns) for part in made.parts] == [("compute", 80), ("outside steps", 20)]
    assert "do not spend in steps" in made.notes[-1]
    assert account_title(made) == (
        "A step takes 100.0 ns (elapsed time per step of 8 steps on 2 ranks; median 90.00 ns)"
    )


def test_an_account_says_which_steps_it_averages() -> None:
    (made,) = accounts((80, 0, 0, 0, 0, 20), counted=7)
    assert "elapsed time per step of 7 of 8 steps; median of all 8: 90.00 ns" in account_title(made)
    assert made.notes[0] == "The parts are means over 7 of 8 steps (without 1 whose end is unknown)."
    of_ten = msgspec.structs.replace(
        made, steps=StepSet(10, ((StepRule.COMMON, 2), (StepRule.ENDED, 1))), ranks=2
    )
    assert "of 7 of 8 steps on 2 ranks; median of all 8:" in account_title(of_ten)


def test_each_kind_of_steps_has_its_account_below_that_of_all() -> None:
    every, first, second = accounts((80, 20, 0, 0, 10, 0), (80, 0, 0, 0, 10, 0), (80, 40, 0, 0, 10, 0))
    assert (every.elapsed_ns, first.elapsed_ns, second.elapsed_ns) == (110, 90, 130)
    assert account_title(second) == (
        "Kind 2 of 2, 50 % of the steps: 130.0 ns (elapsed time per step of 4 steps; median 90.00 ns)"
    )


def test_the_idle_time_of_each_kind_is_divided_by_the_causes_in_its_steps() -> None:
    by_step = [(1, "host", "data", 10), (2, "sync", "log", 30), (2, "host", "data", 10)]
    causes = [("host", "data", 20), ("sync", "log", 30)]
    parts = ((80, 0, 0, 0, 50, 0), (80, 0, 0, 0, 10, 0), (80, 0, 0, 0, 80, 0))
    found = accounts(*parts, causes=causes, by_step=by_step)
    idle = [
        {part.name: (part.ns, part.where) for part in one.parts if part.colour == "idle"} for one in found
    ]
    host, sync = "idle: host is busy", "idle: synchronization"
    assert idle == [
        {sync: (30, "log"), host: (20, "data")},
        {host: (10, "data")},
        {sync: (60, "log"), host: (20, "data")},
    ]


def test_waiting_that_is_unknown_is_said() -> None:
    made = account((100, 9, None, 0, 0, 0), ranks=2)
    assert "their waiting counts as communication" in made.notes[-1]


def test_no_figure_is_cut_in_a_narrow_terminal() -> None:
    made = account((1_000_000, 200_000, 30_000, 0, 1, 0))
    for width in (24, 40, 80):
        lines = account_lines(made, width)
        assert max(map(len, lines)) <= width
        assert all(figure in line for figure, line in zip(("81.3 %", "16.3 %", "2.4 %"), lines, strict=False))
    assert lines[0].count("█") == 16


def test_bars_leave_room_for_the_ranges_of_idle_time() -> None:
    made = account((100, 0, 0, 0, 900, 0), ("host", "data", 900), ("host", "backward", 450))
    lines = account_lines(made, 80)
    assert "█" in lines[1] and lines[1].endswith("  in data and backward")
    assert max(map(len, lines)) <= 80


def test_a_run_without_steps_has_no_account() -> None:
    assert not accounts_of_steps(Contents(Run("r", Path("r")), None, [], {}, {}, [], [], str))
