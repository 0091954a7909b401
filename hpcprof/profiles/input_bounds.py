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

MAX_UNPACK_RATIO = 200
"""Maximum ratio of unpacked to packed bytes: exports of nsys become 5 to 15 times larger, and bombs 1000."""

ALWAYS_ALLOWED_BYTES = 100_000_000
"""Bytes of unpacked content that a file of any size may have."""

ROW_BYTES = 5
"""Minimum bytes of a row in a SQLite file, without its values."""

STEPS_BETWEEN_CHECKS = 10_000_000
"""Steps of SQLite between two checks of `max_steps`."""

ALWAYS_ALLOWED_MEMORY = 900 << 20
"""Memory in bytes for reading a file of any size."""

MEMORY_RATIO, EVENTS_RATIO, PACKED_RATIO = 20, 40, 400
"""Memory for reading a file over its size: a plain file, OTF2's half packed events, a packed file."""

_MEMORY_PER_SECOND = 10e6
"""Bytes of a file's bound on memory for each second of CPU time that reading it may take."""

_RESERVED_PER_THREAD = 16 << 20
"""Memory in bytes that each thread of a library reserves and hardly uses."""

MAX_THREADS = 8
"""Maximum threads of Arrow while a file is read, on however many cores."""

_CELL_BYTES = 40
"""Memory that Arrow takes for each cell while it reads a table, in bytes."""

_MAGIC_OF_PACKED_FILES = (b"\x1f\x8b", b"PAR1")
_STATM = Path("/proc/self/statm")
_lock = threading.Lock()
_bounds: dict[int, int] = {}
"""Bound in bytes of each thread that reads a file, by the thread's identity."""
_memory_before_and_limit = (0, resource.RLIM_INFINITY)
"""Memory of this process, in bytes, before the first of these threads began to read, and its limit then."""


class _CpuTimeExceeded(BaseException):
    """A file took too much CPU time. Not an `Exception`, since readers may turn those into a loss."""


@contextmanager
def bounded(path: Path, bound: int) -> Iterator[None]:
    """Bound the memory in bytes (Linux 4.7 and later) and the CPU time that the block takes to read a file.

    Allocations beyond it fail in this process, whatever code makes them, and in programs that it starts.
    The block then raises `DamagedInput`. Blocks of several threads share the sum of their bounds; the time is
    that of the main thread.
    """
    global _memory_before_and_limit
    thread = threading.get_ident()
    if thread in _bounds:
        yield
        return
    with _lock:
        if not _bounds:
            _memory_before_and_limit = _private_memory(), resource.getrlimit(resource.RLIMIT_DATA)[0]
        _bounds[thread] = bound + _RESERVED_PER_THREAD * min(MAX_THREADS, os.cpu_count() or 1)
        _limit_memory()
    seconds = bound / _MEMORY_PER_SECOND
    try:
        with _bounded_time(seconds):
            yield
    except (MemoryError, _CpuTimeExceeded) as error:
        # The error would keep the contents in memory.
        traceback.clear_frames(error.__traceback__)
        memory = f"memory than there is, or than a file of its size may take ({format_bytes(bound)})"
        cpu_time = f"time than a file of its size may take ({seconds:.0f} s of a core)"
        exceeded = cpu_time if isinstance(error, _CpuTimeExceeded) else memory
        raise DamagedInput(f"{path} needs more {exceeded}.") from None
    finally:
        with _lock:
            del _bounds[thread]
            _limit_memory()


@contextmanager
def _bounded_time(seconds: float) -> Iterator[None]:
    """Raise `_CpuTimeExceeded` in the block once it has taken this CPU time, if it is in the main thread."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGPROF) is not signal.SIG_DFL:  # a profiler uses it
        yield
        return
    end = time.thread_time() + seconds

    def check(*_: object) -> None:
        # Other threads of the process may have taken the time.
        if time.thread_time() > end:
            raise _CpuTimeExceeded

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


def check_memory_for_cells(table: bytes) -> None:
    """Raise MemoryError if the cells of a CSV table take more memory than is left.

    Arrow ends the process where it gets no memory for them.
    """
    with _lock:
        free_bytes = _memory_before_and_limit[0] + sum(_bounds.values()) - _private_memory()
    if _bounds and _CELL_BYTES * (table.count(b",") + table.count(b"\n")) + 3 * len(table) > free_bytes:
        raise MemoryError


def memory_bound(files: Sequence[Path]) -> int:
    """Return the maximum memory in bytes for reading a file and those beside it.

    A sparse or packed file counts by the bytes that it occupies on disk.
    """
    total = 0
    for path in files:
        with suppress(OSError):
            status = path.stat()
            total += min(_ratio(path) * status.st_size, PACKED_RATIO * status.st_blocks * 512)
    return max(ALWAYS_ALLOWED_MEMORY, total)


def _ratio(path: Path) -> int:
    if path.suffix == ".evt" or not path.is_file():
        return EVENTS_RATIO
    with path.open("rb") as file:
        return PACKED_RATIO if file.read(4).startswith(_MAGIC_OF_PACKED_FILES) else MEMORY_RATIO


def _limit_memory() -> None:
    (before, limit), hard = _memory_before_and_limit, resource.getrlimit(resource.RLIMIT_DATA)[1]
    if _bounds:
        finite = [bytes_ for bytes_ in (limit, hard) if bytes_ != resource.RLIM_INFINITY]
        limit = min([before + sum(_bounds.values()), *finite])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _private_memory() -> int:
    """Return the bytes of memory that this process has for itself; 0 where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[5]) * resource.getpagesize()
    except OSError:
        return 0


def max_unpacked_bytes(size: int) -> int:
    """Return the maximum bytes of the content of a packed file of ``size`` bytes."""
    return max(ALWAYS_ALLOWED_BYTES, MAX_UNPACK_RATIO * size)


def max_selected_bytes(path: Path) -> int:
    """Return the maximum bytes of the rows of a table in a SQLite file."""
    return ALWAYS_ALLOWED_BYTES // 10 + path.stat().st_size


def max_steps(path: Path) -> int:
    """Return the maximum steps of SQLite while it reads a file, whose rows are fewer than its bytes."""
    return 10 * ALWAYS_ALLOWED_BYTES + MAX_UNPACK_RATIO * path.stat().st_size


def unpacking_error(path: Path) -> DamagedInput:
    """Return the error of a file that becomes larger than it may."""
    size = path.stat().st_size
    return DamagedInput(
        f"{path} ({format_bytes(size)}) was not unpacked: it becomes larger than "
        f"{format_bytes(max_unpacked_bytes(size))}; if that is right, unpack it yourself."
    )


def first_repeated_name(names: Iterable[str]) -> str:
    """Return the first name that an earlier one equals, empty if there is none; ``names`` may be lazy."""
    earlier: set[str] = set()
    for name in names:
        if name in earlier:
            return name
        earlier.add(name)
    return ""
