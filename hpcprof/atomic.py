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
        If it cannot be written.
    """
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = path.with_name(f".{os.urandom(8).hex()}.{path.name}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in UTF-8 so that it appears whole or not at all.

    Bytes of a path or an argument that are no UTF-8 are written as they came.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
