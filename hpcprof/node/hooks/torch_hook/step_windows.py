"""A program's steps that turn a profiler on and off, and are marked in its profile."""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

# Relative, since the hook's folder in a run is no part of hpcprof.
from ..window import say
from .recording import GarbageRanges

MARK = "hpcprof.step"
"""The name of the empty range between two steps; those who read profiles know it."""

BEGIN = "hpcprof.window"
"""The name of the empty range before the first step of a window, where steps before it are recorded too."""

FIRST_STEP, MIN_STEPS, MAX_STEPS, MAX_S = 10, 3, 20, 10.0
"""The first step of the window, its minimum and maximum number of steps, and the maximum seconds of a window
of more than the minimum."""

_WARM_UP_STEPS, _MAX_ALONE_STEPS, _MIN_ALONE_STEPS = 3, 40, 4
"""Number of steps before those that are timed alone, and the maximum and minimum number of these."""

_STEPS_AFTER_WINDOW = (4, 9, 14, 29, 49)
"""The bounds of the spans of steps that are timed alone, counted from the end of a window: in the first steps
other ranks may still end their recording, and loaders have batches ready."""

_NSYS_VARIABLES = ("PATH", "HOME", "USER", "TMPDIR", "LANG", "LC_ALL")
"""The environment variables of a program that `Nvtx.end` starts."""

_MAX_END_S, _MAX_PAUSE_S = 60.0, 20.0
"""Maximum seconds that the end of a program, and of a window, wait for Nsight Systems to end its session."""

_ALL_THREADS = 0
_ROCTX_LIBRARIES = (None, "librocprofiler-sdk-roctx.so")


class _Ranges:
    """Ranges in a profile, which nest."""

    def begin_range(self, name: str) -> None:
        """Begin a range."""
        raise NotImplementedError

    def end_range(self) -> None:
        """End the range that began last."""
        raise NotImplementedError

    def mark(self, name: str) -> None:
        """Record an empty range."""
        self.begin_range(name)
        self.end_range()


class Nvtx(_Ranges):
    """The switch of Nsight Systems and Compute, which record nothing until it is on, and marks for them."""

    _ending: int | None = None

    def resume(self) -> None:
        """Have the profiler record."""
        self._call(lambda cuda: cuda.profiler.start())

    def pause(self) -> None:
        """Have the profiler record nothing more until the next `resume`."""
        self._call(lambda cuda: cuda.profiler.stop())

    def end(self, session: str) -> None:
        """Have Nsight Systems end a session, which has recorded from the program's start on."""
        self.pause()  # So that nsys gets what CUDA has recorded so far.
        # It would otherwise be a program to trace.
        environment = {name: value for name, value in os.environ.items() if name in _NSYS_VARIABLES}
        silent = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1, 2)]
        with suppress(OSError):
            command = ["nsys", "stop", f"--session={session}"]
            self._ending = os.posix_spawnp(command[0], command, environment, file_actions=silent)
            atexit.register(self.await_end)

    def await_end(self, max_s: float = _MAX_END_S) -> bool:
        """Wait until the session has ended: nsys 2025.3 writes no report if the program ends before that.

        Return whether it has, so that its hooks in CUDA's calls are gone.
        """
        limit = time.monotonic() + max_s
        while not self._has_ended():
            if time.monotonic() >= limit:
                return False
            time.sleep(0.05)
        return self._ending is not None

    def _has_ended(self) -> bool:
        if self._ending is None:
            return True
        try:
            return os.waitpid(self._ending, os.WNOHANG) != (0, 0)
        except ChildProcessError:  # the program has waited for it
            return True

    def begin_range(self, name: str) -> None:
        """Begin a range."""
        self._call(lambda cuda: cuda.nvtx.range_push(name))

    def end_range(self) -> None:
        """End the range that began last."""
        self._call(lambda cuda: cuda.nvtx.range_pop())

    @staticmethod
    def _call(function: Callable[[Any], object]) -> None:
        # A build of PyTorch for the CPU has neither, and says so by an AssertionError.
        with suppress(RuntimeError, AttributeError, AssertionError):
            function(sys.modules["torch"].cuda)


class Roctx(_Ranges):
    """The switch of rocprofv3, which records nothing until it is on, and marks; it loads ROCTx itself."""

    def resume(self) -> None:
        """Have rocprofv3 record, if the program runs under it."""
        self._call("roctxProfilerResume", ctypes.c_uint64(_ALL_THREADS))

    def pause(self) -> None:
        """Have rocprofv3 record nothing more until the next `resume`."""
        self._call("roctxProfilerPause", ctypes.c_uint64(_ALL_THREADS))

    def end(self, _: str) -> None:
        """Have rocprofv3 record nothing more."""
        self.pause()

    def begin_range(self, name: str) -> None:
        """Begin a range."""
        self._call("roctxRangePushA", name.encode())

    def end_range(self) -> None:
        """End the range that began last."""
        self._call("roctxRangePop")

    @staticmethod
    def _call(function: str, *arguments: object) -> None:
        for library in _ROCTX_LIBRARIES:
            with suppress(OSError, AttributeError):
                getattr(ctypes.CDLL(library), function)(*arguments)
                return


