"""Profiles that gzip may have packed, whatever their names say."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from hpcprof.common.errors import DamagedInput
from hpcprof.profiles.input_bounds import max_unpacked_bytes, unpacking_error

_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 24


class _BoundedFile(gzip.GzipFile):
    """A packed file that raises `DamagedInput` once it has become larger than it may."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        super().__init__(fileobj=raw)
        self._path, self._max_bytes = path, max_unpacked_bytes(path.stat().st_size)

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes."""
        content = super().read(size)
        if self.tell() > self._max_bytes:
            raise unpacking_error(self._path)
        return content


@contextmanager
def reading_packed(path: Path) -> Iterator[None]:
    """Turn errors while a file is read or unpacked in the block into `DamagedInput`."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedInput(f"{path} is damaged or truncated: {error}.") from None
    except OSError as error:
        raise DamagedInput(f"{path} cannot be read: {error.strerror or error}.") from None


@contextmanager
def open_packed(path: Path) -> Iterator[BinaryIO]:
    """Open the content of a file; errors in the block are left as they are."""
    with ExitStack() as closing:
        with reading_packed(path):
            raw = closing.enter_context(path.open("rb"))
            packed = raw.peek(len(_MAGIC)).startswith(_MAGIC)
            file = cast("BinaryIO", _BoundedFile(path, raw)) if packed else raw
        yield file


def content_of(path: Path, size: int = -1) -> bytes:
    """Return the content of a file, or as many bytes from its beginning; raise `DamagedInput` for damage."""
    with open_packed(path) as file, reading_packed(path):
        if size < 0 and isinstance(file, _BoundedFile):
            # At once: pieces that are joined take twice the time.
            packed = path.read_bytes()
            first = zlib.decompressobj(zlib.MAX_WBITS | 16)
            content = first.decompress(packed, max_unpacked_bytes(len(packed)) + 1)
            if first.eof and not first.unused_data:
                return content
            # Another file is packed behind the first, or this one is damaged or too large.
            return b"".join(iter(partial(file.read, _CHUNK), b""))
        return file.read(size)
