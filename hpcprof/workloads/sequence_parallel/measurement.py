"""Warm up, then time the modes in turns, and read clocks, power and throttling of the GPU (NVML)."""

import statistics
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from hpcprof.workloads.capture import Capture, annotate, synchronize
from hpcprof.workloads.distributed import World
from hpcprof.workloads.rankenv import RankEnvironment, RankProfiler
from hpcprof.workloads.schema import GpuState
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.sequence_parallel.probes import Links, Matmuls
from hpcprof.workloads.sequence_parallel.steps import GraphedStep, Step
from hpcprof.workloads.timing import MeasuredTimes, Timer, UntimedPhases, clock_for

ModeSteps = Mapping[str, Step | GraphedStep]
Probes = Mapping[str, Matmuls | Links]

_STABLE = 0.01
"""Maximum difference of the medians of two windows that ends the warm-up."""
_MAX_WARM_UP_FACTOR = 5
"""Maximum warm-up steps, as a multiple of ``--warmup``."""
# The cost of marks is measured on pairs of blocks of steps; a GPU at its power cap needs many.
_BLOCK_PAIRS, _BLOCK_PAIRS_ON_GPU = 24, 96
_MIN_BLOCK_STEPS, _MIN_BLOCK_NS = 4, 5_000_000


@dataclass(frozen=True)
class Measured:
    """Times of modes, of ``probes`` and of marked steps; ``steps`` counts all steps of all modes."""

    times: dict[str, MeasuredTimes]
    marked_ns: dict[str, list[int]]
    steps: int
    warmup_steps: int
    stable: bool | None
    gpu_before: GpuState | None
    gpu_after: GpuState | None
    marks_pct: dict[str, float]
    probes: dict[str, list[int]]


