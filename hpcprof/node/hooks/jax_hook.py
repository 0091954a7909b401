"""Records a part of a JAX program with its own profiler.

``sitecustomize`` beside it loads this file once the program has imported JAX. Steps
that the program marks (``jax.profiler.StepTraceAnnotation``) are counted, and by default the twenty after the
first five are recorded, or as many as ten seconds hold. Until then, windows are recorded by time: executions
of jitted functions cannot be counted from Python. JAX tells when it has compiled one, which may take longer
than a window: what is recorded until then shows nothing of the program's steps.

Nothing here may initialize a device that the program has not initialized.
"""

from __future__ import annotations

import _thread
import atexit
import functools
import os
import shutil
import sys
import time
from contextlib import suppress
from typing import Any

# Relative, since the hook's folder in a run is no part of hpcprof.
from .window import WINDOWS_S, Window, guarded, say, span_words, spans_of

_WINDOW_S = 4.0
_MAX_WINDOW_S = 60.0
"""Maximum seconds of a window in which the program compiles."""
_MAX_RESTARTS = 2
"""Maximum number of times that windows begin anew because the program compiled after them."""
_COMPILES, _LOWERING_EVENTS = "/jax/core/compile/", "/jax/core/compile/jaxpr_to_mlir_module_duration"
"""Events of JAX: it ends a part of compiling, and XLA begins its own, which takes the longest."""
_LOOK_S, _IDLE_LOOK_S = 0.1, 1.0


class JaxRecorder(Window):
    """Decides what is recorded, from the steps that the program marks and from the time.

    ``profiler`` has ``start(folder)``, ``stop()``, ``synchronize()`` to wait for the devices, and
    ``ready()``: whether the program has initialized them.
    """

    title, suffix, claim = "JAX", ".xplane.pb", ".hpcprof-jax"

    def __init__(self, profiler: Any, environ: dict[str, str]) -> None:
        super().__init__(environ)
        self._profiler = profiler
        self._folder = self._profile.with_name(f".{os.urandom(8).hex()}.{self._profile.name}")
        self._first, self._last = next(spans_of(self._step_spans))
        self._compiled = float("-inf")
        self._lowered: float | None = None
        self._restarts = _MAX_RESTARTS
        self._steady = 0.0
        self._windows = list(WINDOWS_S)
        self._began: float | None = None
        self._records_steps = self._lost_profile = False
        self._steps_sentence = ""
        self._window_sentence = ""

    @property
    def waits(self) -> bool:
        """True if `tick` is still to be called."""
        return not self.closed and bool(self.is_busy or self._may_restart or self._until < float("inf"))

    @property
    def _may_restart(self) -> bool:
        return self._restarts > 0 and not (self._steps_sentence or self._is_disabled)

    @property
    def is_busy(self) -> bool:
        """True if `tick` is to be called often."""
        return bool(self._windows) or self._began is not None

    def lowered(self) -> None:
        """Note that the program has XLA compile something from now on."""
        self._lowered = time.monotonic()

    def compiled(self) -> None:
        """Note that the program has just compiled something."""
        self._compiled, self._lowered = time.monotonic(), None

    @guarded
    def tick(self) -> None:
        """Begin or end a window if it is time to, and stop ahead of the walltime limit."""
        now = time.monotonic()
        if time.time() >= self._until:
            records = self._began is not None
            self._finish("the walltime limit came near")
            if records:
                self._note_stopped("and written")
        elif self._records_steps:
            return
        elif self._began is not None:
            # A lowered function is not always compiled.
            compiles = self._lowered is not None and now - self._lowered < _MAX_WINDOW_S
            compiled = self._compiled
            steady = 0.0 if compiles else now - max(self._began, compiled)
            if steady >= _WINDOW_S or now - self._began >= _MAX_WINDOW_S:
                # To write takes a while: what is compiled in it is not in this window.
                self._end_window()
                self._ready_since = max(now if self._ready_since is None else self._ready_since, compiled)
        elif self._ready_since is not None and self._compiled > self._ready_since and self._may_restart:
            # The window before shows how the program compiles.
            self._ready_since, self._windows, self._steady = self._compiled, list(WINDOWS_S), 0.0
            self._restarts -= 1
        elif self._windows and self._profiler.ready():
            self._ready_since = now if self._ready_since is None else self._ready_since
            if now - self._ready_since >= self._windows[0]:
                self._windows = [moment for moment in self._windows if moment > now - self._ready_since]
                self._begin()

    @guarded
    def step_begins(self) -> None:
        """Begin to record if this step is the first to record."""
        if self._steps == self._first and not self._steps_sentence:
            if self._began is not None:
                self._end_window()
            self._windows = []
            self._profiler.synchronize()
            self._records_steps = self._begin()

    @guarded
    def step_ends(self) -> None:
        """Count a step, and stop if it is the last to record."""
        self._steps += 1
        if self._records_steps and self._began is not None:
            full = time.monotonic() - self._began >= self._max_seconds
            if self._steps > self._last or full:
                self._profiler.synchronize()
                self._end_steps()

    @guarded
    def program_profiles(self) -> None:
        """Make room for a profile that the program itself starts."""
        if self._records_steps:
            self._end_steps("the program started the JAX profiler itself")
        elif self._began is not None:
            self._end_window()
        self._is_disabled, self._windows = True, []

    def forked(self) -> None:
        """Record nothing in a process that was forked."""
        super().forked()
        self.closed = True

    def _finish(self, reason: str) -> None:
        if self._records_steps and self._began is not None:
            self._end_steps(reason)
        elif self._began is not None:
            self._end_window()
        self.closed = True
        if self._steps_sentence:
            say(self._steps_sentence)
        elif self._window_sentence:
            marked = f"only {self._steps} step{'s' * (self._steps != 1)}" if self._steps else "no step"
            reason = "JAX wrote no profile of its steps" if self._lost_profile else f"it marked {marked}"
            say(f"{self._window_sentence}, since {reason}.")
        elif self._is_disabled:
            say("no trace: the program runs the JAX profiler itself.")
        elif not self._claim.exists():
            say("no trace: the program used no device of JAX.")

    def _begin(self) -> bool:
        if self._is_disabled or not self._claims_rank():
            self._windows = []
            return False
        self._profiler.start(str(self._folder))
        self._began = time.monotonic()
        return True

    def _end_steps(self, reason: str = "") -> None:
        self._lost_profile = not self._stop()
        self._records_steps = False
        last = self._steps - 1
        if not self._lost_profile and last >= self._first:
            steps, early = span_words(self._first, last, self._last, reason)
            self._steps_sentence = f"recorded {steps} that the program marks, counted from 0{early}."

    def _end_window(self) -> None:
        assert self._began is not None
        now = time.monotonic()
        seconds, began = now - self._began, self._began - self._imported
        steady = now - max(self._began, self._compiled)
        # If the program ended when it had just begun, the one before shows more.
        keeps = not self._window_sentence or steady >= min(_WINDOW_S / 2, self._steady)
        if self._stop(keeps) and keeps:
            self._steady = steady
            span = f"{seconds:.2g} s of the program, {began:.2g} s after it imported JAX"
            self._window_sentence = f"recorded {span}"

    def _stop(self, keeps: bool = True) -> bool:
        """Stop, and give the profile its name, if JAX wrote one; its other formats are left out."""
        self._began = None
        try:
            self._profiler.stop()
            written = sorted(self._folder.rglob(f"*{self.suffix}"))
            if keeps and written:
                written[-1].replace(self._profile)
            return bool(written)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


