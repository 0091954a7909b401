"""One use of the PyTorch profiler by the start-up hook."""

from __future__ import annotations

import _thread
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_SWITCHES = ("record_shapes", "profile_memory", "with_stack", "with_flops")


GARBAGE = "garbage collection"
"""The name of the range of a full collection by Python; those who read profiles know it."""

_OLDEST_GENERATION = 2
"""Its collection looks at all objects; those of younger ones take microseconds."""

_COMPILER = ("torch._inductor", "torch._inductor.config")


def compiler_is_loading() -> bool:
    """Return whether PyTorch's compiler is being imported: the profiler then fails on a part of it."""
    specs = (getattr(sys.modules.get(name), "__spec__", None) for name in _COMPILER)
    return any(getattr(spec, "_initializing", False) for spec in specs)


@contextmanager
def _compiler_left_out(torch: Any) -> Iterator[None]:
    """Keep the profiler from importing PyTorch's compiler, which takes seconds, if the program has not."""
    lazy = getattr(torch, "_lazy_modules", None)
    if "torch._inductor" in sys.modules or not isinstance(lazy, set) or "_inductor" not in lazy:
        yield
        return
    lazy.remove("_inductor")
    try:
        yield
    finally:
        lazy.add("_inductor")


class GarbageRanges:
    """Marks each full garbage collection of Python as a range, while it is among ``gc.callbacks``.

    ``begin`` begins a range of a name, and ``end`` ends it. Forked processes mark nothing.
    """

    def __init__(self, begin: Callable[[str], object], end: Callable[[], object]) -> None:
        self._begin, self._end = begin, end
        self._process = os.getpid()
        self._is_open = False

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Begin or end the range of a collection."""
        if info["generation"] != _OLDEST_GENERATION or os.getpid() != self._process:
            return
        if phase == "start":
            self._begin(GARBAGE)
        elif self._is_open:
            self._end()
        self._is_open = phase == "start"


class Recording:
    """One use of the PyTorch profiler. All of it happens in the thread that made it."""

    def __init__(self, torch: Any, options: dict[str, Any]) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        # A program that has not initialized CUDA may still fork processes that will.
        self._cuda = torch.cuda if torch.cuda.is_initialized() else None
        if self._cuda:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            # CUPTI cannot be attached again under CUDA graphs, so it stays attached between recordings.
            os.environ.setdefault("TEARDOWN_CUPTI", "0")
        switches = {key: bool(options[key]) for key in _SWITCHES if key in options}
        self._range = torch.autograd.profiler.record_function
        self._profile = torch.profiler.profile(activities=activities, **switches)
        with _compiler_left_out(torch):
            self._profile.prepare_trace()
        self._mark: Any = None
        # Unlike `record_function` they are no operations: a graph that is being traced gets none.
        enter = torch.autograd._record_function_with_args_enter
        leave = torch.autograd._record_function_with_args_exit
        opened: list[Any] = []
        self._garbage_ranges = GarbageRanges(
            lambda name: opened.append(enter(name)), lambda: leave(opened.pop())
        )
        self.thread = _thread.get_ident()
        self.steps = 0
        self.began: float | None = None
        self.seconds = 0.0

    def begin(self) -> None:
        """Begin to record; until then the profiler warms up."""
        if self._cuda:
            self._cuda.synchronize()
        self._profile.start_trace()
        gc.callbacks.append(self._garbage_ranges)
        self.began = time.monotonic()

    def mark(self, step: int) -> None:
        """Begin the range of a step."""
        self._mark = self._range(f"ProfilerStep#{step}")
        self._mark.__enter__()

    def end_mark(self) -> None:
        """End the range of the last step."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
            self.steps += 1

    def stop(self) -> None:
        """Stop. The range of a step that has not ended is written as unfinished."""
        if self.began is None:
            self.begin()  # A profiler that only warms up cannot be stopped.
        assert self.began is not None
        self.seconds = time.monotonic() - self.began
        with suppress(ValueError):  # the program may have emptied the list
            gc.callbacks.remove(self._garbage_ranges)
        self._profile.stop_trace()

    def has_operations(self) -> bool:
        """Return whether a stopped recording has any operation of PyTorch: a launcher's has none."""
        return any("::" in event.name() for event in self._profile.profiler.kineto_results.events())

    def write(self, path: Path) -> None:
        """Write a stopped recording, replacing the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{os.urandom(8).hex()}.{path.name}")
        try:
            self._profile.export_chrome_trace(str(temporary))
            temporary.replace(path)
        finally:
            if temporary.exists():
                temporary.unlink()
