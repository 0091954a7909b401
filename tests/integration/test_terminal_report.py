"""The report in terminals of several widths."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.outcome import AnalysisTable, analyze_rank
from hpcprof.analysis.framework.registry import ACROSS_RUNS, ANALYSES
from hpcprof.cli.tables import write_analysis
from hpcprof.profiles.kernel_report import KernelReport
from hpcprof.profiles.readers.discovery import read_profile
from hpcprof.profiles.timeline import CpuCounters, OsCalls, Timeline
from hpcprof.report.formatting import cell, header
from tests.data import nsys_metrics, rocprof_profiles
from tests.integration.conftest import unpack, unpack_mpi
from tests.unit.analysis.explain.programs import MS, Host, Launch, Mpi, Wait, simulate

DATA = Path(__file__).parents[1] / "data"
SAMPLES = (
    *(f"ncu/{name}.csv.gz" for name in ("ddp.raw", "sp.details")),
    *(f"{name}_rank0.pt.trace.json.gz" for name in ("allocator", "ddp_step", "operators", "cpu_ddp")),
)
"""Real profiles that no test unpacks."""
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


Print = Callable[[int], list[str]]


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> list[Timeline | KernelReport]:
    """Profiles that together have all that is analyzed; the last one, simulated, has GPUs and MPI."""
    folder = tmp_path_factory.mktemp("samples")
    modules = folder / "rank0.pt.trace.json"
    modules.write_text(json.dumps({"traceEvents": [MODULE]}), encoding="utf-8")
    for unpacked, name in ((unpack, "gpu"), (unpack_mpi, "mpi")):
        unpacked(folder / name)
    exports = [folder / name / "rank0.sqlite" for name in ("gpu", "mpi")]
    exports.append(rocprof_profiles.write_database(folder / "rank0.db"))
    samples = nsys_metrics.gpu([(at * MS, 0, nsys_metrics.CLOCK, 1755) for at in (100, 105, 120)])
    exports.append(nsys_metrics.write(folder / "metrics.sqlite", samples))
    real = [read_profile(path) for path in (*exports, modules, *map(DATA.joinpath, SAMPLES))]
    with_mpi = simulate([[Host(MS), Launch(MS), Wait(), Mpi(MS)]] * 2, 3)[0]
    calls = with_mpi.mpi_calls
    start, end = np.array([[calls.start.min()], [calls.end.max()]])
    process, thread, text = calls.process[:1], calls.thread[:1], calls.name[:1]
    counted = CpuCounters(start, end, process, thread, text, np.array([10**9]))
    called = OsCalls(start, end, process, thread, text)
    return [*real, replace(with_mpi, os_calls=called, cpu_counters=counted)]


@pytest.fixture
def stored(name: str, profiles: list[Timeline | KernelReport]) -> AnalysisTable:
    """The first rows of an analysis, of the profile that has the most figures in them."""

    def figures(table: AnalysisTable) -> int:
        return sum(value is not None for row in table.rows for value in row.values())

    outcomes = [analyze_rank(ANALYSES[name], profile, 0).columns for profile in profiles]
    found = max(
        (AnalysisTable({key: values[:3] for key, values in columns.items()}, {}) for columns in outcomes),
        key=figures,
    )
    assert found.rows
    return found


@pytest.fixture
def printed(
    name: str, stored: AnalysisTable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Print:
    """Print the analysis in a terminal of a width; return the lines."""

    def lines(width: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        write_analysis("table", ANALYSES[name], stored)
        return capsys.readouterr().out.splitlines()

    return lines


@pytest.mark.parametrize("name", OF_RANK)
def test_in_a_narrow_terminal_no_figure_is_cut(name: str, stored: AnalysisTable, printed: Print) -> None:
    for width in (20, 40):
        lines = printed(width)
        assert all(len(line) <= width for line in lines)
        shown, _, left_out = "\n".join(lines).partition("(not shown:")
        missing = " ".join(left_out.partition(";")[0].split()).split(", ")
        columns = [column.name for column in ANALYSES[name].columns if header(column.name) not in missing]
        assert columns
        for row in stored.rows:
            for key in columns:
                assert isinstance(row[key], str) or cell(key, row[key]) in shown, (width, key)


@pytest.mark.parametrize("name", OF_RANK)
def test_every_figure_that_is_shown_is_shown_whole(name: str, stored: AnalysisTable, printed: Print) -> None:
    for width in (80, 100, 240):
        lines = printed(width)
        assert all(len(line) <= width for line in lines)
        for key in ANALYSES[name].shown_columns:
            values = [row[key] for row in stored.rows]
            # A narrow terminal has no column without values.
            for value in values if any(value is not None for value in values) else ():
                if not isinstance(value, str):
                    assert any(cell(key, value) in line for line in lines), (width, key)


_RATIO = {"ci_low": 1.0234, "ci_high": 1.1234}
_SLOWER = {"alone_n": 12345, "alone_med_ns": 1234.5, "overlapped_n": 12345, "overlapped_med_ns": 1434567.5}
OVER_RUNS: dict[str, dict[str, Any]] = {
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
    | _RATIO
    | dict.fromkeys(
        (
            *("global_efficiency_pct", "parallel_efficiency_pct", "load_balance_pct"),
            *("communication_efficiency_pct", "computation_scaling_pct", "instruction_scaling_pct"),
            *("ipc_scaling_pct", "frequency_scaling_pct"),
        ),
        99.99,
    ),
    "scaling_models": {"program": "stencil", "kind": "strong", "parameters": "x=1 " * 50}
    | {"part": "MPI_Allreduce", "model": "12.34 ms + 1.234 µs * p^1.33 * log2(p)"}
    | {"error_pct": 12.34, "sizes": 7, "largest_ranks": 512, "time_ns": 123456789, "share_pct": 99.99}
    | {"dominates_from": 12345, "dominates_low": 12345, "dominates_high": 123456},
}


@pytest.mark.parametrize("width", [80, 240])
@pytest.mark.parametrize("name", OVER_RUNS)
def test_tables_over_several_runs_fit_with_their_figures(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis, row = ACROSS_RUNS[name], OVER_RUNS[name]
    assert list(row) == [column.name for column in analysis.columns]
    monkeypatch.setenv("COLUMNS", str(width))
    write_analysis("table", analysis, AnalysisTable({key: [value] for key, value in row.items()}, {}))
    out = capsys.readouterr().out
    # A command is not wrapped: it can be copied.
    assert all(len(line) <= width for line in out.splitlines() if ": hpcprof report" not in line)
    for key in ("ratio", "slowdown", "speedup", "ci_low", "ci_high", "efficiency"):
        assert key not in row or f"{row[key]:.3f}" in out
    assert "123.5 ms" in out or name.startswith("slowdown")
