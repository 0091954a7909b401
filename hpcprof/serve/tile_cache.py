"""The folder in which computed tiles are kept, bounded in size and shared by all servers of a user."""

import os
import shutil
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import Lock

from hpcprof.common.atomic import replacing

MAX_BYTES = 1 << 30
"""Maximum size of the folder, in bytes."""

_REMAINING_SHARE = 0.75
"""Share of that to which a full folder is emptied; the runs that were read least recently go first."""

_CHECK_INTERVAL_BYTES = 1 << 26
"""Written bytes after which the size of the folder is checked again."""

_COMPRESSION_LEVEL = 1
"""Tiles are compressed quickly rather than well."""


class TileCache:
    """Bytes by run and name, on disk, each written whole; a folder that cannot be written costs time."""

    def __init__(self, folder: Path, most_bytes: int = MAX_BYTES) -> None:
        self._folder, self._most_bytes = folder, most_bytes
        self._lock = Lock()
        self._written = _CHECK_INTERVAL_BYTES  # The first tile also looks at what earlier servers left.

    def get(self, key: str, name: str, make: Callable[[], bytes]) -> bytes:
        """Return the bytes under a name of a run's `tile_key`, made and kept if they are not there yet."""
        path = self.folder(key) / name
        with suppress(OSError, zlib.error):
            return zlib.decompress(path.read_bytes())
        content = make()
        packed = zlib.compress(content, _COMPRESSION_LEVEL)
        with suppress(OSError):
            self._make_folder(path.parent)
            with replacing(path) as temporary:
                temporary.write_bytes(packed)
            self._bound_size(len(packed))
        return content

    def folder(self, key: str) -> Path:
        """Return the folder of a run, which need not exist; what else is written into it counts as well."""
        return self._folder / key

    def check_soon(self) -> None:
        """Have the next tile look at the size of the folder, because something large was written into it."""
        with self._lock:
            self._written = _CHECK_INTERVAL_BYTES

    def _make_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            # Contents of profiles are nobody else's business.
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        os.utime(folder)

    def _bound_size(self, size: int) -> None:
        with self._lock:
            self._written += size
            if self._written < min(_CHECK_INTERVAL_BYTES, self._most_bytes // 8):
                return
            self._written = 0
        folders = (entry for entry in self._folder.iterdir() if entry.is_dir())
        runs = sorted(folders, key=lambda entry: entry.stat().st_mtime)
        sizes = {run: sum(file.stat().st_size for file in run.rglob("*")) for run in runs}
        total = sum(sizes.values())
        if total <= self._most_bytes:
            return
        for run in runs:
            if total <= self._most_bytes * _REMAINING_SHARE:
                break
            shutil.rmtree(run, ignore_errors=True)
            total -= sizes[run]


def tile_key(*parts: object, profiles: Iterable[tuple[int, str]]) -> str:
    """Return the name of the folder of a run's tiles: another one as soon as a profile changes."""
    text = repr((parts, sorted(profiles)))
    return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]
