"""A cache of the profiles that were collected, so that unchanged files are not read again.

It belongs to the user (``~/.cache/hpcprof/profiles``, one file per folder of profiles) and not to a store, so
that two stores of the same profiles are equal. A profile whose stamps differ is read.

The cache also names the stores in which a collect found nothing new. Until the profiles or the store change,
the next collect does not open the store: importing SQLAlchemy would take most of its time.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec

from hpcprof.common import __version__
from hpcprof.common.atomic import replacing
from hpcprof.common.decode import from_json, read_file
from hpcprof.common.errors import DamagedInput
from hpcprof.common.paths import user_cache
from hpcprof.common.private import make_private
from hpcprof.profiles.event_folders import has_run_events
from hpcprof.profiles.readers.declaration import SeveralRanks
from hpcprof.profiles.readers.discovery import files_of
from hpcprof.results.store.analysis_version import ANALYSIS_VERSION

# Two changes of a file can have the same time: some file systems record seconds.
_MIN_AGE_NS = 2_000_000_000
_MAX_UNUSED_SECONDS = 90 * 86400.0
_VERSION = f"{__version__}, {ANALYSIS_VERSION}"

_SQLITE, _WITHOUT_LOG = b"SQLite format 3\0", b"\1\1"
_HEADER_BYTES, _FORMAT_VERSIONS, _CHANGE_COUNTER = 100, slice(18, 20), slice(24, 28)


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """Attributes of a file, of which one changes whenever it is written or replaced."""

    size: int
    modified_ns: int
    changed_ns: int
    inode: int


class Identity(msgspec.Struct, frozen=True):
    """Rank and source file of a profile."""

    path: Path
    """The file to read; for a report, its export or table."""
    rank: int | None
    """The rank of the profile; None if it is unknown."""
    several: SeveralRanks | None
    """The ranks of a profile with several; None for other profiles."""
    stamps: tuple[Stamp, ...] = ()
    """Stamps of the profile and its files before the reading; empty if a file had just changed."""


class KnownFile(msgspec.Struct, frozen=True):
    """A profile that was collected; ``sha256`` is the digest of the files that were read, by rank."""

    identity: Identity
    sha256: Mapping[int, str]


class _Entry(msgspec.Struct, frozen=True):
    """A profile in the cache, with the name of the file to read."""

    read: str
    rank: int | None
    several: SeveralRanks | None
    stamps: tuple[Stamp, ...]
    sha256: dict[int, str]


class _StoreState(msgspec.Struct, frozen=True, array_like=True):
    """The state of an SQLite file, which differs after each change; ``changes`` is SQLite's counter."""

    stamp: Stamp
    changes: int


class SettledRun(msgspec.Struct, frozen=True):
    """A run whose profiles a store has completely.

    ``read`` are the names of the files to read in the order of their ranks, ``losses`` the sentences about
    missing data, and ``events`` is the folder of the kept events.
    """

    run_id: str
    store: _StoreState
    read: tuple[str, ...]
    losses: tuple[str, ...]
    events: str


class _Folder(msgspec.Struct, frozen=True):
    """The profiles of a folder, and the settled run of each store, by the path of the store."""

    version: str
    files: dict[str, _Entry]
    stores: dict[str, SettledRun] = {}


_UNKNOWN_FOLDER = _Folder(_VERSION, {})


def stamps_of(profile: Path, read: Path) -> tuple[Stamp, ...]:
    """Return the stamps of a profile and of the files that are read for it.

    They are empty if a file cannot be opened, or has changed so recently that the next change might leave the
    same stamp.
    """
    now = time.time_ns()
    try:
        stamps = tuple(_stamp(path) for path in dict.fromkeys((profile, *files_of(read))))
    except (OSError, DamagedInput):
        return ()
    is_settled = all(max(stamp.modified_ns, stamp.changed_ns) < now - _MIN_AGE_NS for stamp in stamps)
    return stamps if is_settled else ()


def _stamp(path: Path) -> Stamp:
    # On NFS, opening a file is what makes the client ask the server for its attributes.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        status = os.fstat(file)
    finally:
        os.close(file)
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def unchanged_files(files: Sequence[Path]) -> dict[Path, KnownFile]:
    """Return the known profiles of a folder whose stamps are still the same."""
    return _unchanged_files(files, _load(files[0].parent)) if files else {}


