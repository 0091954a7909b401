"""Profiles that gzip may have packed, whatever their names say."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from hpcprof.common.errors import DamagedInput

_MAGIC = b"\x1f\x8b"
_HEADER = _MAGIC + b"\x08"
_LARGEST_RATIO = 100
"""The most bytes of a text that one of its packed bytes holds, usually by far."""


@contextmanager
def reading_packed(path: Path) -> Iterator[None]:
    """Turn errors while a file is read or unpacked in the block into `DamagedInput`."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedInput(f"{path} is damaged or truncated: {error}.") from None
    except OSError as error:
        raise DamagedInput(f"{path} cannot be read: {error.strerror}.") from None


@contextmanager
def open_packed(path: Path) -> Iterator[BinaryIO]:
    """Open the content of a file; errors in the block are left as they are."""
    with ExitStack() as closing:
        with reading_packed(path):
            raw = closing.enter_context(path.open("rb"))
            packed = raw.peek(len(_MAGIC)).startswith(_MAGIC)
        yield cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if packed else raw


def content_of(path: Path, size: int = -1) -> bytes:
    """Return the content of a file, or as many bytes from its beginning; raise `DamagedInput` for damage."""
    with open_packed(path) as file, reading_packed(path):
        if size < 0 and isinstance(file, gzip.GzipFile):
            return _unpacked(path.read_bytes())
        return file.read(size)


def _unpacked(packed: bytes) -> bytes:
    """Return the content at once: pieces that are joined take twice the time."""
    size = int.from_bytes(packed[-4:], "little")
    # Another file can be packed behind the first, and the size of a damaged one can be anything.
    if packed.find(_HEADER, 1) > 0 or size > _LARGEST_RATIO * len(packed):
        return gzip.decompress(packed)
    return zlib.decompress(packed, zlib.MAX_WBITS | 16, size)
