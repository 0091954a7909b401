"""The data of the heat map of ranks and steps."""

from __future__ import annotations

import gzip
import json
from statistics import median
from typing import Any

import numpy as np
import pytest

from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.report.page import heat_map as module
from hpcprof.report.page.heat_map import heat_map
from tests.data.parallel_program import Program
from tests.data.simulated_account import contents_of, simulated_account


def cells(data: dict[str, Any], name: str) -> np.ndarray[Any, Any]:
    """Return a quantity in nanoseconds, with one line a step and one column a rank."""
    (found,) = [one["cells"] for one in data["quantities"] if one["id"] == name]
    values = np.array([np.nan if cell is None else cell * data["unit_ns"] for cell in found])
    return values.reshape(len(data["steps"]), len(data["ranks"]))


def test_the_map_holds_each_part_of_the_account_to_four_digits() -> None:
    tables = simulated_account(Program(4, 600, slow={2: 6.0}))
    data = heat_map(contents_of(tables))
    assert data is not None
    assert (data["ranks"], data["steps"]) == ([0, 1, 2, 3], [0, 1, 2, 3, 4, 5])
    account = tables["step_account"].columns
    for name in ("wall", "compute", "exposed_comm", "wait_for_peer", "idle"):
        exact = np.array(account[f"{name}_ns"]).reshape(6, 4)
        assert cells(data, name) == pytest.approx(exact, rel=1e-3, abs=1_000)
    # No rank copies anything.
    assert "exposed_mem" not in {one["id"] for one in data["quantities"]}


def test_a_rank_is_late_by_what_the_median_of_the_others_waits_more() -> None:
    tables = simulated_account(Program(5, 300, slow={3: 6.0}))
    data = heat_map(contents_of(tables))
    assert data is not None
    late = cells(data, "lateness")
    waits = np.array(tables["step_account"].columns["wait_for_peer_ns"]).reshape(3, 5)
    for step, row in enumerate(waits.tolist()):
        for rank, own in enumerate(row):
            more = median(row[:rank] + row[rank + 1 :]) - own
            assert late[step, rank] == pytest.approx(max(0, more), rel=1e-3, abs=1_000)
    assert late[:, 3].min() > 5e6
    assert data["shown"] == "lateness"
    assert data["title"].startswith("Ranks and steps: rank 3 is late, which costs 5.")


def test_where_nobody_knows_who_waits_lateness_is_less_exposed_communication() -> None:
    tables = simulated_account(Program(4, 300, slow={1: 6.0}))
    account = tables["step_account"].columns
    both = zip(account["exposed_comm_ns"], account["wait_for_peer_ns"], strict=True)
    unknown = {
        "exposed_comm_ns": [exposed + waiting for exposed, waiting in both],
        "wait_for_peer_ns": [None] * len(account["rank"]),
    }
    data = heat_map(contents_of(tables | {"step_account": AnalysisTable(account | unknown)}))
    assert data is not None
    assert "wait_for_peer" not in {one["id"] for one in data["quantities"]}
    assert cells(data, "lateness")[:, 1].min() > 5e6


def test_the_map_shows_the_phases_that_take_the_most() -> None:
    tables = simulated_account(Program(2, 300))
    times = [
        (rank, step, name, time)
        for rank in (0, 1)
        for step in range(3)
        for name, time in (("a", 3_000_000), ("b", 2_000_000), ("none", 0))
        if (rank, step, name) != (1, 2, "b")
    ]
    columns = {name: [row[i] for row in times] for i, name in enumerate(("rank", "step", "phase", "wall_ns"))}
    data = heat_map(contents_of(tables | {"phase_times": AnalysisTable(columns)}))
    assert data is not None
    assert [one["label"] for one in data["quantities"]][-2:] == ["Phase a", "Phase b"]
    assert cells(data, "phase-0").tolist() == [[3e6, 3e6]] * 3
    assert np.isnan(cells(data, "phase-1")[2, 1]) and cells(data, "phase-1")[2, 0] == 2e6


def test_a_rank_without_a_step_has_an_empty_cell() -> None:
    times = {"rank": [0, 0, 7], "step": [3, 4, 3], "wall_ns": [5_000_000, 6_000_000, 5_500_000]}
    data = heat_map(contents_of({"step_times": AnalysisTable(times)}))
    assert data is not None
    assert (data["ranks"], data["steps"], data["shown"]) == ([0, 7], [3, 4], "wall")
    (wall,) = data["quantities"]
    assert [cell and cell * data["unit_ns"] for cell in wall["cells"]] == [5e6, 5.5e6, 6e6, None]
    assert data["hosts"] == ["node-000"] and data["host"] == [0, 0]


def test_of_more_steps_than_fit_the_slowest_of_each_block_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CELLS", 8)
    walls = [[5, 5], [5, 9], [5, 5], [5, 5], [7, 5], [6, 5], [5, 5], [5, 5], [8, 5]]
    rows = [(rank, step, wall) for step, row in enumerate(walls) for rank, wall in enumerate(row)]
    columns = {name: [row[i] for row in rows] for i, name in enumerate(("rank", "step", "wall_ns"))}
    data = heat_map(contents_of({"step_times": AnalysisTable(columns)}))
    assert data is not None
    assert data["steps"] == [1, 4, 8]
    assert "Of each 3 steps in a row, the one with the slowest rank is shown." in data["note"]


def test_no_steps_give_no_map() -> None:
    assert heat_map(contents_of({})) is None


def test_the_map_of_thousands_of_ranks_is_small() -> None:
    data = heat_map(contents_of(simulated_account(Program(4096, 5_000, slow={1234: 6.0}))))
    assert data is not None and len(data["quantities"]) == 6
    text = json.dumps(data, separators=(",", ":"))
    # In base64 a third more: a page of 4,096 ranks has 5 MB for all.
    assert len(gzip.compress(text.encode(), 6)) < 1_200_000
