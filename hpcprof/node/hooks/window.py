"""The part of a program that a profiler inside it records, as the recorders of PyTorch and JAX share it."""

from __future__ import annotations

import _thread
import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

DEFAULT_STEPS = "5-24"
MAX_DEFAULT_S = 10.0
"""Maximum seconds of recording by default; the step under way is then the last."""

WINDOWS_S = (0.0, 10.0, 60.0)
"""The starts of windows. Each replaces the one before: the later one shows less of the program's start."""


def say(sentence: str) -> None:
    """Write a line to standard error, past whatever the program has done to ``sys.stderr``."""
    with suppress(OSError):  # the program has closed it
        os.write(2, f"hpcprof: {sentence}\n".encode(errors="replace"))


def spans_of(steps: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last step of each span of a text such as ``5-24,30``."""
    for part in steps.split(","):
        first, _, last = part.partition("-")
        yield int(first), int(last or first)


def span_words(first: int, last_done: int, last: int, reason: str) -> tuple[str, str]:
    """Return the recorded steps in words, and the reason why they are fewer than those up to ``last``."""
    steps = f"step {first}" if last_done == first else f"steps {first} to {last_done}"
    early = f"; {reason} before the end of step {last_done + 1}" if reason and last_done < last else ""
    return steps, early


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Run a method in one thread at a time and never within itself; an error stops the recording."""

    @functools.wraps(method)
    def safely(self: Window, *arguments: Any) -> None:
        if self.closed or self.thread == _thread.get_ident():
            return
        with self.lock:
            if self.closed:
                return
            self.thread = _thread.get_ident()
            try:
                method(self, *arguments)
            except Exception as error:
                self.give_up(error)
            finally:
                self.thread = None

    return safely


class Window:
    """The steps or seconds of a program that are recorded, unless by a ``schedule`` of the profiler."""

    title: ClassVar[str]
    """The name of the profiler in sentences."""
    suffix: ClassVar[str]
    """The suffix of the profile."""
    claim: ClassVar[str]
    """The file by which one process of a rank records."""

    def __init__(self, environ: dict[str, str], schedule: bool = False) -> None:
        self._profile = Path(environ["HPCPROF_PROFILE_OUTPUT"] + self.suffix)
        chosen = environ.get("HPCPROF_CAPTURE_STEPS")
        self._step_spans = chosen or DEFAULT_STEPS
        self._max_seconds = float("inf") if chosen or schedule else MAX_DEFAULT_S
        # The folder is the rank's own, and new in each attempt to run the job.
        self._claim = Path(environ.get("TMPDIR", os.devnull), self.claim)
        self._owns_claim = False
        run, until = environ.get("HPCPROF_RUN_DIR"), environ.get("HPCPROF_CAPTURE_UNTIL")
        self._state = Path(run) / "state" if run else None
        # Ahead of the walltime limit, in seconds since 1970.
        self._until = float(until) if until else float("inf")
        self._imported = time.monotonic()
        self._process = os.getpid()
        self._ready_since: float | None = None
        self._windows: list[float] = []
        self._steps = 0
        self._is_disabled = False
        self.lock = _thread.allocate_lock()
        self.thread: int | None = None
        self.closed = False

    def give_up(self, error: Exception) -> None:
        """Record nothing more after an error."""
        self.closed = True
        say(f"the {self.title} profiler stopped: {error!r}; the program goes on.")

    @guarded
    def close(self) -> None:
        """Write what has been recorded when the program ends, and say what it is."""
        if os.getpid() == self._process:
            self._finish("the program ended")

    def forked(self) -> None:
        """Let a process that was forked go on: another thread of its parent may have held the lock."""
        self.lock, self.thread = _thread.allocate_lock(), None

    def _finish(self, reason: str) -> None:
        """Write what has been recorded, and say what it is and the reason for its end."""
        raise NotImplementedError

    def _note_stopped(self, words: str) -> None:
        """Note in the run that the recording was written ahead of the walltime limit."""
        if self._state is not None:
            note = self._state / self._profile.name.replace(self.suffix, ".stopped")
            temporary = note.with_name(f".{note.name}.{os.getpid()}")
            temporary.write_text(f"{words}\n")
            temporary.replace(note)

    def _claims_rank(self) -> bool:
        """Return whether this process is the first of its rank that records."""
        if not self._owns_claim:
            number = str(self._process)
            try:
                with self._claim.open("x") as file:
                    file.write(number)
                self._owns_claim = True
            except FileExistsError:
                with suppress(OSError):  # A program that has replaced itself has the same number.
                    self._owns_claim = self._claim.read_text() == number
            except OSError:
                self._owns_claim = True  # A container may not have the folder.
        return self._owns_claim
