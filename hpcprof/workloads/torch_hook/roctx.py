"""The switch of rocprofv3, and a program's steps that turn it on and off.

Under ``--selected-regions`` rocprofv3 records nothing until ``roctxProfilerResume`` is called. It loads its
library of ROCTx into the program. hpcprof copied this file into the run.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Any

_ALL_THREADS = 0
_LIBRARIES = (None, "librocprofiler-sdk-roctx.so")


def resume() -> None:
    """Have rocprofv3 record, if the program runs under it."""
    _call("roctxProfilerResume")


def pause() -> None:
    """Have rocprofv3 record nothing more until the next `resume`."""
    _call("roctxProfilerPause")


def _call(function: str) -> None:
    for library in _LIBRARIES:
        with suppress(OSError, AttributeError):
            getattr(ctypes.CDLL(library), function)(ctypes.c_uint64(_ALL_THREADS))
            return


class StepWindows:
    """Records the chosen steps of a program, as its optimizers take them.

    Parameters
    ----------
    spans : iterable of (int, int)
        The first and the last step of each span, counted from 0.
    """

    def __init__(self, torch: Any, spans: Any) -> None:
        self._torch = torch
        self._spans = list(spans)
        self._steps = 0
        self._records = False
        self._process = os.getpid()

    def optimizer_made(self) -> None:
        """Begin to record if the first step is chosen."""
        self._turn()

    def stepped(self, _: Any) -> None:
        """Count a step of the program."""
        self._steps += 1
        self._turn()

    def _turn(self) -> None:
        wanted = any(first <= self._steps <= last for first, last in self._spans)
        if wanted == self._records or os.getpid() != self._process:
            return
        # Work of the steps before must not be recorded, and that of the last one must be.
        if self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()
        (resume if wanted else pause)()
        self._records = wanted
