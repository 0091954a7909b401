"""Records some optimizer steps of a program that marks none, with the PyTorch profiler.

``sitecustomize`` loads it once the program has imported torch. The steps of an optimizer are
counted, and by default the twenty after the first five are recorded, or as many as ten seconds hold. Until
then windows are recorded: by time, for programs without an optimizer, and of the first steps, for programs
that take no more.

Nothing here may use a GPU that the program would not use.
"""

from __future__ import annotations

import _thread
import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

# Relative, since the hook's folder in a run is no part of hpcprof.
from ..window import WINDOWS_S, Window, guarded, say, span_words, spans_of
from .recording import Recording, compiler_is_loading

_WINDOW_S = 2.0
_WINDOW_STEPS = 2
_MAX_WINDOW_S = 10.0
"""Maximum seconds that a window waits for `_WINDOW_STEPS` steps of an optimizer."""

_QUIET_S = 60.0
"""Seconds without an optimizer step after which a program counts as one without an optimizer."""

_GPUS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))
_CAPTURE = "hpcprof.workloads.capture"


def chosen_spans(steps: str, options: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield the spans of steps to record: the steps of the schedule, else ``steps``."""
    if not options.get("active"):
        yield from spans_of(steps)
        return
    wait, warmup, active, repeat = (int(options[key]) for key in ("wait", "warmup", "active", "repeat"))
    for cycle in range(repeat) if repeat else itertools.count():
        first_step = cycle * (wait + warmup + active) + wait + warmup
        yield first_step, first_step + active - 1


class Recorder(Window):
    """Decides what is recorded, from the steps that optimizers take and from the time."""

    title, suffix, claim = "PyTorch", ".trace.json.gz", ".hpcprof-torch"

    def __init__(self, torch: Any, environ: dict[str, str]) -> None:
        self._options = json.loads(environ.get("HPCPROF_TORCH_OPTIONS") or "{}")
        super().__init__(environ, schedule=bool(self._options.get("active")))
        self._torch = torch
        self._spans = chosen_spans(self._step_spans, self._options)
        self._span = next(self._spans, None)
        self._warmup = max(1, int(self._options.get("warmup", 0)))
        self._alone = environ.get("HPCPROF_WORLD_SIZE") == "1"
        self._optimizer = ""
        self._last_step = float("-inf")
        self._recording: Recording | None = None
        self._window: Recording | None = None
        self._draft: Recording | None = None
        self._written: Recording | None = None
        self._no_windows = self._uses_windows = False
        self._has_optimizer = False
        self._cycles = 0
        self._window_sentence = ""

    def use_windows(self) -> None:
        """Record windows too, without Python stacks: PyTorch 2.13 crashes over names of code that is gone."""
        self._no_windows = bool(self._options.get("with_stack"))
        self._uses_windows = not self._no_windows
        self._windows = list(WINDOWS_S) if self._uses_windows else []

    @property
    def waits(self) -> bool:
        """True if `tick` is still to be called: for a window, or ahead of the walltime limit."""
        more = self._window or self._windows
        return not self.closed and bool(more or (self._until < float("inf") and (self._span or self._draft)))

    def is_due(self) -> bool:
        """Return whether `tick` has anything to do. Called from another thread than the program's."""
        if time.time() >= self._until:
            return True
        if self._window is not None:
            elapsed = time.monotonic() - (self._window.began or float("inf"))
            enough = self._window.steps >= _WINDOW_STEPS or not self._has_optimizer
            return elapsed >= (_WINDOW_S if enough else _MAX_WINDOW_S)
        if not self._windows or self._recording is not None or not self._is_ready():
            return False
        now = time.monotonic()
        return now - self._last_step >= _QUIET_S and now - (self._ready_since or now) >= self._windows[0]

    @guarded
    def tick(self) -> None:
        """Begin or end a window if it is time to, and stop ahead of the walltime limit."""
        if not self.is_due() or self._is_capturing():
            return
        if time.time() >= self._until:
            self._stop_ahead_of_walltime()
        elif self._window is not None:
            self._end_window()
        elif self._is_left_out() or self._claim.exists():
            self._windows.clear()
        elif not compiler_is_loading():  # this call may come between two instructions of an import
            elapsed = time.monotonic() - (self._ready_since or 0.0)
            self._windows = [moment for moment in self._windows if moment > elapsed]
            self._begin_window()

    @guarded
    def optimizer_made(self) -> None:
        """Note that the program has an optimizer: its first step, and a window that shows it, begin."""
        if self._has_optimizer or self._is_capturing():
            return
        self._has_optimizer = True
        is_own_thread = self._window is None or self._window.thread == _thread.get_ident()
        if is_own_thread and self._uses_windows and not self._is_left_out() and not self._claim.exists():
            if self._window is not None:
                self._stop_window()
            self._begin_window()
        self._advance()

    @guarded
    def stepped(self, optimizer: Any) -> None:
        """Count a step of the program, which an optimizer has ended."""
        if self._is_capturing():
            return
        self._steps += 1
        self._optimizer = type(optimizer).__name__
        self._last_step = time.monotonic()
        self._advance()
        if time.time() >= self._until:
            self._stop_ahead_of_walltime()

    @guarded
    def program_profiles(self) -> None:
        """Make room for a profiler that the program itself starts."""
        self._is_disabled = True
        self._windows.clear()
        if self._recording is not None:
            self._end_span("the program started the PyTorch profiler itself")
        if self._window is not None:
            self._stop_window()
        self._span = self._draft = None

    def forked(self) -> None:
        """Record nothing in a process that was forked while its parent recorded, nor windows in any."""
        super().forked()
        self._windows.clear()
        if self._recording or self._window:
            self.closed = True
            # The profiler would go on in the memory of the child.
            self._torch.autograd._enable_record_function(False)
            sys.setprofile(None)

    def give_up(self, error: Exception) -> None:
        """Record nothing more after an error."""
        super().give_up(error)
        active = self._recording or self._window
        if active is not None:
            with suppress(Exception):
                active.stop()

    def _finish(self, reason: str) -> None:
        if self._recording is not None:
            self._end_span(reason)
        if self._window is not None:
            self._end_window()
        if self._draft is not None and self._is_worth_writing(self._draft):
            self._write_window(self._draft)
        self.closed = True
        if self._cycles or _CAPTURE in sys.modules:
            return
        if self._window_sentence:
            say(self._window_sentence.format(steps=self._count_text()))
        elif self._is_disabled:
            say(
                "no trace: the program runs the PyTorch profiler itself; hpcprof open reads its traces, "
                "which a profiler with a schedule writes only if the program calls its step()."
            )
        elif self._no_windows and not self._steps and not self._profile.exists():
            say("no trace: the program took no optimizer step, and with_stack=true records only steps.")
        elif self._steps and self._span:
            say(
                f"no trace: the program took {self._count_text()}, and recording begins after "
                f"{self._span[0]}: give --capture-steps 0-{self._steps - 1}."
            )

    def _stop_ahead_of_walltime(self) -> None:
        """Write what has been recorded before the job is killed, and note it in the run."""
        active = self._recording or self._window
        if active is not None and active.thread != _thread.get_ident():
            return  # The thread that records does it at the end of its step.
        earlier = self._written
        self._finish("the walltime limit came near")
        last = self._written
        if last is not None and last is not earlier:
            steps = f"{last.steps} step{'s' * (last.steps != 1)}" if last.steps else f"{last.seconds:.2g} s"
            self._note_stopped(f"after {steps} and written")

    def _advance(self) -> None:
        """Begin or end recordings where the next step begins, and mark it."""
        active = self._recording or self._window
        if active is not None:
            if active.thread != _thread.get_ident():
                return
            active.end_mark()
        recording = self._recording
        if recording is not None and self._span is not None:
            # A recording that has a step lasts as long as it may.
            if recording.steps and time.monotonic() - (recording.began or 0.0) >= self._max_seconds:
                self._span = self._span[0], self._steps - 1
            if self._steps > self._span[1]:
                self._end_span()
        while self._span is not None and self._steps > self._span[1]:
            self._span = next(self._spans, None)
        if self._span is not None and self._recording is None and self._steps >= self._span[0] - self._warmup:
            self._prepare_span()
        if self._recording is not None and self._span is not None and self._steps >= self._span[0]:
            if self._recording.began is None:
                self._recording.begin()
            self._recording.mark(self._steps)
        elif self._window is not None:
            self._window.mark(self._steps)

    def _begin_window(self) -> None:
        self._window = Recording(self._torch, self._options)
        self._window.begin()

    def _prepare_span(self) -> None:
        if self._is_left_out() or not self._claims_rank():
            self._span = None
            self._windows.clear()
            return
        if self._window is not None:
            self._stop_window()
        self._recording = Recording(self._torch, self._options)

    def _end_span(self, reason: str = "") -> None:
        """Stop recording steps, and write them if one is complete."""
        recording, self._recording = self._recording, None
        assert recording is not None
        assert self._span is not None
        recording.stop()
        first, last = self._span
        last_done = min(self._steps - 1, last)
        if last_done < first:
            return
        cycle = f"cycle{self._cycles}" if self._cycles else ""
        recording.write(self._profile.parent / cycle / self._profile.name)
        self._cycles += 1
        self._written, self._draft = recording, None
        self._windows.clear()
        steps, early = span_words(first, last_done, last, reason)
        say(f"recorded optimizer {steps} of {self._optimizer}, counted from 0{early}.")

    def _stop_window(self) -> None:
        """Stop a window early, and keep it in case that no steps are recorded."""
        assert self._window is not None
        self._draft, self._window = self._window, None
        self._draft.stop()

    def _end_window(self) -> None:
        recording, self._window = self._window, None
        assert recording is not None
        recording.stop()
        if self._steps:
            self._draft = recording  # Writing it now would hold up the steps, which may replace it.
        elif self._is_worth_writing(recording):
            self._write_window(recording)

    def _is_worth_writing(self, window: Recording) -> bool:
        """Return whether a window shows work, and neither the program nor another process writes a trace."""
        is_claimed = self._claim.exists() and not self._owns_claim
        if self._written is not None and window.seconds < _WINDOW_S / 2 and not window.steps:
            return False  # The program ended when it had just begun: the one before shows more.
        return not is_claimed and not self._is_left_out() and window.has_operations()

    def _write_window(self, window: Recording) -> None:
        window.write(self._profile)
        self._written, self._draft = window, None
        begin = (window.began or self._imported) - self._imported
        self._window_sentence = (
            f"recorded {window.seconds:.2g} s of the program, {begin:.2g} s after it imported torch, since "
            "it took {steps}."
        )

    def _count_text(self) -> str:
        steps = f"only {self._steps} optimizer step{'s' * (self._steps != 1)}"
        return steps if self._steps else "no optimizer step"

    def _claims_rank(self) -> bool:
        """Return whether this process is the first of its rank that takes steps, and so is recorded."""
        distributed = self._torch.distributed
        several = self._alone and distributed.is_available() and distributed.is_initialized()
        # The only rank of the job may have started several processes, as torchrun does.
        if several and distributed.get_rank() != 0:
            return False
        return super()._claims_rank()

    def _is_left_out(self) -> bool:
        """Return whether the program says itself what is to be profiled."""
        return self._is_disabled or _CAPTURE in sys.modules

    def _is_ready(self) -> bool:
        """Return whether a recording could see the program's GPU work, if it does any."""
        if self._ready_since is None:
            is_ready = self._torch.cuda.is_initialized() or not any(path.exists() for path in _GPUS)
            self._ready_since = time.monotonic() if is_ready else None
        return self._ready_since is not None

    def _is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured, which starting and stopping would break."""
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
