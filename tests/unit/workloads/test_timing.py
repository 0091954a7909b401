"""Times of steps and phases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpcprof.workloads import capture, timing
from hpcprof.workloads.timing import CudaClock, HostClock, Timer, clock_for


class Ticks(HostClock):
    """A clock that counts its marks, in milliseconds."""

    follows_host = True

    def __init__(self) -> None:
        self.now = 0

    def mark(self) -> int:
        self.now += 1_000_000
        return self.now

    def elapsed_ns(self, start: int, end: int) -> int:
        return end - start


def test_each_step_and_each_phase_gives_one_time() -> None:
    timer = Timer(Ticks(), ("a", "b"))
    for _ in range(3):
        with timer.step():
            with timer.phase("a"):
                pass
            with timer.phase("b"):
                pass
    times = timer.read()
    # Three marks per step: the phases share one, and their outer marks are those of the step.
    assert times.step_ns == [2_000_000] * 3
    assert times.phase_ns == {"a": [1_000_000] * 3, "b": [1_000_000] * 3}


def test_a_phase_that_is_not_timed_costs_no_mark() -> None:
    clock = Ticks()
    timer = Timer(clock, ())
    for _ in range(2):
        with timer.step():
            for name in ("a", "b"):
                with timer.phase(name):
                    pass
    times = timer.read()
    # Only the marks of the step.
    assert (times.step_ns, times.phase_ns, clock.now) == ([1_000_000] * 2, {}, 4_000_000)


def test_the_host_clock_goes_forward() -> None:
    clock = HostClock()
    assert clock.elapsed_ns(clock.mark(), clock.mark()) >= 0
    assert isinstance(clock_for(torch.device("cpu")), HostClock)


def test_on_cuda_a_step_waits_for_nothing_and_reading_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: object) -> None:
            assert stream is times_stream
            happened.append("record")
            self.at = len(happened)

        def elapsed_time(self, end: Any) -> float:
            happened.append("elapsed")
            return float(end.at - self.at) * 0.25

    # Another stream takes the times, so that the kernels of the current one need not wait for them.
    times_stream = SimpleNamespace(wait_stream=lambda current: happened.append(f"wait for {current}"))
    monkeypatch.setattr(timing, "_stream_for_times", lambda: times_stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "compute")
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(timing, "synchronize", lambda: happened.append("synchronize"))
    clock = clock_for(torch.device("cuda"))
    assert isinstance(clock, CudaClock)
    timer = Timer(clock, ("a",))
    for _ in range(2):
        with timer.step(), timer.phase("a"):
            pass
    times = timer.read()
    assert happened == ["wait for compute", "record"] * 4 + ["synchronize"] + ["elapsed"] * 4
    assert times.step_ns == [500_000] * 2
    assert times.phase_ns == {"a": [500_000] * 2}


def test_on_cuda_a_range_is_also_an_nvtx_range_and_is_closed_by_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []
    monkeypatch.setattr(capture, "_cuda", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", happened.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: happened.append("pop"))
    with pytest.raises(ZeroDivisionError), capture.annotate("iteration"):
        _ = 1 / 0
    assert happened == ["iteration", "pop"]