class JaxProfiler:
    """JAX's profiler. ``start`` and ``stop`` are those that the program would call."""

    def __init__(self, jax: Any) -> None:
        self._jax, self._profiler = jax, jax.profiler
        self._start, self._stop = jax.profiler.start_trace, jax.profiler.stop_trace

    def ready(self) -> bool:
        """Return whether the program has initialized its devices."""
        bridge = sys.modules.get("jax._src.xla_bridge")
        is_initialized = getattr(bridge, "backends_are_initialized", None)
        return bool(is_initialized and is_initialized())

    def synchronize(self) -> None:
        """Wait for the work of all devices of the process."""
        for device in self._jax.local_devices():
            with suppress(Exception):  # Not all devices of all versions can be waited for.
                device.synchronize_all_activity()

    def start(self, folder: str) -> None:
        """Begin to record. The functions of Python are left out: to trace them slows the program."""
        options: dict[str, Any] = {}
        if hasattr(self._profiler, "ProfileOptions"):  # from JAX 0.6 on
            options["profiler_options"] = self._profiler.ProfileOptions()
            options["profiler_options"].python_tracer_level = 0
        self._start(folder, **options)

    def stop(self) -> None:
        """Stop, and write the profile below the folder."""
        self._stop()


def _watch_steps(jax: Any, recorder: JaxRecorder) -> None:
    """Have the recorder count the steps that the program marks."""
    step = jax.profiler.StepTraceAnnotation
    enter, leave = step.__enter__, step.__exit__

    def begin(self: Any) -> Any:
        recorder.step_begins()
        return enter(self)

    def end(self: Any, *error: Any) -> Any:
        result = leave(self, *error)
        recorder.step_ends()
        return result

    step.__enter__, step.__exit__ = begin, end


def _watch_profiler(jax: Any, recorder: JaxRecorder) -> None:
    """Have the recorder make room once the program starts a profile of its own."""
    modules = sys.modules.get("jax._src.profiler", jax.profiler)
    start = jax.profiler.start_trace

    @functools.wraps(start)
    def start_trace(*arguments: Any, **options: Any) -> Any:
        recorder.program_profiles()
        return start(*arguments, **options)

    # ``jax.profiler.trace`` calls the function of the module in which it is defined.
    for module in (modules, jax.profiler):
        module.start_trace = start_trace


def _watch_compiler(jax: Any, recorder: JaxRecorder) -> None:
    """Have the recorder know when the program has compiled something."""
    listen = getattr(getattr(jax, "monitoring", None), "register_event_duration_secs_listener", None)

    def note(event: str, *_: Any, **__: Any) -> None:
        if event == _LOWERING_EVENTS:
            recorder.lowered()
        elif event.startswith(_COMPILES):
            recorder.compiled()

    if listen is not None:
        listen(note)


def _watch_time(recorder: JaxRecorder) -> None:
    while recorder.waits:
        recorder.tick()
        time.sleep(_LOOK_S if recorder.is_busy else _IDLE_LOOK_S)


def start(jax: Any) -> JaxRecorder | None:
    """Begin to watch a program that has just imported JAX; None if the process is not to be profiled."""
    if not os.environ.get("HPCPROF_PROFILE_OUTPUT"):
        return None
    recorder = JaxRecorder(JaxProfiler(jax), dict(os.environ))
    _watch_profiler(jax, recorder)
    _watch_steps(jax, recorder)
    _watch_compiler(jax, recorder)
    os.register_at_fork(after_in_child=recorder.forked)
    # JAX closes its devices at exit, after this: what is registered last is called first.
    atexit.register(recorder.close)
    _thread.start_new_thread(_watch_time, (recorder,))
    return recorder
