"""The state of a GPU while it works, and what makes two states differ."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace

import pytest
import torch

from hpcprof.workloads.schema import GpuState
from hpcprof.workloads.sequence_parallel.measurement import GpuMonitor, state_change

STATE = GpuState(1500, 3201, 690.0, 60, ["power cap"])


def test_a_clock_that_moved_and_a_new_reason_are_told() -> None:
    assert state_change(STATE, dataclasses.replace(STATE, sm_mhz=1430)) is None
    assert (
        state_change(STATE, dataclasses.replace(STATE, sm_mhz=1400))
        == "its SM clock changed from 1500 to 1400 MHz"
    )
    hot = dataclasses.replace(STATE, throttled_by=["power cap", "hardware thermal slowdown"])
    assert state_change(STATE, hot) == "it started to throttle (hardware thermal slowdown)"
    assert state_change(None, STATE) is None


class FakeNvml(SimpleNamespace):
    """The library on a GPU at its power cap."""

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
