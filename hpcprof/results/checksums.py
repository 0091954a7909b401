"""SHA-256 of profiles, which is how the store knows them.

Hashing works outside Python's lock: begun before the modules of a collect are imported, it takes no time of
its own.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

from hpcprof.common.errors import reading

Stamp = tuple[int, int]
"""By which a change of a file is noticed: its size, and when it was changed, in nanoseconds."""

_AT_ONCE = 1 << 22
"""So many bytes are hashed at once. Before and after each part the thread waits for Python's lock."""

_begun: dict[Path, tuple[Stamp, Future[str]]] = {}


def stamp(path: Path) -> Stamp:
    """Return what changes with a file.

    Raises
    ------
    DamagedInput
        If it cannot be read.
    """
    with reading(path):
        status = path.stat()
    return status.st_size, status.st_mtime_ns


def begin(path: Path) -> None:
    """Begin to hash a file whose `checksum` will be asked for. Nothing waits for it when this process ends.

    Raises
    ------
    DamagedInput
        If it cannot be read.
    """
    future: Future[str] = Future()

    def work() -> None:
        try:
            future.set_result(_sha256(path))
        except Exception as error:
            future.set_exception(error)

    _begun[path] = stamp(path), future
    Thread(target=work, daemon=True).start()


def checksum(path: Path, now: Stamp) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits; ``now`` is its stamp.

    Raises
    ------
    DamagedInput
        If it cannot be read.
    """
    before, begun = _begun.pop(path, (None, None))
    return begun.result() if begun and before == now else _sha256(path)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with reading(path), path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(min(_AT_ONCE, path.stat().st_size + 1)))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
