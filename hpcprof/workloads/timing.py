"""Time steps and phases without synchronizing inside a step."""

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from hpcprof.workloads.capture import annotate, synchronize


class HostClock:
    """The monotonic clock of the host, for CPUs, where a call returns when its work is done."""

    follows_host = True
    """True if work is done when the call that started it returns."""

    def mark(self) -> int:
        """Return the time of the clock in nanoseconds."""
        return time.perf_counter_ns()

    def elapsed_ns(self, start: int, end: int) -> int:
        """Return the difference in nanoseconds."""
        return end - start


class CudaClock:
    """CUDA events after the work of the current stream: times of the GPU, read only after the last step.

    An event with a time delays the kernels after it by 3 to 7 us. So the current stream records an event
    without a time, and another stream, which waits for that one, takes the time.
    """

    follows_host = False

    def mark(self) -> Any:
        """Record an event when the current stream comes here, and return it."""
        times = _stream_for_times()
        times.wait_stream(torch.cuda.current_stream())
        event = torch.cuda.Event(enable_timing=True)
        event.record(times)
        return event

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """Return the nanoseconds between two completed events; their resolution is about 0.5 us."""
        milliseconds: float = start.elapsed_time(end)
        return round(milliseconds * 1e6)


@functools.cache
def _stream_for_times() -> Any:
    return torch.cuda.Stream()


Clock = HostClock | CudaClock
"""Records marks, and returns the nanoseconds between two of them once the device has passed both."""


def clock_for(device: torch.device) -> Clock:
    """Return the clock that times work on ``device``."""
    return CudaClock() if device.type == "cuda" else HostClock()


@dataclass(frozen=True)
class MeasuredTimes:
    """The nanoseconds of each step, and of each phase in each step."""

    step_ns: list[int]
    phase_ns: dict[str, list[int]]


class UntimedPhases:
    """Marks phases for the profiler only."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Annotate the phase."""
        return annotate(name)


class Timer:
    """Times steps and ``phases``, and annotates both and further phases for the profiler."""

    def __init__(self, clock: Clock, phases: Sequence[str], name: str = "iteration") -> None:
        self._clock = clock
        self._name = name
        self._steps: list[tuple[Any, Any]] = []
        self._phases: dict[str, list[tuple[Any, Any]]] = {name: [] for name in phases}
        self._begun: list[tuple[str, Any]] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one step."""
        with annotate(self._name):
            self._begun = [("", self._clock.mark())]
            yield
            self._begun.append(("", self._clock.mark()))
        self._steps.append((self._begun[0][1], self._begun[-1][1]))
        for (name, first), (_, last) in pairwise(self._begun):
            if name:
                self._phases[name].append((first, last))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase of the current step, up to the next one, with which it shares a mark, or the end."""
        with annotate(name):
            if name in self._phases:
                first = len(self._begun) == 1 and not self._begun[0][0]
                mark = self._begun.pop()[1] if first else self._clock.mark()
                self._begun.append((name, mark))
            yield

    def read(self) -> MeasuredTimes:
        """Wait for the device and return all times."""
        synchronize()
        phases = {name: self._elapsed(marks) for name, marks in self._phases.items()}
        return MeasuredTimes(self._elapsed(self._steps), phases)

    def _elapsed(self, marks: list[tuple[Any, Any]]) -> list[int]:
        return [self._clock.elapsed_ns(start, end) for start, end in marks]


PhaseTimer = Timer | UntimedPhases
"""Marks the phases of a step."""
