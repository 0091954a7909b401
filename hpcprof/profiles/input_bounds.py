"""Bounds on memory and time of reading a file, whatever sizes the file itself declares."""

import os
import resource
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcprof.common.errors import DamagedInput
from hpcprof.common.units import format_bytes

LARGEST_RATIO = 200
"""A file may become this many times larger: exports of nsys become 5 to 15 times larger, and bombs 1000."""

ALWAYS_ALLOWED = 100_000_000
"""A file may become this large, in bytes, whatever its size is."""

ROW_BYTES = 5
"""Minimum bytes of a row in a SQLite file, without its values."""

STEPS = 10_000_000
"""Steps of SQLite between two looks at how many it has taken."""

LEAST_MEMORY = 900 << 20
"""Memory in bytes that reading any file may take."""

MEMORY_RATIO, EVENTS_RATIO, PACKED_RATIO = 20, 40, 400
"""The same as a multiple of the size of a file, of the events of OTF2, which are half packed, and of packed
files.
"""

_MEMORY_PER_SECOND = 10e6
"""Memory in bytes that a file may take for each second of its CPU time: the larger it is, the longer."""

_RESERVED_PER_THREAD = 16 << 20
"""Memory in bytes that each thread of a library reserves and hardly uses."""

MOST_THREADS = 8
"""Maximum threads of Arrow while a file is read, on however many cores."""

_CELL_BYTES = 40
"""Memory that Arrow takes for each cell while it reads a table, in bytes."""

_COMPRESSED_BEGINNINGS = (b"\x1f\x8b", b"PAR1")
_PAGES = Path("/proc/self/statm")
_lock = threading.Lock()
_bounds: dict[int, int] = {}
"""Bound in bytes of each thread that reads a file, by the thread's identity."""
_outside_bytes = (0, resource.RLIM_INFINITY)
"""Memory of this process before the first of them began, and the limit that held then."""


class _TimeOver(BaseException):
    """A file took too much CPU time; it is no `Exception`, which readers may turn into a loss."""


@contextmanager
def bounded(path: Path, most: int) -> Iterator[None]:
    """Bound the memory in bytes (Linux 4.7 and later) and the CPU time that the block takes to read a file.

    Allocations beyond it fail in this process, whatever code makes them, and in programs that it starts.
    The block then raises `DamagedInput`. Blocks of several threads share the sum of their bounds; the time is
    that of the main thread.
    """
    global _outside_bytes
    thread = threading.get_ident()
    if thread in _bounds:
        yield
        return
    with _lock:
        if not _bounds:
            _outside_bytes = _private_memory(), resource.getrlimit(resource.RLIMIT_DATA)[0]
        _bounds[thread] = most + _RESERVED_PER_THREAD * min(MOST_THREADS, os.cpu_count() or 1)
        _limit_memory()
    seconds = most / _MEMORY_PER_SECOND
    try:
        with _bounded_time(seconds):
            yield
    except (MemoryError, _TimeOver) as error:
        # The error would keep the contents in memory.
        traceback.clear_frames(error.__traceback__)
        memory = f"memory than there is, or than a file of its size may take ({format_bytes(most)})"
        over = isinstance(error, _TimeOver)
        took = f"time than a file of its size may take ({seconds:.0f} s of a core)" if over else memory
        raise DamagedInput(f"{path} needs more {took}.") from None
    finally:
        with _lock:
            del _bounds[thread]
            _limit_memory()


@contextmanager
def _bounded_time(seconds: float) -> Iterator[None]:
    """Raise `_TimeOver` in the block once it has taken this CPU time, if it is in the main thread."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGPROF) is not signal.SIG_DFL:  # a profiler uses it
        yield
        return
    end = time.thread_time() + seconds

    def check(*_: object) -> None:
        # Other threads of the process may have taken the time.
        if time.thread_time() > end:
            raise _TimeOver

    signal.signal(signal.SIGPROF, check)
    signal.setitimer(signal.ITIMER_PROF, seconds, min(seconds, 1))
    try:
        try:
            yield
        finally:  # which the last signal may interrupt
            signal.signal(signal.SIGPROF, signal.SIG_IGN)
    finally:
        # The default action of a signal that is still on its way ends the process.
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)


def expect_cells(table: bytes) -> None:
    """Raise MemoryError if the cells of a CSV table take more memory than is left.

    Arrow ends the process where it gets no memory for them.
    """
    with _lock:
        free_bytes = _outside_bytes[0] + sum(_bounds.values()) - _private_memory()
    if _bounds and _CELL_BYTES * (table.count(b",") + table.count(b"\n")) + 3 * len(table) > free_bytes:
        raise MemoryError


def most_memory(files: Sequence[Path]) -> int:
    """Return the most bytes of memory that reading a file and those beside it may take.

    A sparse or packed file counts by the bytes that it occupies on disk.
    """
    most = 0
    for path in files:
        with suppress(OSError):
            status = path.stat()
            most += min(_ratio(path) * status.st_size, PACKED_RATIO * status.st_blocks * 512)
    return max(LEAST_MEMORY, most)


def _ratio(path: Path) -> int:
    if path.suffix == ".evt" or not path.is_file():
        return EVENTS_RATIO
    with path.open("rb") as file:
        return PACKED_RATIO if file.read(4).startswith(_COMPRESSED_BEGINNINGS) else MEMORY_RATIO


def _limit_memory() -> None:
    (before, most), hard = _outside_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]
    if _bounds:
        limits = [limit for limit in (most, hard) if limit != resource.RLIM_INFINITY]
        most = min([before + sum(_bounds.values()), *limits])
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _private_memory() -> int:
    """Return the bytes of memory that this process has for itself; 0 where the system does not tell."""
    try:
        return int(_PAGES.read_text().split()[5]) * resource.getpagesize()
    except OSError:
        return 0


def max_unpacked_bytes(size: int) -> int:
    """Return the most bytes that may become of a file of ``size`` bytes."""
    return max(ALWAYS_ALLOWED, LARGEST_RATIO * size)


def max_selected_bytes(path: Path) -> int:
    """Return the most bytes that the rows of a table in a SQLite file may have."""
    return ALWAYS_ALLOWED // 10 + path.stat().st_size


def most_steps(path: Path) -> int:
    """Return the most steps that SQLite may take to read a file, whose rows are fewer than its bytes."""
    return 10 * ALWAYS_ALLOWED + LARGEST_RATIO * path.stat().st_size


def bomb(path: Path) -> DamagedInput:
    """Return the error of a file that becomes larger than it may."""
    size = path.stat().st_size
    return DamagedInput(
        f"{path} ({format_bytes(size)}) was not unpacked: it becomes larger than "
        f"{format_bytes(max_unpacked_bytes(size))}; if that is right, unpack it yourself."
    )


def first_repeated_name(names: Iterable[str]) -> str:
    """Return the first name that was there before, empty if there is none; each is looked at once."""
    earlier: set[str] = set()
    for name in names:
        if name in earlier:
            return name
        earlier.add(name)
    return ""
