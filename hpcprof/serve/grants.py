"""Grants of a hub: who may read the runs of a project, and who may push to it.

They are in a file of the hub's folder that only its owner can read. It keeps only the SHA-256 of a token; the
token itself is shown once, when it is made.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from fcntl import LOCK_EX, flock
from hashlib import sha256
from pathlib import Path
from threading import Lock

import msgspec

from hpcprof.common.atomic import replacing
from hpcprof.common.decode import from_json
from hpcprof.common.errors import HpcprofError, UsageError, reading, unknown, writing
from hpcprof.common.private import make_private

READ, PUSH = "read", "push"
"""Permissions of a grant; who may push may also read, and edit tags and notes."""

DEFAULT_QUOTA = 50 << 30
"""Bytes that a token may push."""

_GRANTS_FILE = "grants.json"
_GRANT_NAME = re.compile(r"[A-Za-z][\w.@-]{0,60}", re.ASCII)
_PROJECT_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")
_TOKEN_BYTES = 32


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The permission of a token, or of a user whom a proxy names; ``expires`` is an ISO time, or empty."""

    name: str
    project: str
    may: str
    sha256: str
    created: str
    quota_bytes: int = DEFAULT_QUOTA
    expires: str = ""

    @property
    def counts(self) -> bool:
        """True until it expires."""
        return not self.expires or datetime.now(timezone.utc) < datetime.fromisoformat(self.expires)


def create_grant(
    folder: Path,
    name: str,
    project: str,
    may: str,
    quota_bytes: int = DEFAULT_QUOTA,
    proxied: bool = False,
    days: int | None = None,
) -> str:
    """Add a grant for some ``days``, or for ever; return its token, empty for a user whom a proxy names."""
    if not _GRANT_NAME.fullmatch(name):
        raise UsageError(f"NAME {name!r}: write up to 61 letters, digits and . _ @ -, a letter first.")
    if not _PROJECT_NAME.fullmatch(project):
        raise UsageError(f"--project {project!r}: write up to 41 of a-z, 0-9 and _, a letter first.")
    token = "" if proxied else secrets.token_urlsafe(_TOKEN_BYTES)
    now = datetime.now(timezone.utc)
    created = now.isoformat(timespec="seconds")
    expires = (now + timedelta(days=days)).isoformat(timespec="seconds") if days else ""
    grant = Grant(name, project, may, _hash_token(token) if token else "", created, quota_bytes, expires)
    with _change_grants(folder) as grants:
        if any(other.name == name for other in grants):
            raise UsageError(f"there is a token {name!r} already: hpcprof serve token rm {name} removes it.")
        grants.append(grant)
    return token


def remove_grant(folder: Path, name: str) -> None:
    """Remove a grant from a hub."""
    with _change_grants(folder) as grants:
        names = [grant.name for grant in grants]
        if name not in names:
            raise unknown("token", name, names)
        del grants[names.index(name)]


def read_grants(folder: Path) -> list[Grant]:
    """Return the grants of a hub, in the order in which they were made."""
    path = folder / _GRANTS_FILE
    if not path.is_file():
        return []
    with reading(path):
        text = path.read_bytes()
    try:
        return from_json(text, list[Grant])
    except msgspec.MsgspecError as error:
        raise HpcprofError(f"{path}: {error}.") from None


class Grants:
    """The grants of a hub, read again when their file changes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, Lock()
        self._grants: list[Grant] = []
        self._read: tuple[int, int] | None = None

    def of_token(self, token: str) -> Grant | None:
        """Return the grant of a token."""
        return self.of_hash(_hash_token(token))

    def of_hash(self, sha256: str) -> Grant | None:
        """Return the grant of the token with a SHA-256."""
        return self._find(lambda grant: secrets.compare_digest(grant.sha256, sha256))

    def of_user(self, name: str) -> Grant | None:
        """Return the grant of a user whom a proxy names."""
        return self._find(lambda grant: grant.name == name and not grant.sha256)

    def _find(self, matches: Callable[[Grant], bool]) -> Grant | None:
        match = next(filter(matches, self._read_grants()), None)
        return match if match and match.counts else None

    def _read_grants(self) -> list[Grant]:
        with self._lock:
            try:
                status = (self._folder / _GRANTS_FILE).stat()
            except FileNotFoundError:
                return []
            if self._read != (status.st_mtime_ns, status.st_ino):
                self._grants = read_grants(self._folder)
                self._read = status.st_mtime_ns, status.st_ino
            return self._grants


@contextmanager
def _change_grants(folder: Path) -> Iterator[list[Grant]]:
    """Yield the grants of a hub, and write them back; two changes do not meet."""
    path = folder / _GRANTS_FILE
    with writing(path):
        make_private(folder)
        lock = os.open(folder / f".{_GRANTS_FILE}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        flock(lock, LOCK_EX)
        grants = read_grants(folder)
        yield grants
        with writing(path), replacing(path) as temporary:
            temporary.touch(mode=0o600, exist_ok=False)
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(grants), indent=1) + b"\n")
    finally:
        os.close(lock)


def _hash_token(token: str) -> str:
    return sha256(token.encode("utf-8", "replace")).hexdigest()
