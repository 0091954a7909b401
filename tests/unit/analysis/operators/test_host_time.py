"""Host time in a CPU trace: operators compute, process groups communicate, threads are idle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcprof.analysis.account.step_account import nothing_ran
from hpcprof.analysis.framework.declaration import Scope
from hpcprof.analysis.framework.outcome import AnalysisTable, analyze_rank, joined_tables
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.operators.host_time import host_compute, idle_threads, measured_on_host
from hpcprof.profiles.readers.kineto.reader import read
from hpcprof.profiles.timeline import Timeline
from tests.unit.analysis.over_all_ranks import analyze

DATA = Path(__file__).parents[3] / "data"
MAIN, WORKER, LOADER = 1, 2, 3


def trace(path: Path, *events: tuple[str, str, int, int, int]) -> Timeline:
    """Read a trace of events: category, name, start, end, thread."""
    written = [
        {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": end - start, "pid": 1, "tid": tid}
        for cat, name, start, end, tid in events
    ]
    path = path / "rank0.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": written}), encoding="utf-8")
    return read(path)


def test_operators_that_call_or_wait_for_collectives_do_not_compute(tmp_path: Path) -> None:
    timeline = trace(
        tmp_path,
        ("cpu_op", "AddmmBackward0", 0, 20, MAIN),
        ("cpu_op", "c10d::allreduce_", 5, 9, MAIN),
        ("cpu_op", "aten::mm", 15, 30, LOADER),
        ("cpu_op", "_c10d_functional::wait_tensor", 40, 50, MAIN),
    )
    start, end = host_compute(timeline)
    assert (start.tolist(), end.tolist()) == ([0, 9000], [5000, 30_000])


@pytest.mark.parametrize(
    "loading", ["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "[pl]train_dataloader_next"]
)
def test_operators_that_load_the_next_batch_do_not_compute(tmp_path: Path, loading: str) -> None:
    timeline = trace(
        tmp_path,
        ("user_annotation", loading, 0, 20, MAIN),
        ("cpu_op", "aten::rot90", 5, 15, MAIN),
        ("cpu_op", "aten::mm", 12, 14, WORKER),
        ("cpu_op", "aten::mm", 30, 40, MAIN),
    )
    start, end = host_compute(timeline)
    assert (start.tolist(), end.tolist()) == ([12_000, 30_000], [14_000, 40_000])


def test_a_thread_that_executes_operators_only_inside_collectives_carries_them_out(tmp_path: Path) -> None:
    timeline = trace(
        tmp_path,
        ("cpu_op", "aten::mm", 0, 10, MAIN),
        ("user_annotation", "gloo:all_gather", 20, 40, WORKER),
        ("cpu_op", "aten::copy_", 25, 30, WORKER),
        # Versions that begin a work on the thread of the call.
        ("user_annotation", "gloo:all_reduce", 5, 60, MAIN),
        ("cpu_op", "aten::add_", 50, 70, MAIN),
    )
    start, end = host_compute(timeline)
    assert (start.tolist(), end.tolist()) == ([0, 50_000], [10_000, 70_000])
    assert idle_threads(timeline).rows["tid"].tolist() == [MAIN]


@pytest.mark.parametrize(("steps", "span"), [(0, 80_000), (2, 60_000)])
def test_a_thread_is_idle_in_the_time_of_the_steps_in_which_it_executes_no_operator(
    tmp_path: Path, steps: int, span: int
) -> None:
    marks = [("user_annotation", "iteration", start, start + 30, MAIN) for start in (10, 50)][:steps]
    rows = idle_threads(
        trace(
            tmp_path,
            *marks,
            ("cpu_op", "aten::linear", 20, 30, MAIN),
            ("cpu_op", "aten::addmm", 22, 28, MAIN),
            ("cpu_op", "aten::stack", 5, 15, LOADER),
            ("cpu_op", "aten::stack", 75, 85, LOADER),
        )
    ).rows
    busy = {MAIN: 10_000, LOADER: 20_000 if not steps else 10_000}
    assert dict(zip(rows["tid"], rows["busy_ns"], strict=True)) == busy
    assert (rows["busy_ns"] + rows["idle_ns"]).tolist() == [span, span] == rows["span_ns"].tolist()
    assert dict(zip(rows["tid"], rows["operators"], strict=True)) == {MAIN: 2, LOADER: 2}


@pytest.fixture(scope="module")
def recorded() -> dict[str, AnalysisTable]:
    """All analyses of two ranks of a real training with gloo; rank 1 sleeps 20 ms in ``data``."""
    ranks = [read(DATA / f"cpu_ddp_rank{rank}.pt.trace.json.gz") for rank in (0, 1)]
    found: dict[str, AnalysisTable] = {}
    for name, analysis in sorted(ANALYSES.items(), key=lambda item: item[1].scope is not Scope.RANK):
        if analysis.scope is Scope.RANK:
            found[name] = joined_tables(
                [analyze_rank(analysis, timeline, rank) for rank, timeline in enumerate(ranks)]
            )
        elif not {"ncu_peaks", "critical_path"} & {*analysis.needs}:
            found[name] = analyze(analysis, found)
    return found


def rows(recorded: dict[str, AnalysisTable], name: str) -> list[dict[str, Any]]:
    return recorded[name].frame.to_dict("records")  # type: ignore[return-value]


def test_the_account_of_a_cpu_trace_adds_up_and_finds_the_late_rank(
    recorded: dict[str, AnalysisTable],
) -> None:
    parts = ("compute_ns", "exposed_comm_ns", "wait_for_peer_ns", "exposed_mem_ns", "idle_ns")
    account = rows(recorded, "step_account")
    assert len(account) == 12
    assert all(sum(row[part] for part in parts) == row["wall_ns"] for row in account)
    waits = {rank: [row["wait_for_peer_ns"] for row in account if row["rank"] == rank] for rank in (0, 1)}
    # Not far from the 20 ms that rank 1 sleeps.
    assert sorted(waits[0])[3] == pytest.approx(19.7e6, abs=1e6)
    assert waits[1] == [0] * 6
    causes = rows(recorded, "idle_causes")
    (slept,) = [one for one in causes if one["rank"] == 1 and one["range"] == "data"]
    assert (slept["cause"], slept["api"]) == ("host", None)
    assert slept["idle_ns_per_step"] == pytest.approx(20.3e6, abs=1e5)


def test_the_collectives_of_gloo_are_matched_and_judged(recorded: dict[str, AnalysisTable]) -> None:
    found = recorded["collectives"].frame
    assert found["op"].tolist() == ["AllReduce"] * 12
    # Buckets of 2 and of 1 linear layers of 256 x 256 floats with their biases.
    assert sorted({*found["bytes"]}) == [263_168, 526_336]
    assert {*found["last_rank"]} == {1}
    late = {row["rank"]: row for row in rows(recorded, "skew")}
    # The two cores were busy, so the ends of the collectives align the clocks too roughly for a verdict.
    assert (late[1]["pct_last"], late[0]["pct_last"]) == (100.0, 0.0)
    assert late[1]["lateness_p50_ns"] == pytest.approx(20e6, abs=1e6)


def test_steps_phases_and_operators_are_measured_on_the_host(recorded: dict[str, AnalysisTable]) -> None:
    assert rows(recorded, "steps_summary")[0]["steps"] == 6
    phases = [row["phase"] for row in rows(recorded, "phases") if row["rank"] == 1]
    assert phases == ["data", "forward", "backward", "optimizer", "(rest)"]
    operators = {row["name"]: row for row in rows(recorded, "operators") if row["rank"] == 0}
    # A linear layer forward, and two products backward but for the input of the first layer.
    assert (operators["aten::addmm"]["calls"], operators["aten::mm"]["calls"]) == (18, 30)


def test_a_program_whose_device_has_no_events_is_not_measured_on_the_host(tmp_path: Path) -> None:
    operator = ("cpu_op", "aten::mm", 0, 20, MAIN)
    assert measured_on_host(trace(tmp_path, operator))
    for lost in (("mtia_runtime", "launch", 1, 2, MAIN), ("cuda_runtime", "cudaLaunchKernel", 1, 2, MAIN)):
        timeline = trace(tmp_path, operator, lost)
        assert not measured_on_host(timeline)
        assert "the work of the device is not in" in nothing_ran(timeline)
