"""Profile the measured steps only, under whichever profiler the rank wrapper chose.

The same calls work under every profiler and without one, so a program needs no profiler-specific code:

>>> import os
>>> import torch.distributed as dist
>>> from hpcprof.workloads.capture import Capture, annotate
>>> from hpcprof.workloads.rankenv import RankEnvironment
>>> environment = RankEnvironment.from_environment(os.environ)
>>> for batch in warm_up_batches:                                        # doctest: +SKIP
...     train(batch)
>>> with Capture(environment, rank=dist.get_rank(), barrier=dist.barrier) as capture:  # doctest: +SKIP
...     for batch in measured_batches:
...         with capture.step(), annotate("iteration"):
...             with annotate("forward"):
...                 loss = model(batch)
...             with annotate("backward"):
...                 loss.backward()
"""

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

from hpcprof.common.atomic import replacing, write_atomically
from hpcprof.node import step_lines
from hpcprof.node.hooks.torch_hook.step_windows import Nvtx, Roctx, StepsAlone, Unitrace, note_of_steps_alone
from hpcprof.node.step_lines import StepLines
from hpcprof.workloads.rankenv import RankEnvironment, RankProfiler

_PROFILER_SWITCHES = ("record_shapes", "profile_memory", "with_stack", "with_flops")
_RUNNERS: dict[RankProfiler, Nvtx | Roctx | Unitrace] = {
    RankProfiler.NSYS: Nvtx(),
    RankProfiler.NCU: Nvtx(),
    RankProfiler.ROCPROFV3: Roctx(),
    RankProfiler.UNITRACE: Unitrace(),
}
"""Switches of the profilers that run the program."""

_FREE_UNTIL_STARTED = (RankProfiler.NSYS, RankProfiler.TORCH)
"""Profilers that cost nothing before they record."""


@functools.cache
def _cuda() -> bool:
    """Return whether CUDA is usable; torch.cuda.nvtx and torch.cuda.profiler raise on a CPU build."""
    return bool(torch.cuda.is_available())


