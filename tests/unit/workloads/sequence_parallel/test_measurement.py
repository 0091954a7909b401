"""The order in which modes are measured, on one rank without a GPU."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hpcprof.workloads.distributed import World
from hpcprof.workloads.rankenv import RankEnvironment, RankProfiler
from hpcprof.workloads.schema import GpuState
from hpcprof.workloads.sequence_parallel.measurement import GpuMonitor, Measurement, ModeSteps, state_change
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.timing import PhaseTimer

COMM = SimpleNamespace(allgather=lambda value: [value], bcast=lambda value: value, Barrier=lambda: None)


def test_a_profile_has_the_steps_of_modes_only() -> None:
    probe = SimpleNamespace(phases=())
    environment = RankEnvironment(profiler=RankProfiler.NCU)
    measurement = Measurement(
        PointParameters(warmup=0, burn_in=0, steps=2),
        environment,
        world(),
        {},
        cast(Any, {"probe": probe}),
    )
    assert measurement.run().probes == {}


def world() -> World:
    return World(
        comm=COMM,
        rank=0,
        size=1,
        local_rank=0,
        nodes=1,
        host="node0",
        device=torch.device("cpu"),
        backend="gloo",
        reduce_scatter=cast(Any, None),
        notes=(),
    )


def test_modes_are_measured_in_turns_and_every_second_round_in_reverse() -> None:
    done: list[str] = []

    class Noting:
        def __init__(self, name: str, phases: tuple[str, ...]) -> None:
            self.name, self.phases = name, phases

        def __call__(self, index: int, timer: PhaseTimer) -> None:
            done.append(self.name)
            for phase in self.phases:
                with timer.phase(phase):
                    pass

    steps = cast(ModeSteps, {"serial": Noting("serial", ("allgather",)), "chunked": Noting("chunked", ())})
    parameters = PointParameters(warmup=0, burn_in=0, steps=3)
    probes = cast(Any, {"probe": Noting("probe", ()), "links": Noting("links", ("ready", "links"))})
    measured = Measurement(parameters, RankEnvironment(), world(), steps, probes).run()
    # The serial mode has a step for its time and one for its phases in each round, and the probes take turns.
    assert "".join(name[0] for name in done[:15]) == "sscpl" + "lpcss" + "sscpl"
    assert {name: len(times) for name, times in measured.probes.items()} == {"probe": 3, "links": 3}
    assert measured.times.keys() == {"serial", "chunked"}
    assert [len(measured.times[name].step_ns) for name in ("serial", "chunked")] == [3, 3]
    assert len(measured.marked_ns["serial"]) == 3


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
