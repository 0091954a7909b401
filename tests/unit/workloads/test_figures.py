"""Rates, bounds and conditions that follow from the times."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hpcprof.readers.results import parse_result
from hpcprof.report.charts import charts
from hpcprof.report.contents import Contents
from hpcprof.run import Run
from hpcprof.workloads.gpu_state import GpuMonitor, moved
from hpcprof.workloads.schema import GpuState, RankResult
from hpcprof.workloads.sequence_parallel.figures import bound_ns, figures, peak_tflops, rates
from hpcprof.workloads.sequence_parallel.options import Parameters

SHAPE = Parameters(8192, 8192, dtype="bfloat16")
DATA = Path(__file__).parents[3] / "docs" / "data"


def test_the_bound_of_both_directions_is_the_sum_of_each_ones_larger_part() -> None:
    forward = {"allgather": 5, "matmul_1": 1, "matmul_2": 2, "reduce_scatter": 4}
    backward = {"grad_allgather": 1, "grad_matmul_2": 10, "weight_matmul_1": 20, "grad_reduce_scatter": 2}
    assert bound_ns(forward) == 9
    assert bound_ns(backward) == 30
    assert bound_ns(forward | backward) == 39


def test_the_figures_are_those_of_a_calculation_by_hand() -> None:
    # Two ranks of four steps: the slowest of each is 4 ms, and the other is 1 ms faster.
    ranks = [[4_000_000] * 4, [3_000_000] * 4]
    found = figures(
        ranks, SHAPE, device="NVIDIA H200", backend="nccl", bound=3_000_000, serial=5_000_000, marks_pct=0.1
    )
    flops = 4 * 8192 * 8192 * 32768 / 2
    assert found.tflops == pytest.approx(flops / 4e-3 / 1e12)
    assert found.of_peak_pct == pytest.approx(100 * found.tflops / 989)
    # All-gather and reduce-scatter: each the half of the rows that the other rank has.
    assert found.bus_gbps == pytest.approx(2 * 8192 * 8192 * 2 / 2 / 4e-3 / 1e9)
    assert (found.of_bound_pct, found.hidden_pct) == (75.0, 50.0)
    assert (found.skew_p50_ns, found.spread_pct, found.step.n) == (1_000_000, 0.0, 4)


def test_gloo_is_given_no_bandwidth() -> None:
    parts = {"allgather": 100, "matmul_1": 200, "reduce_scatter": 100}
    assert list(rates(parts, SHAPE, 2, "gloo")) == ["matmul_1"]
    assert list(rates(parts, SHAPE, 2, "nccl")) == ["matmul_1", "allgather", "reduce_scatter"]


def test_a_gpu_that_is_not_known_has_no_peak() -> None:
    assert peak_tflops("NVIDIA H200", "float8") == 1979
    assert peak_tflops("NVIDIA A100-SXM4-80GB", "float8") is None
    assert peak_tflops("cpu", "float32") is None


STATE = GpuState(1500, 3201, 690.0, 60, ["power cap"])


def test_a_clock_that_moved_and_a_new_reason_are_told() -> None:
    assert moved(STATE, dataclasses.replace(STATE, sm_mhz=1430)) is None
    assert moved(STATE, dataclasses.replace(STATE, sm_mhz=1400)) == "its SM clock went from 1500 to 1400 MHz"
    hot = dataclasses.replace(STATE, throttled_by=["power cap", "hardware thermal slowdown"])
    assert moved(STATE, hot) == "it began to be slowed down by hardware thermal slowdown"
    assert moved(None, STATE) is None


class FakeNvml(SimpleNamespace):
    """What the library answers on a GPU at its power cap."""

    NVMLError = RuntimeError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = range(3)

    def __getattr__(self, name: str) -> object:
        answers = {
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4,
            "nvmlDeviceGetPowerUsage": 690_000,
            "nvmlDeviceGetTemperature": 60,
        }
        if name == "nvmlDeviceGetClockInfo":
            return lambda handle, which: (1500, 3201)[which]
        return lambda *arguments: answers.get(name)


def test_the_state_of_a_gpu_is_read_in_plain_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="x"))
    assert GpuMonitor(torch.device("cuda", 0)).read() == STATE


def test_without_a_gpu_or_without_the_library_the_state_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GpuMonitor(torch.device("cpu")).read() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuMonitor(torch.device("cuda", 0)).read() is None


def test_the_chart_of_the_modes_shows_each_against_the_bound() -> None:
    result = parse_result((DATA / "h200x4-8192-8192-32768.json").read_text())
    ((title, note, figure),) = charts(contents(result))
    assert title == "Modes against perfect overlap"
    bars, line = figure.data
    assert list(bars.x) == ["serial", "chunked", "symmetric", "copy-engine"]
    assert [round(value, 3) for value in bars.y] == [4.168, 4.001, 3.463, 3.363]
    assert set(line.y) == {result.bound_ns / 1e6 if result.bound_ns else 0}
    assert bars.text[3] == "99.8 % of the bound"
    assert "n = 60 steps" in note


def contents(result: RankResult) -> Contents:
    return Contents(Run("r", Path("r")), None, [], {}, {}, [result], [])


def test_a_report_shows_every_point_of_a_sweep_with_its_fastest_mode() -> None:
    points = [
        dataclasses.replace(parse_result((DATA / f"h200x4-{shape}.json").read_text()), point=f"p={shape}")
        for shape in ("8192-8192-32768", "4608-9216-9216")
    ]
    swept = contents(dataclasses.replace(points[0], points=points))
    assert [title for title, _, _ in charts(swept)] == [
        f"Modes against perfect overlap, {point.point}" for point in points
    ]
    clocks = [value for name, value in swept.facts() if name == "own clock"]
    assert [clock.partition(",")[0] for clock in clocks] == [
        "p=8192-8192-32768: step p50 3.363 ms",
        "p=4608-9216-9216: step p50 656.7 µs",
    ]
    assert all("copy-engine, the fastest of 4 modes" in clock for clock in clocks)


def test_a_report_says_that_results_are_wrong_which_are_so_at_a_later_point_alone() -> None:
    right = parse_result((DATA / "h200x4-8192-8192-32768.json").read_text())
    mode = right.modes["chunked"]
    check = dataclasses.replace(mode.correctness, passed=False, relative_error=float("nan"))
    modes = {**right.modes, "chunked": dataclasses.replace(mode, correctness=check)}
    wrong = dataclasses.replace(right, modes=modes)
    swept = dataclasses.replace(right, points=[right, wrong])
    for result, verdict in ((right, "right: "), (wrong, "wrong on ranks 0"), (swept, "wrong on ranks 0")):
        assert dict(contents(result).facts())["results"].startswith(verdict)