class Measurement:
    """Measures the modes in turns, step by step, so that a change of clocks affects all of them.

    Every second round is in reverse order, A B B A. A GPU at its power limit is slower after a mode that
    draws much power, and this way no mode always follows the same one.
    """

    def __init__(
        self,
        parameters: PointParameters,
        environment: RankEnvironment,
        world: World,
        steps: ModeSteps,
        probes: Probes | None = None,
    ) -> None:
        self._parameters, self._environment, self._world = parameters, environment, world
        self._steps = steps
        # If any rank is profiled, all ranks time the steps that the profile contains.
        self._profiled = any(world.comm.allgather(environment.profiler is not RankProfiler.NONE))
        # A profile has the steps of modes only.
        self._probes = {} if self._profiled else dict(probes or {})
        self._monitor = GpuMonitor(world.device)
        self._index = self._rounds = 0

    def run(self) -> Measured:
        """Burn in, warm up and measure; a collective call."""
        begun = time.monotonic()
        # Rank 0 decides, because all ranks must run the same number of steps.
        while self._world.comm.bcast(time.monotonic() - begun < self._parameters.burn_in):
            self._round(self._timers())
            synchronize()
        stable, before = self._warm_up()
        warmed = self._rounds
        timers = self._timers()
        with Capture(self._environment, rank=self._world.rank, barrier=self._world.comm.Barrier) as capture:
            for _ in range(self._parameters.steps):
                with capture.step():
                    self._round(timers)
            after = self._monitor.read()
        probes = {name: timers.pop(name)[0].read() for name in self._probes}
        times, marked, marks = {}, {}, {}
        for name, (plain, *marked_timers) in timers.items():
            times[name] = plain.read()
            for with_phases in map(Timer.read, marked_timers):
                times[name] = MeasuredTimes(times[name].step_ns, with_phases.phase_ns)
                marked[name] = with_phases.step_ns
        for name, step in self._steps.items():
            marks[name] = self._cost_of_marks(step, round(statistics.median(times[name].step_ns)))
        probe_times = {name: probe.phase_ns.get(name, probe.step_ns) for name, probe in probes.items()}
        return Measured(times, marked, self._index, warmed, stable, before, after, marks, probe_times)

    def _cost_of_marks(self, step: Step | GraphedStep, step_ns: int) -> float:
        """Return the time that marks add to steps, in percent: the median over alternating blocks."""
        clock = clock_for(self._world.device)
        timer = Timer(clock, step.phases)
        blocks: dict[bool, list[tuple[Any, Any]]] = {True: [], False: []}
        steps = self._world.comm.bcast(max(1, min(_MIN_BLOCK_STEPS, _MIN_BLOCK_NS // max(step_ns, 1))))
        for block in range(2 * (_BLOCK_PAIRS if clock.follows_host else _BLOCK_PAIRS_ON_GPU)):
            # With, without, without, with: a drift of the clocks affects both.
            marked = block % 4 in (0, 3)
            start = clock.mark()
            for _ in range(steps):
                with timer.step() if marked else annotate("iteration"):
                    step(self._next_index(), timer if marked else UntimedPhases())
            blocks[marked].append((start, clock.mark()))
        synchronize()
        with_marks, without = (
            [clock.elapsed_ns(*ends) for ends in blocks[marked]] for marked in (True, False)
        )
        return 100 * statistics.median(a / b - 1 for a, b in zip(with_marks, without, strict=True))

    def _timers(self) -> dict[str, list[Timer]]:
        """Return the timers of each mode and probe; each timer times its own step in a round.

        Phase marks lengthen a step. A mode with phases therefore has two timers, the first without phases
        and the second with them. Under a profiler, one timer does both.
        """
        # With several modes, each has its own step name, so that a profile does not mix their steps.
        single = len(self._steps) == 1
        clock = clock_for(self._world.device)
        timers = {}
        for name, step in self._steps.items():
            kinds = [(), step.phases] if step.phases and not self._profiled else [step.phases]
            step_name = "iteration" if single else f"iteration {name}"
            timers[name] = [Timer(clock, phases, step_name) for phases in kinds]
        for name, probe in self._probes.items():
            timers[name] = [Timer(clock, probe.phases, f"probe {name}")]
        return timers

    def _round(self, timers: dict[str, list[Timer]]) -> None:
        parts = {**self._steps, **self._probes}
        turns = [(step, timer) for name, step in parts.items() for timer in timers[name]]
        for step, timer in reversed(turns) if self._rounds % 2 else turns:
            with timer.step():
                step(self._next_index(), timer)
        self._rounds += 1

    def _next_index(self) -> int:
        """Return the index of the next step; consecutive steps of any modes read different memory."""
        self._index += 1
        return self._index - 1

    def _warm_up(self) -> tuple[bool | None, GpuState | None]:
        """Run steps as they are measured until the medians of two windows agree."""
        if not self._parameters.warmup:
            return None, None
        window = (self._parameters.warmup + 1) // 2
        previous: list[float] | None = None
        for _ in range(2 * _MAX_WARM_UP_FACTOR):
            timers = self._timers()
            for _ in range(window):
                self._round(timers)
            # Read before waiting, while the GPU still works.
            state = self._monitor.read()
            step_times = [statistics.median(plain.read().step_ns) for plain, *_ in timers.values()]
            medians = [max(ranks) for ranks in zip(*self._world.comm.allgather(step_times), strict=True)]
            if previous and all(
                abs(now - before) < _STABLE * before for now, before in zip(medians, previous, strict=True)
            ):
                return True, state
            previous = medians
        return False, state


# Bits of nvmlClocksEventReasons, without "idle" and "applications clocks setting": they are not throttling.
_THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}

_MIN_CLOCK_CHANGE = 0.05
"""Minimum relative change of a clock that makes times incomparable."""


class GpuMonitor:
    """Reads the state of one GPU; without a GPU, NVML or ``pynvml`` every reading is None."""

    def __init__(self, device: torch.device) -> None:
        self._nvml: Any = None
        if device.type != "cuda":
            return
        with suppress(ImportError):
            import pynvml

            with suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                self._nvml = pynvml

    def read(self) -> GpuState | None:
        """Return the current state; it is meaningful only while the GPU works."""
        nvml = self._nvml
        if nvml is None:
            return None
        try:
            mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
            return GpuState(
                sm_mhz=nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM),
                memory_mhz=nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_MEM),
                power_w=nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000,
                temperature_c=nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU),
                throttled_by=[name for bit, name in _THROTTLE_REASONS.items() if mask & bit],
            )
        except nvml.NVMLError:
            return None


def state_change(before: GpuState | None, after: GpuState | None) -> str | None:
    """Describe the changes between two states that make their times incomparable; None without any."""
    if before is None or after is None:
        return None
    clocks = {
        "SM clock": (before.sm_mhz, after.sm_mhz),
        "memory clock": (before.memory_mhz, after.memory_mhz),
    }
    changes = [
        f"its {name} changed from {first} to {last} MHz"
        for name, (first, last) in clocks.items()
        if abs(last - first) > _MIN_CLOCK_CHANGE * first
    ]
    new = [reason for reason in after.throttled_by if reason not in before.throttled_by]
    if new:
        changes.append(f"it started to throttle ({', '.join(new)})")
    return " and ".join(changes) or None
