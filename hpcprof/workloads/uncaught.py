"""Note the uncaught exception that ends a rank, and end an MPI program of which one rank has ended so.

``MPI_Finalize`` of that rank would wait for the other ranks, which wait for it in turn. A run has a copy of
this file in ``hook/``. It runs without hpcprof, under any Python from 3.8: it imports nothing but the
standard library.

The interpreter itself tells that an exception is uncaught, and no text that a program prints: it has set
``sys.last_value``, and no Python function was running any more. The program's own ``finally`` blocks, exit
handlers and threads have time to end, and all ranks may fail together, as they can then finalize MPI.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import threading
import time
from types import TracebackType
from typing import Any, NoReturn

GRACE_SECONDS = 20.0
"""The seconds that the program has to end by itself after the exception."""

_PAUSE_SECONDS, _RANKS_PER_SECOND = 0.5, 500
_LONGEST_MESSAGE = 4000

_OWNER = "HPCPROF_EXCEPTION_OF"
"""The environment variable with the number of the process whose exception ends the rank."""

_LIBRARIES = re.compile(
    r"^<|/(?:site|dist)-packages/|/lib(?:64)?/python3|\.zip/|/hook/(?:sitecustomize|hpcprof_)"
)
"""Files that are not the user's own code."""


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


def describe(error: BaseException) -> dict[str, Any]:
    """Return the type and the message of an exception, and the innermost line of the user's code."""
    kind = type(error)
    hidden = kind.__module__ in ("builtins", "__main__")
    try:
        message = str(error)
    except Exception:
        message = ""
    return {
        "type": kind.__qualname__ if hidden else f"{kind.__module__}.{kind.__qualname__}",
        "message": message.strip()[:_LONGEST_MESSAGE],
        "where": _place(error),
    }


def _place(error: BaseException) -> dict[str, Any] | None:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return {"file": error.filename, "line": error.lineno, "function": "<module>"}
    own = last = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        last = {"file": code.co_filename, "line": trace.tb_lineno, "function": code.co_name}
        own = own if _LIBRARIES.search(code.co_filename) else last
        trace = trace.tb_next
    return own or last


class ExceptionWatch:
    """Watches for the exception that ends this process; forked processes are left alone."""

    def __init__(self, run_directory: str, rank: str, started_as: str, watched: bool) -> None:
        self._state = os.path.join(run_directory, "state")
        self._rank = rank
        self._started_as = started_as
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
            if _uncaught() is error and self._note(error) and _world() is not None:
                threading.Thread(target=self._wait, name="hpcprof", daemon=True).start()

    def _at_exit(self) -> None:
        # A program may have an excepthook of its own that does not call this one.
        error = _uncaught()
        if error is not None and self._note(error) and _world() is not None:
            self._wait()

    def _note(self, error: BaseException) -> bool:
        """Note the exception in the run; False in a forked process."""
        if os.getpid() != self._process:
            return False
        if self._deadline is None:
            self._deadline = time.monotonic() + GRACE_SECONDS
            note = {**describe(error), "time": time.time(), "started_as": int(self._started_as)}
            # That of torchrun is about a worker, whose own note stays.
            write = self._write if type(error).__name__ == "ChildFailedError" else self._replace
            write(f"rank{int(self._rank):05d}.exception", json.dumps(note))
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

    def _replace(self, name: str, text: str) -> None:
        """Write a fact; that of an earlier program of the rank goes."""
        path = os.path.join(self._state, name)
        try:
            with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
                file.write(f"{text}\n")
            os.replace(file.name, path)
        except OSError:
            pass

    def _write(self, name: str, text: str) -> None:
        """Write a fact, unless there is one already."""
        try:
            with open(os.path.join(self._state, name), "x", encoding="utf-8") as file:
                file.write(f"{text}\n")
        except OSError:
            pass


def install() -> None:
    """Watch this process if it is the program of a rank."""
    run_directory, started_as = (os.environ.get(name, "") for name in ("HPCPROF_RUN_DIR", "HPCPROF_RANK"))
    # The workers of torchrun are ranks of their own.
    worker = "TORCHELASTIC_RUN_ID" in os.environ
    rank = os.environ.get("RANK", "") if worker else started_as
    if not run_directory or not rank.isdigit() or not started_as.isdigit():
        return
    # A process that the program starts has its variables; one that takes its place has its number too.
    owner = f"{_OWNER}_{'WORKER' if worker else 'RANK'}"
    if os.environ.setdefault(owner, str(os.getpid())) == str(os.getpid()):
        ExceptionWatch(run_directory, rank, started_as, bool(os.environ.get("HPCPROF_WATCHED"))).install()
