"""The switch of Nsight Systems and Compute, and the mark of a step in their profiles, as PyTorch has them.

With a capture range they record nothing until ``cudaProfilerStart`` is called. hpcprof copied this file into
the run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def resume() -> None:
    """Have the profiler record."""
    _call(lambda cuda: cuda.profiler.start())


def pause() -> None:
    """Have the profiler record nothing more until the next `resume`."""
    _call(lambda cuda: cuda.profiler.stop())


def mark(name: str) -> None:
    """Record an empty range."""
    _call(lambda cuda: (cuda.nvtx.range_push(name), cuda.nvtx.range_pop()))


def _call(function: Callable[[Any], object]) -> None:
    # A build of PyTorch for the CPU has neither, and says so by an AssertionError.
    with suppress(RuntimeError, AttributeError, AssertionError):
        function(sys.modules["torch"].cuda)
