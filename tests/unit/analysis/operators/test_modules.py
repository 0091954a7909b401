"""The modules of a PyTorch program, and the work that they cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcprof.analysis.framework.outcome import analyze_rank
from hpcprof.analysis.framework.registry import ANALYSES
from hpcprof.analysis.operators.operators import modules
from hpcprof.profiles.readers.kineto.reader import read
from hpcprof.profiles.scrub.names import Names
from hpcprof.profiles.scrub.torch import scrub
from hpcprof.profiles.timeline import Timeline
from hpcprof.report.trace_events import export_timelines
from hpcprof.results.collect.timelines import Timelines

MAIN, AUTOGRAD, GPU = 1, 2, 0


def event(cat: str, name: str, start: int, end: int, tid: int = MAIN, **args: Any) -> dict[str, Any]:
    pid = GPU if cat == "kernel" else 1
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": start,
        "dur": end - start,
        "pid": pid,
        "tid": tid,
        "args": args,
    }


def launched(correlation: int, call: int, start: int, end: int, tid: int = MAIN) -> list[dict[str, Any]]:
    return [
        event("cuda_runtime", "cudaLaunchKernel", call, call + 1, tid, correlation=correlation),
        event("kernel", "gemm", start, end, 7, correlation=correlation, device=0, stream=7),
    ]


def arrow(number: int, start: int, end: int) -> list[dict[str, Any]]:
    common = {"cat": "fwdbwd", "name": "fwdbwd", "id": number, "pid": 1}
    return [
        common | {"ph": "s", "tid": MAIN, "ts": start},
        common | {"ph": "f", "tid": AUTOGRAD, "ts": end},
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a trace of a network of two layers, forward and backward."""
    events = [
        event("python_function", "train.py(3): step", 0, 100),
        event("python_function", "nn.Module: Net_0", 0, 50),
        event("python_function", "nn.Module: Linear_0", 5, 20),
        event("python_function", "nn.Module: Linear_1", 25, 40),
        *(event("cpu_op", "aten::linear", start, start + 10) for start in (8, 28)),
        *(event("cpu_op", "AddmmBackward0", start, start + 10, AUTOGRAD) for start in (60, 75)),
        event("cpu_op", "aten::mm", 62, 68, AUTOGRAD),
        *(launched(1, 10, 12, 19) + launched(2, 30, 33, 43) + launched(3, 45, 46, 47)),
        *(launched(4, 63, 64, 84, AUTOGRAD) + launched(5, 78, 90, 95, AUTOGRAD) + launched(6, 98, 98, 99)),
        *(arrow(1, 28, 60) + arrow(2, 8, 75)),
    ]
    written = tmp_path / "rank0.pt.trace.json"
    written.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return written


def rows(timeline: Timeline) -> dict[str, dict[str, Any]]:
    return {str(row["name"]): dict(row) for row in modules(timeline).rows.to_dict("records")}  # type: ignore[arg-type]


def test_a_module_has_the_time_of_its_calls_and_of_the_modules_inside(path: Path) -> None:
    found = rows(read(path))
    assert set(found) == {"nn.Module: Net_0", "nn.Module: Linear_0", "nn.Module: Linear_1"}
    net = found["nn.Module: Net_0"]
    assert (net["calls"], net["host_ns"], net["self_host_ns"], net["host_pct"]) == (1, 50_000, 20_000, 40.0)


def test_the_work_of_a_module_is_what_it_launches_and_what_computes_its_gradients(path: Path) -> None:
    found = rows(read(path))
    gpu = {name: (row["gpu_ops"], row["gpu_ns"], row["backward_gpu_ns"]) for name, row in found.items()}
    assert gpu == {
        "nn.Module: Linear_0": (1, 7_000, 5_000),
        "nn.Module: Linear_1": (1, 10_000, 20_000),
        "nn.Module: Net_0": (3, 18_000, 25_000),
    }
    # 43 of 44 microseconds of all work.
    assert found["nn.Module: Net_0"]["gpu_pct"] == 97.7


def test_without_modules_a_sentence_says_how_to_record_them(tmp_path: Path) -> None:
    written = tmp_path / "rank0.pt.trace.json"
    written.write_text(json.dumps({"traceEvents": [event("cpu_op", "aten::mm", 0, 1)]}), encoding="utf-8")
    outcome = modules(read(written))
    assert (len(outcome.rows), outcome.reason) == (
        0,
        "no modules in rank0.pt.trace.json: PyTorch records them with with_stack=True",
    )


def test_modules_survive_an_export_and_a_scrub(path: Path, tmp_path: Path) -> None:
    export_timelines(Timelines({0: path}, []), tmp_path / "exported", lambda path: None)
    scrub(path, tmp_path / "scrubbed.pt.trace.json", Names())
    copies = (path, tmp_path / "exported/rank00000.trace.json.gz", tmp_path / "scrubbed.pt.trace.json")
    tables = [analyze_rank(ANALYSES["modules"], read(copy), 0).frame.to_csv() for copy in copies]
    assert tables[0] == tables[1] == tables[2]