class Unitrace(_Ranges):
    """The switch of unitrace, which records while a variable of the process is 1, and marks for it."""

    def resume(self) -> None:
        """Have unitrace record, if the program runs under it."""
        os.environ["PTI_ENABLE_COLLECTION"] = "1"

    def pause(self) -> None:
        """Have unitrace record nothing more until the next `resume`."""
        os.environ["PTI_ENABLE_COLLECTION"] = "0"

    def end(self, _: str) -> None:
        """Have unitrace record nothing more."""
        self.pause()

    def begin_range(self, name: str) -> None:
        """Begin a range."""
        with suppress(RuntimeError, AttributeError):
            sys.modules["torch"].profiler.itt.range_push(name)

    def end_range(self) -> None:
        """End the range that began last."""
        with suppress(RuntimeError, AttributeError):
            sys.modules["torch"].profiler.itt.range_pop()


class StepsAlone:
    """Times the steps that no profiler records, in spans, and notes them for the explanation.

    The GPU is waited for where a span begins and ends, after the numbers of steps in ``bounds``: in the first
    steps of a program its host runs ahead. The note is written with the second span, and with each after it.
    It has the number of steps that are ``recorded``: ranges of the program in the profile are these steps if
    there are as many.
    """

    def __init__(
        self, bounds: Collection[int], recorded: int, synchronize: Callable[[], None], path: Path
    ) -> None:
        self._bounds = bounds
        self._recorded = recorded
        self._synchronize = synchronize
        self._path = path
        self._mark: tuple[int, int] | None = None
        self._spans: list[dict[str, int]] = []

    def ended(self, steps: int) -> None:
        """Take the time once ``steps`` steps have ended."""
        if steps not in self._bounds:
            return
        self._synchronize()
        now = time.perf_counter_ns()
        if self._mark is not None:
            times = {"steps": steps - self._mark[0], "elapsed_ns": now - self._mark[1]}
            self._spans.append({**times, "recorded": self._recorded})
        self._mark = steps, now
        if len(self._spans) > 1:
            with suppress(OSError):
                self._path.parent.mkdir(exist_ok=True)
                self._path.write_text(json.dumps(self._spans))

    @classmethod
    def before(
        cls, spans: Collection[tuple[int, int]], synchronize: Callable[[], None], path: Path
    ) -> StepsAlone | None:
        """Return what times the steps before recorded ``spans`` (first, last); None if they are too few."""
        window = min(first for first, _ in spans)
        begin = max(_WARM_UP_STEPS, window - _MAX_ALONE_STEPS)
        if window - begin < _MIN_ALONE_STEPS:
            return None
        recorded = sum(last - first + 1 for first, last in spans)
        return cls((begin, (begin + window) // 2, window), recorded, synchronize, path)


def note_of_steps_alone(run: Path, rank: int) -> Path:
    """Return the file in the folder of a run for the steps alone of a rank."""
    return run / "state" / "alone" / f"rank{rank:05d}.json"


class SessionWindow:
    """The window of a program that is recorded from its start on: its end, and the steps after it.

    A program that ends before the window is recorded whole. All ranks end with the same step: once the window
    has its minimum of steps, the first rank that gets there writes its choice into the file ``chosen``.
    ``switch`` ends the recording, and the file ``note`` of each rank notes the end. The times of later steps
    go into the file ``alone``, after a pause until the profiler has ended, whose time in ns ``leave_out`` is
    told; None if it slows later steps too.
    """

    def __init__(
        self,
        switch: Any,
        note: Path,
        chosen: Path,
        synchronize: Callable[[], None],
        alone: Path | None,
        leave_out: Callable[[int], None],
    ) -> None:
        self._switch = switch
        self._leave_out = leave_out
        self._note, self._chosen = note, chosen
        self._synchronize = synchronize
        self._path = alone
        self._alone: StepsAlone | None = None
        self._began = 0.0
        self._has_ended = False
        self._last: int | None = None

    def before(self, steps: int) -> None:
        """Mark where the window begins, ahead of the mark of its first step."""
        if steps == FIRST_STEP:
            self._switch.mark(BEGIN)
            self._began = time.monotonic()

    def ended(self, steps: int) -> bool:
        """Return whether steps are still recorded once ``steps`` steps have ended."""
        if self._has_ended:
            if self._alone is not None:
                self._alone.ended(steps)
            return False
        if steps == FIRST_STEP + MIN_STEPS:
            step_s = (time.monotonic() - self._began) / MIN_STEPS
            steps_in_time = int(MAX_S / max(step_s, 1e-6))
            self._last = FIRST_STEP + self._agreed_steps(min(MAX_STEPS, max(MIN_STEPS, steps_in_time)))
        if steps != self._last:
            return True
        self._synchronize()
        with suppress(OSError):
            self._note.touch()
        self._switch.end(self._note.parent.name)
        if self._path is not None:
            began = time.perf_counter_ns()
            if self._switch.await_end(_MAX_PAUSE_S):
                bounds = [steps + more for more in _STEPS_AFTER_WINDOW]
                self._alone = StepsAlone(bounds, steps - FIRST_STEP, self._synchronize, self._path)
            self._leave_out(time.perf_counter_ns() - began)
        self._has_ended = True
        return False

    def _agreed_steps(self, steps: int) -> int:
        """Return the number of steps that the first rank has chosen, which may be this one."""
        draft = self._chosen.with_name(f".{self._chosen.name}.{os.uname().nodename}.{os.getpid()}")
        with suppress(OSError, ValueError):
            draft.write_text(f"{steps}\n")
            with suppress(FileExistsError):
                os.link(draft, self._chosen)
            draft.unlink()
            return int(self._chosen.read_text())
        return steps


class StepWindows:
    """Marks the steps of a program as its optimizers take them, and records the chosen ones.

    A step that the program marks itself (`hpcprof.workloads.capture`) is left to it. ``spans`` are the first
    and the last step of each span, counted from 0; the whole program is recorded without any. ``switch``
    turns the profiler on and off, and marks (`Nvtx`, `Roctx`); ``marked`` returns None unless the program
    marks its steps itself. The times of steps without the profiler go into the file ``alone``. Without spans,
    ``window`` has the files ``note`` and ``chosen`` of a `SessionWindow`; None records the whole program.

    A program with spans that takes no step of an optimizer is not recorded, which `close` says.
    """

    def __init__(
        self,
        torch: Any,
        spans: Iterable[tuple[int, int]],
        switch: Any,
        marked: Callable[[], object],
        alone: Path | None = None,
        window: tuple[Path, Path] | None = None,
        leave_out: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._torch = torch
        self._spans = list(spans)
        self._switch = switch
        self._marked = marked
        self._steps = 0
        self._records = not self._spans
        self._has_recorded = False
        self._process = os.getpid()
        self._alone: StepsAlone | None = None
        if alone is not None and self._spans:
            self._alone = StepsAlone.before(self._spans, self._synchronize, alone)
        # Most callbacks come while nothing is recorded, when ranges cost next to nothing.
        gc.callbacks.append(GarbageRanges(switch.begin_range, switch.end_range))
        self._window: SessionWindow | None = None
        if window is not None and not self._spans:
            self._window = SessionWindow(switch, *window, self._synchronize, alone, leave_out)

    def close(self) -> None:
        """Say why nothing was recorded, when the program ends."""
        if not self._spans or self._has_recorded or not self._is_program():
            return
        if self._steps:
            chosen = f"recording begins after {self._spans[0][0]}: give --capture-steps 0-{self._steps - 1}"
            say(f"no profile: the program took {self._steps} steps of an optimizer, and {chosen}.")
        else:
            say("no profile: the program took no step of an optimizer: leave --capture-steps out.")

    def optimizer_made(self) -> None:
        """Begin to record if the first step is chosen."""
        if self._is_program() and self._is_chosen() and not self._records:
            self._start_or_pause()

    def stepped(self, _: Any) -> None:
        """Count a step of the program."""
        if not self._is_program():
            return
        self._steps += 1
        if self._window is not None and self._records:
            self._window.before(self._steps)
        if self._records:
            self._switch.mark(MARK)
        if self._alone is not None:
            self._alone.ended(self._steps)
        if self._window is not None:
            self._records = self._window.ended(self._steps)
        elif self._is_chosen() != self._records:
            self._start_or_pause()

    def _is_program(self) -> bool:
        return os.getpid() == self._process and self._marked() is None

    def _is_chosen(self) -> bool:
        return not self._spans or any(first <= self._steps <= last for first, last in self._spans)

    def _synchronize(self) -> None:
        for device in (self._torch.cuda, getattr(self._torch, "xpu", None)):
            if device is not None and device.is_available() and device.is_initialized():
                device.synchronize()

    def _start_or_pause(self) -> None:
        # Work of the steps before must not be recorded, and that of the last one must be.
        self._synchronize()
        self._records = not self._records
        if self._records:
            self._has_recorded = True
            self._switch.resume()
            self._switch.mark(MARK)
        else:
            self._switch.pause()