@contextmanager
def annotate(name: str) -> Iterator[None]:
    """Mark a range for the profiler: with ``record_function``, and with CUDA also as an NVTX range for nsys.

    Parameters
    ----------
    name : str
        ``iteration`` marks a step; any other name inside a step marks a phase.
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
    """Wait for the work on the current CUDA device; without CUDA, return at once."""
    if _cuda():
        torch.cuda.synchronize()


class Capture:
    """Start the profiler before the measured steps and stop it after them, as a context manager.

    Every rank, profiled or not, passes the same barriers: one before the profiler starts, one when the
    profilers of all ranks run, which is also the common start of the measured steps, and one before they
    stop, so that no rank writes its profile while others still measure. If the block raises, the profile is
    dropped and no barrier is passed, since the other ranks may never reach it.

    Each step runs inside `step`. If the environment selects some of the steps, the profiler starts and
    stops around those instead, with the same barriers.

    In a run of hpcprof, the times of the steps are also written while the program runs, at most once a second
    (`hpcprof.node.step_lines`), and those of the steps before the first selected one are noted as steps
    without the profiler, if these are seven or more.

    Shortly before the walltime limit of the job the profiler stops at the end of a step, and the PyTorch
    profiler writes its trace, while the steps go on. No barrier is passed, since the ranks may be in
    different steps.

    Parameters
    ----------
    environment : RankEnvironment
        The profiler of this rank, the steps that it captures, when it is to stop, and the path of the
        profile.
    rank : int
        The rank of this process; it names the profile if the environment does not.
    barrier : callable
        Blocks until every rank has called it, such as ``torch.distributed.barrier``.
    """

    def __init__(self, environment: RankEnvironment, *, rank: int, barrier: Callable[[], object]) -> None:
        self._profiler = environment.profiler
        self._stem = environment.profile_stem(rank)
        self._chosen = environment.capture_steps
        self._until = environment.capture_until
        self._options = dict(environment.torch_options)
        self._barrier = barrier
        self._state = environment.run_dir / "state" if environment.run_dir is not None else None
        self._step = self._first = 0
        self._running = self._capturing = False
        self._torch_profile: Any = None
        self._traces = 0
        self._steps_alone: StepsAlone | None = None
        if environment.run_dir is not None and self._chosen and self._profiler in _FREE_UNTIL_STARTED:
            note = note_of_steps_alone(environment.run_dir, rank)
            self._steps_alone = StepsAlone.before(self._chosen, synchronize, note)
        self._lines = step_lines.current = StepLines(environment.run_dir, rank)
        hook: Any = sys.modules.get("hpcprof_pulse")
        if hook is not None:
            hook.follow_marks(self._lines)

    def __enter__(self) -> "Capture":
        if not self._chosen:
            self._start()
            return self
        synchronize()
        self._barrier()
        return self

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run one measured step; steps are counted from 0."""
        if any(self._step == first for first, _ in self._chosen):
            self._start()
        self._lines.begin()
        yield
        self._lines.end(self._step)
        if self._steps_alone is not None:
            self._steps_alone.ended(self._step + 1)
        if self._torch_profile is not None:
            self._torch_profile.step()
        if any(self._step == last for _, last in self._chosen):
            self._finish()
        elif self._capturing and self._until is not None and time.time() >= self._until:
            self._stop_ahead_of_walltime()
        self._step += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        if error is not None:
            self._stop_profiler()
            return
        if not self._chosen or self._running:
            self._finish()
        if self._chosen and self._step <= self._chosen[-1][1]:
            first, last = self._chosen[-1]
            self._warn(f"steps {first} to {last} were selected for capture")
        if self._profiler is RankProfiler.TORCH and self._scheduled and not self._traces:
            self._warn(
                "the PyTorch profiler recorded nothing: its schedule needs "
                f"{sum(self._options[key] for key in ('wait', 'warmup', 'active'))} steps"
            )

    @property
    def _scheduled(self) -> bool:
        return bool(self._options.get("active"))

    def _warn(self, problem: str) -> None:
        steps = f"{self._step} step{'s' * (self._step != 1)}"
        print(f"hpcprof: {problem}, but the run had {steps}.", file=sys.stderr)

    def _start(self) -> None:
        self._lines.pause()
        synchronize()
        self._barrier()
        self._running = self._capturing = True
        self._first = self._step
        if self._profiler is RankProfiler.TORCH:
            self._torch_profile = self._make_torch_profile()
            self._torch_profile.start()
        elif self._profiler in _RUNNERS:
            _RUNNERS[self._profiler].resume()
        synchronize()
        self._barrier()

    def _stop_ahead_of_walltime(self) -> None:
        """Stop the profiler of this rank alone, and note it in the run; the steps go on."""
        synchronize()
        earlier = self._traces
        self._stop_profiler(write=True)
        if self._scheduled and earlier == self._traces > 0:
            return  # the cycles of the schedule were over
        steps = self._step - self._first + 1
        progress = f"after {steps} step{'s' * (steps != 1)}{' and written' * (self._traces > earlier)}"
        print(f"hpcprof: the walltime limit is near: the capture was stopped {progress}.", file=sys.stderr)
        if self._state is not None:
            write_atomically(self._state / f"{self._stem.name}.stopped", f"{progress}\n")

    def _finish(self) -> None:
        # The profiler records GPU work only while it runs, so the work must finish first.
        synchronize()
        self._barrier()
        self._running = False
        self._stop_profiler(write=True)

    def _stop_profiler(self, write: bool = False) -> None:
        """Stop, unless it has stopped before; ``write`` the trace that no schedule of PyTorch's writes."""
        if not self._capturing:
            return
        self._capturing = False
        self._lines.pause()
        profile, self._torch_profile = self._torch_profile, None
        if profile is not None:
            profile.stop()
            if write and not self._scheduled:
                self._export(profile)
        elif self._profiler in _RUNNERS:
            _RUNNERS[self._profiler].pause()

    def _export(self, profile: Any) -> None:
        """Write one trace; the traces of later cycles or spans go into folders next to the first."""
        # with_name, not with_suffix: the stem may contain a dot.
        path = self._stem.with_name(f"{self._stem.name}.trace.json.gz")
        if self._traces:
            path = path.parent / f"cycle{self._traces}" / path.name
        self._traces += 1
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            profile.export_chrome_trace(str(temporary))

    def _make_torch_profile(self) -> Any:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if _cuda():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        switches: dict[str, Any] = {
            key: bool(self._options[key]) for key in _PROFILER_SWITCHES if key in self._options
        }
        if self._scheduled:
            cycle = {key: int(self._options[key]) for key in ("wait", "warmup", "active", "repeat")}
            switches |= {"schedule": torch.profiler.schedule(**cycle), "on_trace_ready": self._export}
        return torch.profiler.profile(activities=activities, **switches)
