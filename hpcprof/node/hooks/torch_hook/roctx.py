"""The switch of rocprofv3, and the mark of a step in its profile.

Under ``--selected-regions`` rocprofv3 records nothing until ``roctxProfilerResume`` is called. It loads its
library of ROCTx into the program. hpcprof copied this file into the run.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

_ALL_THREADS = 0
_LIBRARIES = (None, "librocprofiler-sdk-roctx.so")


def resume() -> None:
    """Have rocprofv3 record, if the program runs under it."""
    _call("roctxProfilerResume", ctypes.c_uint64(_ALL_THREADS))


def pause() -> None:
    """Have rocprofv3 record nothing more until the next `resume`."""
    _call("roctxProfilerPause", ctypes.c_uint64(_ALL_THREADS))


def mark(name: str) -> None:
    """Record an empty range."""
    _call("roctxRangePushA", name.encode())
    _call("roctxRangePop")


def _call(function: str, *arguments: object) -> None:
    for library in _LIBRARIES:
        with suppress(OSError, AttributeError):
            getattr(ctypes.CDLL(library), function)(*arguments)
            return
