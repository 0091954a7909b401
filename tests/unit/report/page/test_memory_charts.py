"""The charts of GPU memory over a step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.analysis.memory.contents import KINDS as CONTENT_KINDS
from hpcprof.report.contents import Contents
from hpcprof.report.page.chart_data import memory_charts
from hpcprof.runs.directory import Run

SECOND = 10**9
KINDS = (*CONTENT_KINDS, "fragmentation")


def _table(rows: list[dict[str, Any]]) -> AnalysisTable:
    return AnalysisTable({name: [row[name] for row in rows] for name in (rows[0] if rows else ())}, {})


def _contents(profiles: dict[int, Any], parts: list[dict[str, Any]]) -> Contents:
    key = {"rank": 1, "event": "step", "step": 5, "device": 0}
    snapshot = {**key, "peak_bytes": 300, "time_ns": 12 * SECOND, "complete": 1}
    series = [
        {**key, "time_ns": at * SECOND, **{f"{kind}_bytes": 0 for kind in KINDS}, "activations_bytes": size}
        for at, size in ((11, 100), (12, 300), (13, 200))
    ]
    tables = {
        "memory_snapshots": _table([snapshot]),
        "memory_over_step": _table(series),
        "step_parts": _table(parts),
    }
    return Contents(Run("r", Path("r")), None, [], profiles, tables, [], [], lambda *options: options[-1])


def test_the_time_begins_with_the_step_of_the_timeline() -> None:
    profile: Any = SimpleNamespace(start_utc_ns=8 * SECOND)
    (chart,) = memory_charts(_contents({1: profile}, [{"rank": 1, "step": 5, "start_ns": 2 * SECOND}]))
    assert chart["time_ns"] == [1 * SECOND, 2 * SECOND, 3 * SECOND]
    assert chart["peak_ns"] == 2 * SECOND
    assert "step in the timeline" in chart["note"]
    assert chart["parts"] == [["activations", [100, 300, 200], 3]]


def test_without_a_profile_it_begins_with_the_first_event() -> None:
    (chart,) = memory_charts(_contents({}, []))
    assert chart["time_ns"] == [0, SECOND, 2 * SECOND]
    assert chart["title"] == "GPU memory of rank 1 after step 5: 300 B at the peak"
