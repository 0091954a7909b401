"""Write files atomically: a reader sees the whole file or none."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` and rename it to ``path`` when the block succeeds.

    A rename is atomic only within one file system, hence "beside". The name cannot be guessed, so that nobody
    can put a link in its place on a shared file system. It keeps the suffixes of ``path``, because some
    writers choose the format by them. If the block fails, the temporary file is removed. A device, a pipe or
    a socket is an `OSError`: it must not be replaced by a file (as root could in /dev). Errors name ``path``.
    """
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if _special(path):
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    temporary = path.with_name(f".{os.urandom(8).hex()}.{path.name}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        if error.filename == str(temporary):
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _special(path: Path) -> bool:
    """Return whether a path is no file or directory, or links to an open file, as /dev/stdout does."""
    if path.is_symlink() and str(path.readlink()).startswith("/proc/"):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def write_atomically(path: Path, text: str, mode: int | None = None) -> None:
    """Write ``text`` to ``path`` in UTF-8, whole or not at all.

    Bytes of a path or an argument that are not UTF-8 are written unchanged. The file has the permissions
    ``mode`` from its beginning, by default by the umask.
    """
    with replacing(path) as temporary:
        if mode is not None:
            temporary.touch(mode=mode & 0o600, exist_ok=False)
            temporary.chmod(mode)
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape")
