"""A program's steps that turn a profiler on and off, and are marked in its profile."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

MARK = "hpcprof.step"
"""The name of the empty range between two steps; those who read profiles know it."""

_WARM_UP, _MOST_ALONE, _FEWEST_ALONE = 3, 40, 4
"""Steps before any that are timed alone, and the most and the fewest of these."""

_ALL_THREADS = 0
_ROCTX = (None, "librocprofiler-sdk-roctx.so")


class Nvtx:
    """The switch of Nsight Systems and Compute, which record nothing until it is on, and marks for them."""

    def resume(self) -> None:
        """Have the profiler record."""
        self._call(lambda cuda: cuda.profiler.start())

    def pause(self) -> None:
        """Have the profiler record nothing more until the next `resume`."""
        self._call(lambda cuda: cuda.profiler.stop())

    def mark(self, name: str) -> None:
        """Record an empty range."""
        self._call(lambda cuda: (cuda.nvtx.range_push(name), cuda.nvtx.range_pop()))

    @staticmethod
    def _call(function: Callable[[Any], object]) -> None:
        # A build of PyTorch for the CPU has neither, and says so by an AssertionError.
        with suppress(RuntimeError, AttributeError, AssertionError):
            function(sys.modules["torch"].cuda)


class Roctx:
    """The switch of rocprofv3, which records nothing until it is on, and marks; it loads ROCTx itself."""

    def resume(self) -> None:
        """Have rocprofv3 record, if the program runs under it."""
        self._call("roctxProfilerResume", ctypes.c_uint64(_ALL_THREADS))

    def pause(self) -> None:
        """Have rocprofv3 record nothing more until the next `resume`."""
        self._call("roctxProfilerPause", ctypes.c_uint64(_ALL_THREADS))

    def mark(self, name: str) -> None:
        """Record an empty range."""
        self._call("roctxRangePushA", name.encode())
        self._call("roctxRangePop")

    @staticmethod
    def _call(function: str, *arguments: object) -> None:
        for library in _ROCTX:
            with suppress(OSError, AttributeError):
                getattr(ctypes.CDLL(library), function)(*arguments)
                return


class StepsAlone:
    """Times the steps before the profiler records, in two halves, and notes them for the explanation.

    The GPU is waited for where a half begins and ends: in the first steps of a program its host runs ahead.
    Steps after a window do not count: the profiler's hooks in CUDA's calls stay, and slow them. ``first`` is
    the first recorded step.
    """

    def __init__(self, first: int, synchronize: Callable[[], None], path: Path) -> None:
        self._begin = max(_WARM_UP, first - _MOST_ALONE)
        self._bounds = {self._begin, (self._begin + first) // 2, first}
        self._last = first if first - self._begin >= _FEWEST_ALONE else -1
        self._synchronize = synchronize
        self._path = path
        self._mark: tuple[int, int] | None = None
        self._spans: list[dict[str, int]] = []

    def ended(self, steps: int) -> None:
        """Take the time once ``steps`` steps have ended."""
        if steps > self._last or steps not in self._bounds:
            return
        self._synchronize()
        now = time.perf_counter_ns()
        if self._mark is not None:
            self._spans.append({"steps": steps - self._mark[0], "elapsed_ns": now - self._mark[1]})
        self._mark = steps, now
        if steps == self._last:
            with suppress(OSError):
                self._path.parent.mkdir(exist_ok=True)
                self._path.write_text(json.dumps(self._spans))


class StepWindows:
    """Marks the steps of a program as its optimizers take them, and records the chosen ones.

    A step that the program marks itself (`hpcprof.workloads.capture`) is left to it. ``spans`` are the first
    and the last step of each span, counted from 0; the whole program is recorded without any. ``switch``
    turns the profiler on and off, and marks (`Nvtx`, `Roctx`); ``marked`` returns what writes the steps that
    the program marks itself, or None. ``alone`` is where the steps before the first span are noted.
    """

    def __init__(
        self,
        torch: Any,
        spans: Iterable[tuple[int, int]],
        switch: Any,
        marked: Callable[[], object],
        alone: Path | None = None,
    ) -> None:
        self._torch = torch
        self._spans = list(spans)
        self._switch = switch
        self._marked = marked
        self._steps = 0
        self._records = not self._spans
        self._process = os.getpid()
        self._alone: StepsAlone | None = None
        if alone is not None and self._spans:
            self._alone = StepsAlone(min(self._spans)[0], self._synchronize, alone)

    def optimizer_made(self) -> None:
        """Begin to record if the first step is chosen."""
        if self._is_program() and self._is_chosen() and not self._records:
            self._turn()

    def stepped(self, _: Any) -> None:
        """Count a step of the program."""
        if not self._is_program():
            return
        self._steps += 1
        if self._records:
            self._switch.mark(MARK)
        if self._alone is not None:
            self._alone.ended(self._steps)
        if self._is_chosen() != self._records:
            self._turn()

    def _is_program(self) -> bool:
        return os.getpid() == self._process and self._marked() is None

    def _is_chosen(self) -> bool:
        return not self._spans or any(first <= self._steps <= last for first, last in self._spans)

    def _synchronize(self) -> None:
        if self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()

    def _turn(self) -> None:
        # Work of the steps before must not be recorded, and that of the last one must be.
        self._synchronize()
        self._records = not self._records
        if self._records:
            self._switch.resume()
            self._switch.mark(MARK)
        else:
            self._switch.pause()
