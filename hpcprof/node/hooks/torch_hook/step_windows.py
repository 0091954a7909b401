"""A program's steps that turn a profiler on and off, and are marked in its profile.

hpcprof copied this file into the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

MARK = "hpcprof.step"
"""The name of the empty range between two steps; those who read profiles know it."""


class StepWindows:
    """Marks the steps of a program as its optimizers take them, and records the chosen ones.

    A step that the program marks itself (`hpcprof.workloads.capture`) is left to it. ``spans`` are the first
    and the last step of each span, counted from 0; the whole program is recorded without any. ``switch``
    turns the profiler on and off, and marks (`nvtx`, `roctx`); ``marked`` returns what writes the steps that
    the program marks itself, or None.
    """

    def __init__(
        self, torch: Any, spans: Iterable[tuple[int, int]], switch: Any, marked: Callable[[], object]
    ) -> None:
        self._torch = torch
        self._spans = list(spans)
        self._switch = switch
        self._marked = marked
        self._steps = 0
        self._records = not self._spans
        self._process = os.getpid()

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
        if self._is_chosen() != self._records:
            self._turn()

    def _is_program(self) -> bool:
        return os.getpid() == self._process and self._marked() is None

    def _is_chosen(self) -> bool:
        return not self._spans or any(first <= self._steps <= last for first, last in self._spans)

    def _turn(self) -> None:
        # Work of the steps before must not be recorded, and that of the last one must be.
        if self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()
        self._records = not self._records
        if self._records:
            self._switch.resume()
            self._switch.mark(MARK)
        else:
            self._switch.pause()
