"""End an MPI program one of whose ranks has ended with an uncaught exception.

``MPI_Finalize`` of that rank would wait for the other ranks, which wait for it in turn. A run of several
ranks has a copy of this file in ``hook/``. It runs without hpcprof, under any Python from 3.8: it imports
nothing but the standard library.

The interpreter itself tells that an exception is uncaught, and no text that a program prints: it has set
``sys.last_value``, and no Python function was running any more. The program's own ``finally`` blocks, exit
handlers and threads have time to end, and all ranks may fail together, as they can then finalize MPI.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from types import TracebackType
from typing import Any, NoReturn

GRACE_SECONDS = 20.0
"""The seconds that the program has to end by itself after the exception."""

_PAUSE_SECONDS, _RANKS_PER_SECOND = 0.5, 500
_LONGEST_TEXT = 200


def _world() -> Any:
    """Return mpi4py's communicator of all ranks, None if MPI_Finalize would wait for no other rank."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.size < 2:
        return None
    return mpi.COMM_WORLD


def _uncaught() -> BaseException | None:
    """Return the exception that ends this process; None if there is none, or if the user interrupted it."""
    error, trace = getattr(sys, "last_value", None), getattr(sys, "last_traceback", None)
    # An exception that a callback or a console printed was raised below a function that went on.
    if not isinstance(error, BaseException) or trace is None or trace.tb_frame.f_back is not None:
        return None
    return None if isinstance(error, (KeyboardInterrupt, SystemExit)) else error


def describe(error: BaseException) -> str:
    """Return the type of an exception and the first line of its message."""
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        message = str(error).strip().partition("\n")[0]
    except Exception:
        message = ""
    text = f"{name}: {message}" if message else name
    return "".join(char if char.isprintable() else " " for char in text)[:_LONGEST_TEXT]


class ExceptionWatch:
    """Watches for the exception that ends this process; forked processes are left alone."""

    def __init__(self, run_directory: str, rank: str, watched: bool) -> None:
        self._state = os.path.join(run_directory, "state")
        self._rank = rank
        self._watched = watched
        self._process = os.getpid()
        self._show = sys.excepthook
        self._deadline: float | None = None
        self._ending = threading.Lock()

    def install(self) -> None:
        """Begin to watch. Of the exit handlers the first to be registered runs last."""
        sys.excepthook = self._excepthook
        atexit.register(self._at_exit)

    def _excepthook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        try:
            self._show(kind, error, trace)
        finally:
            if _uncaught() is error and self._note(error):
                threading.Thread(target=self._wait, name="hpcprof", daemon=True).start()

    def _at_exit(self) -> None:
        # A program may have an excepthook of its own that does not call this one.
        error = _uncaught()
        if error is not None and self._note(error):
            self._wait()

    def _note(self, error: BaseException) -> bool:
        """Note the exception in the run; False if no other rank waits for this one."""
        world = _world() if os.getpid() == self._process else None
        if world is None:
            return False
        if self._deadline is None:
            self._deadline = time.monotonic() + GRACE_SECONDS
            self._write(f"rank{int(self._rank):05d}.exception", describe(error))
        return True

    def _wait(self) -> None:
        """End the job after a while, unless all ranks have failed or MPI has been finalized."""
        assert self._deadline is not None
        world = _world()
        while world is not None and time.monotonic() < self._deadline:
            if self._failed_ranks() >= world.size:
                return
            time.sleep(max(_PAUSE_SECONDS, world.size / _RANKS_PER_SECOND))
            world = _world()
        if world is not None:
            # The thread that comes second waits: the end of the main thread would stop the first one.
            with self._ending:
                self._end(world)

    def _failed_ranks(self) -> int:
        try:
            return sum(name.endswith(".exception") for name in os.listdir(self._state))
        except OSError:
            return 0

    def _end(self, world: Any) -> NoReturn:
        try:
            with open(os.path.join(self._state, "started"), encoding="utf-8") as file:
                self._write(f"failed.{file.readline().strip()}", f"{self._rank} 1")
        except OSError:
            pass
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        try:
            if not self._watched:
                world.Abort(1)
        finally:
            # The wrapper of each other rank ends its program, and lets its profiler write.
            os._exit(1)

    def _write(self, name: str, text: str) -> None:
        """Write a fact, unless there is one already."""
        try:
            with open(os.path.join(self._state, name), "x", encoding="utf-8") as file:
                file.write(f"{text}\n")
        except OSError:
            pass


def install() -> None:
    """Watch this process if it may be a rank of several."""
    names = ("HPCPROF_RUN_DIR", "HPCPROF_RANK", "HPCPROF_WORLD_SIZE")
    run_directory, rank, size = (os.environ.get(name, "") for name in names)
    if run_directory and rank.isdigit() and size.isdigit() and int(size) > 1:
        ExceptionWatch(run_directory, rank, bool(os.environ.get("HPCPROF_WATCHED"))).install()
