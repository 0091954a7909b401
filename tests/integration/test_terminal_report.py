"""The report in terminals of several widths."""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
from hpcprof.cli.tables import show_analysis
from hpcprof.profiles.readers.declaration import ProfileContent
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.report.formatting import cell, header
from hpcprof.results.analysis_table import AnalysisTable, Row

DATA = Path(__file__).parents[1] / "data"
ALLOCATOR, DATA_PARALLEL = (f"{name}_rank0.pt.trace.json.gz" for name in ("allocator", "ddp_step"))
OF_TRACES = {
    "memory_usage": ALLOCATOR,
    "hta_breakdown": ALLOCATOR,
    "slowdown": DATA_PARALLEL,
    **dict.fromkeys(
        ("operators", "operators_by_shape", "operator_kernels"), "operators_rank0.pt.trace.json.gz"
    ),
    "idle_threads": "cpu_ddp_rank0.pt.trace.json.gz",
}
MODULE = {
    "ph": "X",
    "cat": "python_function",
    "name": "nn.Module: Net_0",
    "pid": 1,
    "tid": 1,
    "ts": 0,
    "dur": 9,
}
OF_RANK = [name for name, analysis in ANALYSES.items() if analysis.scope is Scope.RANK]


@dataclass(frozen=True)
class Printed:
    """The first rows of an analysis of a real profile, and the lines that were printed of them."""

    rows: list[Row]
    lines: list[str]


@pytest.fixture
def printed(
    name: str,
    width: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Printed:
    """Print an analysis in a terminal of a width; both are parameters of the test."""
    export = tmp_path / "rank0.sqlite"
    export.write_bytes(lzma.decompress((DATA / "sp_bf16_rank0.sqlite.xz").read_bytes()))
    path = DATA / OF_TRACES[name] if name in OF_TRACES else export
    if ANALYSES[name].reads is ProfileContent.KERNEL_REPORT:
        path = DATA / "ncu/ddp.raw.csv.gz"
    if name == "modules":
        path = tmp_path / "rank0.pt.trace.json"
        path.write_text(json.dumps({"traceEvents": [MODULE]}), encoding="utf-8")
    outcome = analyze_rank(ANALYSES[name], read_profile(path), 0)
    stored = AnalysisTable({key: values[:3] for key, values in outcome.columns().items()}, {})
    assert stored.rows
    monkeypatch.setenv("COLUMNS", str(width))
    show_analysis(ANALYSES[name], stored)
    return Printed(stored.rows, capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("width", [20, 40])
@pytest.mark.parametrize("name", OF_RANK)
def test_in_a_narrow_terminal_no_figure_is_cut(name: str, width: int, printed: Printed) -> None:
    assert all(len(line) <= width for line in printed.lines)
    shown, _, left_out = "\n".join(printed.lines).partition("(not shown: ")
    missing = " ".join(left_out.partition(";")[0].split()).split(", ")
    columns = [column.name for column in ANALYSES[name].columns if header(column.name) not in missing]
    assert columns
    for row in printed.rows:
        for key in columns:
            assert isinstance(row[key], str) or cell(key, row[key]) in shown, key


@pytest.mark.parametrize("width", [80, 100, 240])
@pytest.mark.parametrize("name", OF_RANK)
def test_every_figure_that_is_shown_is_shown_whole(name: str, width: int, printed: Printed) -> None:
    assert all(len(line) <= width for line in printed.lines)
    columns = ANALYSES[name].shown_columns
    for row in printed.rows:
        for key in columns:
            if not isinstance(row[key], str):
                assert any(cell(key, row[key]) in line for line in printed.lines), key


_RATIO = {"ci_low": 1.0234, "ci_high": 1.1234}
_SLOWER = {"alone_n": 12345, "alone_med_ns": 1234.5, "overlapped_n": 12345, "overlapped_med_ns": 1434567.5}
OVER_RUNS = {
    "compare": {"metric": "phase reduce_scatter p50_ns", "a": 123456789.0, "b": 1.0, "ratio": 1.0512}
    | _RATIO
    | {"n_a": 5, "n_b": 5, "verdict": "inconclusive"},
    "slowdown_pairs": {"rank": 511, "name": "k" * 200, "grid": "1 1 1", "block": "1 1 1"}
    | _SLOWER
    | {"slowdown": 1.0512}
    | _RATIO
    | {"overlap_pct": 12.34},
    "slowdown_by_overlap": {
        "rank": 511,
        "family": "matrix product",
        "covered": ">= 90 %",
        "overlap_pct": 99.99,
    }
    | _SLOWER
    | {"slowdown": 1.0512}
    | _RATIO,
    "scaling": {"program": "sequence-parallel", "workload": "sequence-parallel", "kind": "strong"}
    | {"parameters": "x=1 " * 50, "ranks": 512}
    | {"nodes": 128, "runs": 5, "step_p50_ns": 123456789, "speedup": 1.2345, "efficiency": 0.9999}
    | _RATIO,
}


@pytest.mark.parametrize("width", [80, 240])
@pytest.mark.parametrize("name", OVER_RUNS)
def test_tables_over_several_runs_fit_with_their_figures(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis, row = ACROSS_RUNS[name], OVER_RUNS[name]
    assert list(row) == [column.name for column in analysis.columns]
    monkeypatch.setenv("COLUMNS", str(width))
    show_analysis(analysis, AnalysisTable({key: [value] for key, value in row.items()}, {}))
    out = capsys.readouterr().out
    # A command is not wrapped: it can be copied.
    assert all(len(line) <= width for line in out.splitlines() if ": hpcprof report" not in line)
    for key in ("ratio", "slowdown", "speedup", "ci_low", "ci_high", "efficiency"):
        assert key not in row or f"{row[key]:.3f}" in out
    assert "123.5 ms" in out or name.startswith("slowdown")
