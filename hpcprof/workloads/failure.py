"""One rank's failure ends the whole job: the other ranks would wait for it for ever."""

from __future__ import annotations

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

# A launcher that has not read a few lines after this long will not read them at all.
_PATIENCE_S = 2.0


def run_or_abort(comm: Any, work: Callable[[], int]) -> int:
    """Return ``work()``; where it fails, print one sentence to stderr and abort every rank.

    An `HpcprofError` prints its sentence alone; anything else is a bug and keeps its traceback.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The communicator of all ranks.
    work : callable
        What the rank does; its value is the exit status.
    """
    try:
        return work()
    except HpcprofError as error:
        abort(comm, f"rank {comm.rank}: {error}\n", error.exit_code)
    except Exception as error:
        sentence = f"rank {comm.rank}: {type(error).__name__}: {error}\n"
        abort(comm, traceback.format_exc() + sentence, 1)


def print_once(comm: Any, sentence: str, code: int) -> int:
    """Print on rank 0 what all ranks have found, and return the exit status for every rank."""
    if comm.rank == 0:
        print(sentence, file=sys.stderr, flush=True)
    return code


def abort(comm: Any, text: str, code: int) -> NoReturn:
    """Print ``text`` and end every rank with the status ``code``."""
    # One write, so that lines of several ranks do not mix.
    sys.stderr.write(text)
    sys.stderr.flush()
    _wait_until_read(sys.stderr.fileno())
    comm.Abort(code)
    raise SystemExit(code)


def _wait_until_read(descriptor: int) -> None:
    """Wait until the launcher has read what stands in the pipe.

    MPICH's launcher ends the job on an abort without reading the rest of the ranks' output, which would
    lose the very line that says why.
    """
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return
    deadline = time.monotonic() + _PATIENCE_S
    while _unread(descriptor) and time.monotonic() < deadline:
        time.sleep(0.001)


def _unread(descriptor: int) -> int:
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
