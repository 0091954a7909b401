"""End the whole job when one rank fails: the other ranks would wait for it forever."""

import fcntl
import os
import stat
import sys
import termios
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from hpcprof.common.errors import HpcprofError

# A launcher that has not read a few lines after this time will not read them at all.
_PATIENCE_S = 2.0


def run_or_abort(comm: Any, work: Callable[[], int]) -> int:
    """Return ``work()``; print an error, with a traceback if it is a bug, and abort every rank."""
    try:
        return work()
    except HpcprofError as error:
        abort(comm, f"rank {comm.rank}: {error}\n", error.exit_code)
    except Exception as error:
        sentence = f"rank {comm.rank}: {type(error).__name__}: {error}\n"
        abort(comm, traceback.format_exc() + sentence, 1)


def print_once(comm: Any, sentence: str, code: int) -> int:
    """Print a message that all ranks agree on from rank 0 only, and return the exit status ``code``."""
    if comm.rank == 0:
        print(sentence, file=sys.stderr, flush=True)
    return code


def abort(comm: Any, text: str, code: int) -> NoReturn:
    """Print ``text`` and end every rank with the exit status ``code``."""
    # A single write, so that lines of several ranks do not mix.
    sys.stderr.write(text)
    sys.stderr.flush()
    _wait_until_read(sys.stderr.fileno())
    comm.Abort(code)
    raise SystemExit(code)


def _wait_until_read(descriptor: int) -> None:
    """Wait until the pipe is read: on an abort MPICH's launcher drops the rest, and with it the cause."""
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return
    deadline = time.monotonic() + _PATIENCE_S
    while _unread(descriptor) and time.monotonic() < deadline:
        time.sleep(0.001)


def _unread(descriptor: int) -> int:
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
