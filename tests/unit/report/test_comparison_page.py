"""The page of a comparison."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from hpcprof.analysis.comparison.run_differences import Difference
from hpcprof.analysis.framework.declaration import Kind
from hpcprof.analysis.framework.outcome import AnalysisTable
from hpcprof.analysis.framework.registry import ACROSS_RUNS
from hpcprof.report.comparison import Comparison
from hpcprof.report.comparison_page import html_comparison
from hpcprof.results.across.across_runs import DIFFERENCES
from hpcprof.results.store.store import open_store
from hpcprof.runs.directory import Run
from tests.unit.report.page.test_page import rows_of

HOSTILE = "</script><script>alert(1)</script>"


def rows(name: str, *chosen: dict[str, Any]) -> AnalysisTable:
    """Build an analysis; columns that are not chosen hold a hostile text or 1."""
    columns = ACROSS_RUNS[name].columns
    default = {one.name: HOSTILE if one.kind is Kind.TEXT else 1 for one in columns}
    return AnalysisTable({one.name: [(default | row)[one.name] for row in chosen] for one in columns})


@pytest.fixture
def page(tmp_path: Path) -> str:
    parts = [
        {"part": name, "a_ns": a, "b_ns": b, "difference_ns": b - a}
        for name, a, b in (("step", 100, 150), ("compute", 80, 90), ("idle", 20, 60))
    ]
    tables = {name: rows(name, {}) for name in DIFFERENCES} | {
        "step_difference": rows("step_difference", *parts)
    }
    metric = {"metric": "step_p50_ns", "a": 1e6, "b": 2e6, "verdict": "regression"}
    a, b = Run("before", tmp_path / "a"), Run(HOSTILE, tmp_path / "b")
    differing = [Difference("commit", ("123",), (HOSTILE,))]
    compared = Comparison([a], [b], ACROSS_RUNS["compare"], rows("compare", metric), tables, differing)
    return html_comparison(compared, open_store(None, tmp_path))


def test_the_waterfall_of_the_page_adds_up_to_the_difference(page: str) -> None:
    (packed,) = re.findall(r'id="waterfall-data">([^<]*)<', page)
    found = json.loads(gzip.decompress(b64decode(packed)))
    assert (found["from"], found["to"]) == (100, 150)
    assert sum(part["ns"] for part in found["parts"]) == 50
    assert "+50 ns a step: idle +40, compute +10" in page


def test_a_hostile_name_is_text(page: str) -> None:
    assert HOSTILE not in page
    assert "&lt;/script&gt;" in page


def test_the_page_has_all_tables_and_the_metrics_have_their_units(page: str) -> None:
    for name in (*DIFFERENCES, "compare"):
        assert f'id="table-{name}"' in page
    texts = [column.get("texts") for column in rows_of(page, "compare")["columns"]]
    assert ["1.000 ms"] in [text[:1] for text in texts if text]
    assert ["2.000 ms"] in [text[:1] for text in texts if text]
