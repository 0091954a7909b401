"""Note the uncaught exception that ends a rank, and abort its MPI program.

``MPI_Finalize`` of that rank would wait for the other ranks, which wait for it in turn.

The interpreter itself tells that an exception is uncaught, and no text that a program prints: it has set
``sys.last_value``, and no Python function was running any more. The program's own ``finally`` blocks, exit
handlers and threads have time to end, and all ranks may fail together, as they can then finalize MPI.
"""

from __future__ import annotations

import _thread
import json
import os
import re
import sys
import time
import zlib
from contextlib import suppress
from typing import Any, NoReturn

GRACE_SECONDS = 20.0
"""The seconds that the program has to end by itself after the exception."""

_PAUSE_SECONDS, _RANKS_PER_SECOND = 0.5, 500
_MAX_MESSAGE_LENGTH = 4000

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


def describe(error: BaseException) -> dict[str, Any]:
    """Return the type and the message of an exception, and the innermost line of the user's code."""
    members = getattr(error, "exceptions", ())  # of a group, whose message is their number
    if isinstance(members, tuple) and members and isinstance(members[0], BaseException):
        return describe(members[0])
    kind = type(error)
    hidden = kind.__module__ in ("builtins", "__main__")
    try:
        message = str(error).strip()
    except Exception:
        message = ""
    if len(message) > _MAX_MESSAGE_LENGTH:
        # The traceback of another process in it has its error at the end.
        message = f"{message[: _MAX_MESSAGE_LENGTH // 2]}\n…\n{message[-_MAX_MESSAGE_LENGTH // 2 :]}"
    return {
        "type": kind.__qualname__ if hidden else f"{kind.__module__}.{kind.__qualname__}",
        "message": message,
        "where": _place(error),
    }


def _place(error: BaseException) -> dict[str, Any] | None:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return {"file": error.filename, "line": error.lineno, "function": "<module>"}
    place = last = typed = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        last = {"file": code.co_filename, "line": trace.tb_lineno, "function": code.co_name}
        place = place if _LIBRARIES.search(code.co_filename) else last
        if code.co_filename in ("<string>", "<stdin>") and (typed or trace is error.__traceback__):
            typed = last  # python -c, python -
        trace = trace.tb_next
    return place or typed or last


def _command() -> int:
    """Return a checksum of the command of this process, which itself may hold a secret."""
    with suppress(OSError), open("/proc/self/cmdline", "rb") as file:
        return zlib.crc32(file.read())
    return 0


def forget_retried(note: str) -> None:
    """Remove the note of an earlier exception if this process is the same program, tried again."""
    with suppress(OSError, ValueError), open(note, encoding="utf-8") as file:
        if json.load(file).get("command") == _command():
            os.unlink(note)


class ExceptionWatch:
    """The exception of this process, which ends a rank."""

    def __init__(self, run_directory: str, rank: int, watched: bool) -> None:
        self._state = os.path.join(run_directory, "state")
        self._rank = rank
        self._watched = watched
        self._deadline = time.monotonic() + GRACE_SECONDS
        self._ending = _thread.allocate_lock()

    def note(self, error: BaseException, started_as: int) -> None:
        """Note the exception in the run."""
        note = {**describe(error), "time": time.time(), "started_as": started_as, "command": _command()}
        # The exception of torchrun is about a worker, whose own note stays.
        replaces = type(error).__name__ != "ChildFailedError"
        self._write(f"rank{self._rank:05d}.exception", json.dumps(note), replaces)

    def wait(self) -> None:
        """End the job after a while, unless all ranks have failed or MPI has been finalized."""
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
        with suppress(OSError), open(os.path.join(self._state, "started"), encoding="utf-8") as file:
            self._write(f"failed.{file.readline().strip()}", f"{self._rank} 1")
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        try:
            if not self._watched:
                world.Abort(1)
        finally:
            # The wrapper of each other rank ends its program, and lets its profiler write.
            os._exit(1)

    def _write(self, name: str, text: str, replaces: bool = False) -> None:
        """Write a fact, unless a file of it exists that must stay."""
        path = os.path.join(self._state, name)
        with suppress(OSError):
            with open(f"{path}.{os.getpid()}" if replaces else path, "w" if replaces else "x") as file:
                file.write(f"{text}\n")
            if replaces:
                os.replace(file.name, path)


_watches: list[ExceptionWatch] = []


def ended_by(error: BaseException, run_directory: str, rank: int, started_as: int, exits: bool) -> None:
    """Note the exception that ends this rank, which ``started_as`` says, and end the MPI program in time."""
    if not _watches:
        watch = ExceptionWatch(run_directory, rank, bool(os.environ.get("HPCPROF_WATCHED")))
        _watches.append(watch)
        watch.note(error, started_as)
    if _world() is not None:
        if exits:
            _watches[0].wait()
        else:
            _thread.start_new_thread(_watches[0].wait, ())
