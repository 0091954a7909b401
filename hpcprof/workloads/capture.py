"""Profile only the measured steps: start and stop of whatever profiler the rank wrapper chose.

The same calls work under every profiler and under none, so a program needs no profiler-specific code:

>>> import os
>>> import torch.distributed as dist
>>> from hpcprof.workloads.capture import Capture, annotate
>>> from hpcprof.workloads.rankenv import RankEnvironment
>>> environment = RankEnvironment.from_environment(os.environ)
>>> for batch in warm_up_batches:                                        # doctest: +SKIP
...     train(batch)
>>> with Capture(environment, rank=dist.get_rank(), barrier=dist.barrier):  # doctest: +SKIP
...     for batch in measured_batches:
...         with annotate("iteration"):
...             with annotate("forward"):
...                 loss = model(batch)
...             with annotate("backward"):
...                 loss.backward()
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

from hpcprof.atomic import replacing
from hpcprof.workloads.rankenv import Profiler, RankEnvironment

_CUDA_PROFILERS = (Profiler.NSYS, Profiler.NCU)


@functools.cache
def _cuda() -> bool:
    """Say whether CUDA can be used; torch.cuda.nvtx and torch.cuda.profiler raise on a CPU build."""
    return bool(torch.cuda.is_available())


@contextmanager
def annotate(name: str) -> Iterator[None]:
    """Mark a range: an NVTX range where CUDA exists (for nsys), and always a ``record_function`` range.

    Parameters
    ----------
    name : str
        ``iteration`` marks a step; any other name inside it is a phase.
    """
    with torch.profiler.record_function(name):
        if not _cuda():
            yield
            return
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()


def synchronize() -> None:
    """Wait for the work on the current CUDA device; nothing to wait for without CUDA."""
    if _cuda():
        torch.cuda.synchronize()


class Capture:
    """Start the profiler before the measured steps and stop it after them, as a context manager.

    Every rank, profiled or not, passes the same barriers: one before the profiler starts, one when every
    rank's profiler runs, which is also the common start of the measured steps, and one before it stops, so
    that no rank writes its profile while others still measure. When the block raises, the profile is
    dropped and no barrier is passed, since the other ranks may never reach it.

    Parameters
    ----------
    environment : RankEnvironment
        Says which profiler this rank runs under and where the profile goes.
    rank : int
        This process' rank; it names the profile where the environment does not.
    barrier : callable
        Returns when every rank has called it, such as ``torch.distributed.barrier``.
    """

    def __init__(self, environment: RankEnvironment, *, rank: int, barrier: Callable[[], object]) -> None:
        self._profiler = environment.profiler
        self._stem = environment.profile_stem(rank)
        self._barrier = barrier
        self._torch_profile: Any = None

    def __enter__(self) -> Capture:
        synchronize()
        self._barrier()
        if self._profiler is Profiler.TORCH:
            self._torch_profile = _torch_profile()
            self._torch_profile.start()
        elif self._profiler in _CUDA_PROFILERS and _cuda():
            torch.cuda.profiler.start()
        synchronize()
        self._barrier()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._stop()
            return
        # The profiler records the GPU's work only while it runs, so the work must end first.
        synchronize()
        self._barrier()
        self._stop()
        if self._torch_profile is not None:
            self._export()

    def _stop(self) -> None:
        if self._torch_profile is not None:
            self._torch_profile.stop()
        elif self._profiler in _CUDA_PROFILERS and _cuda():
            torch.cuda.profiler.stop()

    def _export(self) -> None:
        # with_name, not with_suffix: the stem may hold a dot.
        path = self._stem.with_name(f"{self._stem.name}.trace.json.gz")
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            self._torch_profile.export_chrome_trace(str(temporary))


def _torch_profile() -> Any:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if _cuda():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=activities)
