"""The tables of the HTML page."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hpcprof.analysis.framework.declaration import Kind
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.report.contents import Contents
from hpcprof.report.html import html_report
from hpcprof.report.terminal import analysis_report
from hpcprof.results.analysis_table import AnalysisTable
from hpcprof.submit.runs.directory import Run

ROWS = 130


@pytest.fixture(scope="module")
def page() -> str:
    """The page of a run whose tables hold the same value in every row."""
    profile: Any = SimpleNamespace(kind="nsys", profiler_version="2025.3", devices="NVIDIA H200")
    return html_report(Contents(Run("r", Path("r")), None, [], {0: profile}, tables(), [], []))


def tables() -> dict[str, AnalysisTable]:
    made = {}
    for name, analysis in ANALYSES.items():
        rows = ROWS if name == "kernels" else 1
        columns = {
            c.name: ["x" if c.kind is Kind.TEXT else 0 if c.name == "rank" else 12] * rows
            for c in analysis.columns
        }
        made[name] = AnalysisTable(columns, {})
    return made


def headers(page: str, name: str) -> list[str]:
    (table,) = re.findall(rf'id="{name}">.*?<thead>(.*?)</thead>', page, flags=re.DOTALL)
    return [unescape(text) for text in re.findall(r"<th.*?>(.*?)</th>", table)]


@pytest.mark.parametrize(
    "name", ["breakdown", "overlap", "phases", "steps_summary", "skew", "collectives_summary"]
)
def test_the_page_and_the_terminal_have_the_same_headers(name: str, page: str) -> None:
    console = Console(width=400)
    with console.capture() as output:
        console.print(analysis_report(ANALYSES[name], tables()[name], 400))
    first = output.get().splitlines()[0]
    assert re.split(r" {2,}", first.strip()) == headers(page, name)


def test_rows_that_the_page_leaves_out_are_counted(page: str) -> None:
    assert "30 more rows: hpcprof report --analysis kernels" in page


def test_the_profiler_is_named_with_its_version(page: str) -> None:
    assert "1 rank, nsys 2025.3" in page
