"""Signals to the recorder: a program's steps, profilers, time and end."""

from __future__ import annotations

import _thread
import atexit
import ctypes
import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Relative, since the hook's folder in a run is no part of hpcprof.
from .recorder import Recorder, chosen_spans
from .step_windows import Nvtx, Roctx, StepWindows, Unitrace, note_of_steps_alone

_LOOK_S = 0.1
_SWITCHES = {"nsys": Nvtx, "ncu": Nvtx, "rocprofv3": Roctx, "unitrace": Unitrace}
"""Profilers that run the program, which turns them on and off."""


def _watch_profilers(torch: Any, recorder: Recorder) -> None:
    """Have the recorder make room once the program makes a profiler of its own."""

    def making_room(make: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(make)
        def make_room(*args: Any, **kwargs: Any) -> None:
            recorder.program_profiles()
            make(*args, **kwargs)

        return make_room

    for profile in (torch.profiler.profile, torch.autograd.profiler.profile):
        profile.__init__ = making_room(profile.__init__)


def _watch_time(recorder: Recorder) -> None:
    """Have the main thread, whose operations alone are recorded, call the recorder by pending calls."""

    def tick(_: object) -> int:
        try:
            recorder.tick()
        except KeyboardInterrupt:
            _thread.interrupt_main()  # A call from C ends errors here.
        return 0

    # The interpreter may call it, so it must never be deleted.
    call = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(tick)

    def look() -> None:
        while recorder.waits:
            if recorder.is_due():
                ctypes.pythonapi.Py_AddPendingCall(call, None)
            time.sleep(_LOOK_S)

    _thread.start_new_thread(look, ())


def _is_launcher() -> bool:
    """Return whether this process only starts others, as PyTorch's launcher and compilers do."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return str(getattr(main, "name", "")).startswith("torch.")


def _notes() -> tuple[Path | None, tuple[Path, Path] | None]:
    """Return where the rank notes its steps alone, and the notes of its window; None for none.

    nsys costs nothing before it records, or once its session has ended.
    """
    run, rank = os.environ.get("HPCPROF_RUN_DIR"), os.environ.get("HPCPROF_RANK", "")
    if not run or not rank.isdigit():
        return None, None
    window = os.environ.get("HPCPROF_WINDOW")
    notes = (Path(window), Path(run, "state", "window")) if window else None
    costs = os.environ.get("HPCPROF_PROFILER") != "nsys"
    return None if costs else note_of_steps_alone(Path(run), int(rank)), notes


def start(torch: Any, pulse: Any, is_child: bool) -> Recorder | None:
    """Begin to watch a program that has imported torch; None for its children and for other ranks."""
    if not os.environ.get("HPCPROF_PROFILE_OUTPUT"):
        return None
    switch = _SWITCHES.get(os.environ.get("HPCPROF_PROFILER", ""))
    if switch is not None:
        chosen = os.environ.get("HPCPROF_CAPTURE_STEPS")
        spans = tuple(chosen_spans(chosen, {})) if chosen else ()
        windows = StepWindows(torch, spans, switch(), pulse.marked_steps, *_notes(), pulse.leave_out)
        pulse.watch_optimizers(torch, windows.stepped, windows.optimizer_made)
        if spans and not is_child and not _is_launcher():
            atexit.register(windows.close)
        return None
    recorder = Recorder(torch, dict(os.environ))
    pulse.watch_optimizers(torch, recorder.stepped, recorder.optimizer_made)
    _watch_profilers(torch, recorder)
    os.register_at_fork(after_in_child=recorder.forked)
    atexit.register(recorder.close)
    if not is_child and not _is_launcher():
        recorder.use_windows()
        if _thread.get_ident() == pulse.main_thread():
            recorder.tick()
        _watch_time(recorder)
    return recorder
