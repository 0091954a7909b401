"""Operators of PyTorch traces, compared with what PyTorch itself says of them."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcprof.analysis.operators.matrix_multiplications import flops, peak_tflops
from hpcprof.analysis.operators.operators import operator_kernels, operators, operators_by_shape
from hpcprof.analysis.steps.lost_launches import launch_rows
from hpcprof.analysis.summaries.kernels import kernels
from hpcprof.profiles.readers.kineto.reader import read
from hpcprof.profiles.timeline import Timeline

DATA = Path(__file__).parents[3] / "data"

# calls, host_ns, self_gpu_ns and flops in key_averages() of the profiler that wrote the trace.
AVERAGES = {
    "aten::mm": (16, 5418170, 3308806, 468151435264),
    "aten::addmm": (4, 4604304, 772417, 68719476736),
    "aten::bmm": (2, 139352, 11680, 2147483648),
    "aten::baddbmm": (2, 192425, 10208, 2147483648),
    "aten::gelu": (4, 223886, 54017, 0),
    "aten::linear": (12, 6251031, 0, 0),
    "aten::_foreach_add_": (2, 167022, 58176, 0),
    "AddmmBackward0": (2, 203745, 0, 0),
}


@pytest.fixture(scope="module")
def recorded() -> Timeline:
    return read(DATA / "operators_rank0.pt.trace.json.gz")


def row(rows: Any, **wanted: str) -> dict[str, Any]:
    (found,) = [r for r in rows.to_dict("records") if all(r[k] == v for k, v in wanted.items())]
    return dict(found)


@pytest.mark.parametrize("name", AVERAGES)
def test_figures_by_name_are_those_of_pytorch(recorded: Timeline, name: str) -> None:
    found = row(operators(recorded).rows, name=name)
    figures = (found["calls"], found["host_ns"], found["self_gpu_ns"], found["flops"] or 0)
    assert figures == AVERAGES[name]


def test_the_gpu_time_of_an_operator_has_that_of_the_operators_inside(recorded: Timeline) -> None:
    found = row(operators(recorded).rows, name="AddmmBackward0")
    # As key_averages() says: aten::mm and its kernels are inside.
    assert (found["gpu_ns"], found["gpu_ops"]) == (660769, 0)


@pytest.mark.parametrize(
    ("dims", "kind", "peak"),
    [
        ("[[4096,4096],[4096,4096]]", "c10::BFloat16", 989.4),
        ("[[1024,1024],[1024,1024]]", "double", 66.9),
        ("[[2048,4096],[4096,1024]]", "float", 66.9),
        ("[[2048,1024],[1024,2048]]", "float", 494.7),  # With allow_tf32.
    ],
)
def test_the_rate_is_set_against_the_peak_for_the_type_and_the_kernels(
    recorded: Timeline, dims: str, kind: str, peak: float
) -> None:
    types = json.dumps([kind, kind], separators=(",", ":"))
    found = row(operators_by_shape(recorded).rows, name="aten::mm", input_dims=dims, input_types=types)
    assert found["tflops"] == pytest.approx(found["flops"] / found["gpu_ns"] / 1e3, abs=1e-3)
    assert found["peak_pct"] == pytest.approx(100 * found["tflops"] / peak, abs=0.06)
    assert 50 < found["peak_pct"] < 100


def test_kernels_belong_to_the_innermost_operator(recorded: Timeline) -> None:
    rows = operator_kernels(recorded).rows
    of_mm = rows[rows["operator"] == "aten::mm"]
    assert (of_mm["instances"].sum(), of_mm["total_ns"].sum()) == (18, 3308806)
    assert not (rows["operator"] == "aten::linear").any()


def test_without_shapes_one_sentence_says_why_there_are_no_flops() -> None:
    outcome = operators(read(DATA / "allocator_rank0.pt.trace.json.gz"))
    assert outcome.rows["flops"].isna().all()
    assert "record_shapes=True" in outcome.reason


def trace(folder: Path, *events: tuple[str, int, int, int], args: str = "{}") -> Timeline:
    """Write operators (name, thread, begin, end in µs) without work on a GPU."""
    path = folder / "rank0.pt.trace.json.gz"
    written = [
        f'{{"ph":"X","cat":"cpu_op","name":"{name}","pid":1,"tid":{tid},"ts":{begin}.000,'
        f'"dur":{end - begin}.000,"args":{args}}}'
        for name, tid, begin, end in events
    ]
    path.write_bytes(gzip.compress(f'{{"schemaVersion":1,"traceEvents":[{",".join(written)}]}}'.encode()))
    return read(path)


def test_own_time_leaves_out_what_is_directly_inside_on_the_same_thread(tmp_path: Path) -> None:
    timeline = trace(tmp_path, ("a", 1, 0, 100), ("b", 1, 10, 60), ("c", 1, 20, 30), ("d", 2, 40, 50))
    rows = operators(timeline).rows.set_index("name")
    assert rows["self_host_ns"].to_dict() == {"a": 50_000, "b": 40_000, "c": 10_000, "d": 10_000}
    assert rows["host_ns"].to_dict() == {"a": 100_000, "b": 50_000, "c": 10_000, "d": 10_000}
    assert rows["gpu_pct"].isna().all()


def test_an_operator_that_ends_after_another_one_is_not_inside_it(tmp_path: Path) -> None:
    rows = operators(trace(tmp_path, ("a", 1, 0, 100), ("b", 1, 90, 120))).rows.set_index("name")
    assert rows["self_host_ns"].to_dict() == {"a": 100_000, "b": 30_000}


def test_on_the_cpu_a_rate_is_over_the_time_on_the_host(tmp_path: Path) -> None:
    args = '{"Input Dims":[[4,32],[32,10]],"Input type":["float","float"]}'
    found = row(operators(trace(tmp_path, ("aten::mm", 1, 0, 1), args=args)).rows, name="aten::mm")
    assert (found["flops"], found["tflops"], found["peak_pct"]) == (2560.0, 0.003, None)
    # A launch returns before its work, which this profile of a GPU lacks.
    call = '"cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":0.1,"dur":0.1'
    args += f'}},{{"ph":"X",{call},"args":{{"correlation":1}}'
    found = row(operators(trace(tmp_path, ("aten::mm", 1, 0, 1), args=args)).rows, name="aten::mm")
    assert (found["flops"], found["tflops"]) == (2560.0, None)


@pytest.mark.parametrize(
    "args", ["7", '{"Input Dims":"x"}', '{"Input Dims":[[-1,2],[2,3]]}', '{"Input type":7}']
)
def test_odd_shapes_are_no_error(tmp_path: Path, args: str) -> None:
    timeline = trace(tmp_path, ("aten::mm", 1, 0, 1), args=args)
    assert row(operators_by_shape(timeline).rows, name="aten::mm")["flops"] is None


@pytest.mark.parametrize(
    ("operator", "dims", "count"),
    [
        ("aten::mm", "[[4, 32], [32, 10]]", 2560.0),
        ("aten::addmm", "[[32], [4, 2048], [2048, 32], [], []]", 524288.0),
        ("aten::bmm", "[[3, 5, 7], [3, 7, 2]]", 420.0),
        ("aten::baddbmm", "[[3, 5, 2], [3, 5, 7], [3, 7, 2], [], []]", 420.0),
        ("aten::mm", "[[4, 32], [31, 10]]", None),
        ("aten::mm", "[[4, 32]]", None),
        ("aten::mm", None, None),
        ("aten::add", "[[4, 32], [32, 10]]", None),
    ],
)
def test_operations_follow_from_the_shapes(operator: str, dims: str | None, count: float | None) -> None:
    assert flops(operator, dims) == count


@pytest.mark.parametrize(
    ("gpu", "kind", "kernel", "peak"),
    [
        ("NVIDIA A100-SXM4-40GB", "c10::Half", "x", 312.0),
        ("NVIDIA H100 PCIe", "c10::BFloat16", "x", 756.0),
        ("NVIDIA H100 80GB HBM3", "float", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn", 494.7),
        ("NVIDIA H100 80GB HBM3", "float", "unheard_of", None),
        ("NVIDIA H100 80GB HBM3", "int", "x", None),
        ("Another GPU", "c10::Half", "x", None),
        ("AMD Instinct MI250X", "c10::Half", "x", 191.5),
    ],
)
def test_a_peak_that_is_not_certain_is_unknown(gpu: str, kind: str, kernel: str, peak: float | None) -> None:
    assert peak_tflops(gpu, "aten::mm", json.dumps([kind, kind]), [kernel]) == peak


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("Cijk_Ailk_Bljk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT128x128x32", 653.7),
        ("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT128x128x32", 163.4),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x64x16", 163.4),
    ],
)
def test_hipblaslt_names_tf32_in_its_kernels(kernel: str, expected: float) -> None:
    assert peak_tflops("AMD Instinct MI300X", "aten::mm", '["float", "float"]', [kernel]) == expected


def test_a_sentence_counts_the_launches_captured_into_graphs(recorded: Timeline) -> None:
    """Rebuilt from AMD-AGI/TraceLens, tests/traces/inference/sglang_decode/capture_traces."""
    launches, names = launch_rows(recorded), recorded.calls.name.copy()
    names[launches[0]] = len(recorded.strings)
    calls = replace(recorded.calls, name=names, correlation=np.full(len(names), -1))
    capturing = np.append(recorded.strings, "hipStreamBeginCapture")
    reason = operators(replace(recorded, calls=calls, strings=capturing)).reason
    assert reason.startswith(f"{len(launches) - 1} launch calls captured into graphs")
    assert not operators(recorded).reason


def test_work_that_no_operator_launched_is_told(recorded: Timeline) -> None:
    """Rebuilt from a trace of vLLM, whose operators launched 4 % of the work: graphs did the rest."""
    few = np.flatnonzero(recorded.operators.start < np.median(recorded.operators.start))
    reason = operators(replace(recorded, operators=recorded.operators.take(few))).reason
    assert re.match(r"no operator launched \d+ % of the work on the GPU", reason)
    queued = np.flatnonzero(recorded.calls.start < np.median(recorded.calls.start))
    reason = operators(replace(recorded, calls=recorded.calls.take(queued))).reason
    assert re.match(r"the launches of \d+ % of the work on the GPU are not in the profile$", reason)
    empty = replace(recorded, operators=recorded.operators.take(few[:0]))
    assert kernels(empty).reason.endswith("has no operators: PyTorch records them with ProfilerActivity.CPU")
    assert not kernels(recorded).reason