def _unchanged_files(files: Sequence[Path], folder: _Folder) -> dict[Path, KnownFile]:
    unchanged = {}
    for file in files:
        entry = folder.files.get(file.name)
        if entry is not None:
            read = file.with_name(entry.read)
            stamps = stamps_of(file, read)
            if stamps and stamps == entry.stamps:
                unchanged[file] = KnownFile(Identity(read, entry.rank, entry.several, stamps), entry.sha256)
    return unchanged


def remember(files: Mapping[Path, KnownFile]) -> None:
    """Remember the profiles of a folder, if the cache can be written."""
    entries = {
        file.name: _Entry(read.path.name, read.rank, read.several, read.stamps, {**entry.sha256})
        for file, entry in files.items()
        if (read := entry.identity).stamps and read.path.parent == file.parent
    }
    if not entries:
        return
    folder = next(iter(files)).parent
    if entries != _load(folder).files:
        _write(folder, _Folder(_VERSION, entries))


def settled_state(run_id: str, files: Sequence[Path], store: Path) -> SettledRun | None:
    """Return the settled run of an SQLite store if neither its profiles nor the store have changed.

    None otherwise: a collect then has to open the store.
    """
    folder = _load(files[0].parent) if files else _UNKNOWN_FOLDER
    stored = folder.stores.get(str(store.absolute()))
    if stored is None or stored.run_id != run_id or stored.store != _state_of(store):
        return None
    if not has_run_events(Path(stored.events), run_id):
        return None
    unchanged = {file.name for file in _unchanged_files(files, folder)}
    return stored if {file.name for file in files} == unchanged == folder.files.keys() else None


def remember_settled(
    run_id: str, files: Sequence[Path], store: Path, read: Iterable[Path], losses: Iterable[str], events: str
) -> None:
    """Record that a collect has just found nothing new for a store in SQLite; see `SettledRun`."""
    state, folder = _state_of(store), _load(files[0].parent)
    same_files = {file.name for file in files} == folder.files.keys()
    if state is None or not same_files or not has_run_events(Path(events), run_id):
        return
    state_of_run = SettledRun(run_id, state, tuple(path.name for path in read), tuple(losses), events)
    if folder.stores.get(str(store.absolute())) != state_of_run:
        stores = folder.stores | {str(store.absolute()): state_of_run}
        _write(files[0].parent, _Folder(_VERSION, folder.files, stores))


def _state_of(store: Path) -> _StoreState | None:
    """Return the state of an SQLite file; None if the state would not show every change."""
    try:
        stamp = _stamp(store)
        with store.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        # A journal means that a write is under way or was interrupted.
        busy = store.with_name(f"{store.name}-journal").exists()
    except OSError:
        return None
    # SQLite does not count changes in a write-ahead log (its file format, 1.3.3 and 1.3.7).
    if busy or not header.startswith(_SQLITE) or header[_FORMAT_VERSIONS] != _WITHOUT_LOG:
        return None
    return _StoreState(stamp, int.from_bytes(header[_CHANGE_COUNTER], "big"))


def _write(folder: Path, content: _Folder) -> None:
    cache = _cache(folder)
    # Names that are not UTF-8 cannot be written; their profiles are read each time.
    with suppress(OSError, UnicodeError):
        make_private(cache.parent)
        with replacing(cache) as temporary:
            temporary.write_bytes(msgspec.json.encode(content))
        _remove_unused(cache.parent)


def _load(folder: Path) -> _Folder:
    try:
        cached = from_json(read_file(_cache(folder)), _Folder)
    except (OSError, msgspec.DecodeError):
        return _UNKNOWN_FOLDER
    return cached if cached.version == _VERSION else _UNKNOWN_FOLDER


def _cache(folder: Path) -> Path:
    return user_cache() / "profiles" / f"{sha256(os.fsencode(folder.absolute())).hexdigest()[:32]}.json"


def _remove_unused(folder: Path) -> None:
    """Remove files of the cache that were written more than 90 days ago."""
    for path in folder.iterdir():
        if path.stat().st_mtime < time.time() - _MAX_UNUSED_SECONDS:
            path.unlink()
