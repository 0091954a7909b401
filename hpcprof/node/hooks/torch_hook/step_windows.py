"""A program's steps that turn a profiler on and off, and are marked in its profile.

hpcprof copied this file into the run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

MARK = "hpcprof.step"
"""The name of the empty range between two steps; those who read profiles know it."""


_WARM_UP, _MOST_ALONE, _FEWEST_ALONE = 3, 40, 4
"""Steps before any that are timed alone, and the most and the fewest of these."""


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
        self._marks: list[tuple[int, int]] = []

    def ended(self, steps: int) -> None:
        """Take the time once ``steps`` steps have ended."""
        if steps > self._last or steps not in self._bounds:
            return
        self._synchronize()
        self._marks.append((steps, time.perf_counter_ns()))
        if steps == self._last:
            marks = self._marks
            spans = [
                {"steps": marks[i + 1][0] - marks[i][0], "elapsed_ns": marks[i + 1][1] - marks[i][1]}
                for i in range(len(marks) - 1)
            ]
            with suppress(OSError):
                self._path.parent.mkdir(exist_ok=True)
                self._path.write_text(json.dumps(spans))


class StepWindows:
    """Marks the steps of a program as its optimizers take them, and records the chosen ones.

    A step that the program marks itself (`hpcprof.workloads.capture`) is left to it. ``spans`` are the first
    and the last step of each span, counted from 0; the whole program is recorded without any. ``switch``
    turns the profiler on and off, and marks (`nvtx`, `roctx`); ``marked`` returns what writes the steps that
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
