"""Write a file so that a reader sees the whole of it or nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` and rename it to ``path`` when the block succeeds.

    The name cannot be guessed, so on a shared file system nobody can put a link in its place, and it
    keeps the suffixes of ``path``, because some writers choose the format by them. Nothing is left
    behind when the block fails.

    Parameters
    ----------
    path : Path
        The file to replace. A rename is atomic only within one file system, hence "beside".

    Raises
    ------
    OSError
        If it cannot be written, or is a device, a pipe or a socket: a file may not take its place, which for
        root it would in /dev.
    """
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if _special(path):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    temporary = path.with_name(f".{os.urandom(8).hex()}.{path.name}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _special(path: Path) -> bool:
    """Whether a path is neither a file nor a folder, or leads to an open file, as /dev/stdout does."""
    if path.is_symlink() and str(path.readlink()).startswith("/proc/"):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in UTF-8 so that it appears whole or not at all.

    Bytes of a path or an argument that are no UTF-8 are written as they came.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
