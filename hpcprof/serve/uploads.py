"""Packages on their way to a hub: received in parts, checked as a whole, and kept at once or not at all."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from threading import BoundedSemaphore, Condition, Lock

import msgspec

from hpcprof.common.errors import DamagedInput, HpcprofError
from hpcprof.common.units import format_bytes
from hpcprof.profiles.event_folders import PUSHED
from hpcprof.results.package import checksum, keep_package, unpacked
from hpcprof.results.store.store import Store
from hpcprof.results.store.tables import PushedRow
from hpcprof.serve.grants import Grant

MOST_PART_BYTES = 8 << 20
"""The most bytes of a package in one request."""

MOST_PACKAGE_BYTES = 8 << 30
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FORGOTTEN_S = 7 * 24 * 3600
"""The age at which the beginning of a package that nobody finishes is removed."""

_MOST_BEGUN = 100
"""The most packages of a token that have begun and not ended."""


_UNPACKED_AT_ONCE = 4
"""The most packages of a project that are unpacked at a time."""


class Refused(HpcprofError):
    """A part, or a package, that the hub does not take, with the HTTP status that says so."""

    def __init__(self, status: int, sentence: str, offset: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.offset = status, offset


@dataclass(frozen=True)
class Progress:
    """The bytes that the hub has of a package, and its run once it is kept."""

    offset: int
    run: str = ""


class Uploads:
    """The uploads to one project of a hub. What a killed hub left half kept is removed, unless another runs.

    Parameters
    ----------
    folder : Path
        The folder of the project.
    store : Store
        Its results, for writing.
    """

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder, self._store = folder, store
        self._parts = folder / ".incoming"
        self._lock, self._free = Lock(), Condition()
        self._busy: set[Path] = set()
        self._places = BoundedSemaphore(_UNPACKED_AT_ONCE)
        # Open until this process ends.
        self._running = os.open(folder / ".running", os.O_CREAT | os.O_RDWR, 0o600)
        with suppress(OSError):  # another hub has the lock, and may just be keeping a package
            flock(self._running, LOCK_EX | LOCK_NB)
            for one in (*self._parts.glob(".unpacking-*"), *self._unlisted()):
                shutil.rmtree(one, ignore_errors=True)

    def _unlisted(self) -> list[Path]:
        """Return the folders of events that no row leads to."""
        known = {row.sha256 for row in self._store.pushed().values()}
        return [one for one in (self._folder / PUSHED).glob("*") if one.name not in known]

    def progress(self, digest: str, grant: Grant) -> Progress:
        """Return how far the package of a SHA-256 is.

        Raises
        ------
        Refused
            If the text is no SHA-256.
        """
        path = self._part(digest, grant)
        run = self._kept(digest)
        return Progress(0, run) if run else Progress(_size(path))

    def receive(self, digest: str, grant: Grant, offset: int, length: int, part: bytes) -> Progress:
        """Add a part to a package of ``length`` bytes; with the last one it is checked and kept.

        Raises
        ------
        Refused
            If it does not follow what is there, exceeds the token's quota, or the package is not as it has to
            be; what the project has of the run remains.
        HpcprofError
            If it cannot be written; what there is of the package remains, and the push can go on.
        """
        path = self._part(digest, grant)
        with self._alone(path):
            with self._lock:
                if run := self._kept(digest):
                    return Progress(length, run)
                self._parts.mkdir(mode=0o700, exist_ok=True)
                self._forget_old()
                room = self._room(grant, path, length)
                have = _size(path)
                end = have + len(part)
                # The last part is empty if the hub ended before it could keep the package.
                if offset != have or end > length or (not part and end < length):
                    raise Refused(409, f"the hub has {have:,} bytes of this package.", have)
                try:
                    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o600)
                    with open(descriptor, "ab") as file:  # noqa: PTH123 (a descriptor)
                        file.write(part)
                except OSError as error:
                    raise HpcprofError(f"the package cannot be written: {error.strerror}.") from None
            if end < length:
                return Progress(end)
            try:
                with self._places:
                    run = self._keep(path, digest, grant, room)
            except Refused:
                path.unlink(missing_ok=True)
                raise
            path.unlink(missing_ok=True)
            return Progress(length, run)

    @contextmanager
    def _alone(self, path: Path) -> Iterator[None]:
        """Let the requests about one package follow each other; those about others go on meanwhile."""
        with self._free:
            while path in self._busy:
                self._free.wait()
            self._busy.add(path)
        try:
            yield
        finally:
            with self._free:
                self._busy.remove(path)
                self._free.notify_all()

    def _keep(self, path: Path, digest: str, grant: Grant, room: int) -> str:
        if checksum(path) != digest:
            raise Refused(400, "the package arrived with another SHA-256: push it again.")
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        try:
            with unpacked(path, self._parts, room) as package, self._lock:
                run = package.run_id
                before = self._store.pushed().get(run)
                if before is not None and before.who != grant.name:
                    raise Refused(403, f"{run} was pushed by {before.who}, and no other token replaces it.")
                # Others of the token's packages may have been kept while this one was unpacked.
                if package.bytes > self._room(grant, path, 0):
                    raise Refused(413, f"the token's quota of {format_bytes(grant.quota_bytes)} is used up.")
                listed = msgspec.json.encode(package.described.listed).decode()
                row = PushedRow(run, grant.name, now, digest, package.bytes, listed)
                try:
                    keep_package(package, self._store, self._folder, row)
                except HpcprofError:
                    # On a full disk, what was written so far must not stay.
                    if not self._kept(digest):
                        shutil.rmtree(self._folder / PUSHED / digest, ignore_errors=True)
                    raise
                return run
        except DamagedInput as error:
            raise Refused(400, f"{error}.") from None

    def _kept(self, digest: str) -> str:
        """Return the run that came in a package; empty if none did."""
        return next((row.run_id for row in self._store.pushed().values() if row.sha256 == digest), "")

    def _room(self, grant: Grant, path: Path, length: int) -> int:
        """Return the bytes that the token may still push; a package of ``length`` bytes fits."""
        kept = sum(row.bytes for row in self._store.pushed().values() if row.who == grant.name)
        begun = [one for one in self._parts.iterdir() if _token_of(one) == grant.name and one != path]
        if len(begun) >= _MOST_BEGUN:
            raise Refused(413, f"the token has begun {_MOST_BEGUN} packages: finish one first.")
        others = sum(map(_size, begun))
        if length > MOST_PACKAGE_BYTES or kept + others + length > grant.quota_bytes:
            limits = f"the limit of {format_bytes(MOST_PACKAGE_BYTES)} or, with "
            limits += (
                f"{format_bytes(kept + others)} before it, the quota of {format_bytes(grant.quota_bytes)}"
            )
            raise Refused(413, f"a package of {format_bytes(length)} exceeds {limits}.")
        return grant.quota_bytes - kept - others

    def _part(self, digest: str, grant: Grant) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise Refused(400, "the address names no SHA-256.")
        return self._parts / f"{grant.name}-{digest}"

    def _forget_old(self) -> None:
        for part in self._parts.iterdir():
            with suppress(OSError):
                if part.stat().st_mtime < time.time() - _FORGOTTEN_S:
                    # A hub that was killed leaves the folder in which it unpacked a package.
                    shutil.rmtree(part) if part.is_dir() else part.unlink()


def _token_of(part: Path) -> str:
    """Return the name of the token that has begun a package; a SHA-256 has no dash."""
    return part.name.rpartition("-")[0]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
