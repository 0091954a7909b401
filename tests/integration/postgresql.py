"""A PostgreSQL server for the tests: in a folder of its own, on a Unix socket in it, and no other address.

The server refuses to run as root. A test suite that does runs it as the user that Debian's package makes.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SECONDS = 60.0


class Unavailable(Exception):
    """PostgreSQL cannot be started here; the message says what is missing."""


@contextmanager
def server() -> Iterator[Path]:
    """Start a server, yield the folder of its socket, and end it by its process.

    Whoever can enter the folder is let in without a password: that is this user (and root) alone.

    Raises
    ------
    Unavailable
        If it is not installed, or there is no ordinary user to run it as.
    """
    programs = {name: _find(name) for name in ("initdb", "postgres", "pg_isready")}
    missing = [name for name, path in programs.items() if path is None]
    if missing:
        raise Unavailable(f"no {', '.join(missing)} here: apt-get install postgresql")
    user = _ordinary_user()
    # Not in pytest's folder, which other users cannot enter; and a socket's path has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="hpcprof-pg-"))
    try:
        shutil.chown(folder, *user)
        data = folder / "data"
        make = [programs["initdb"], "--pgdata", data, "--auth=trust", "--username=hpcprof", "--no-sync"]
        _run([*make, "--encoding=UTF8", "--locale=C"], user)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    str(programs["postgres"]),
                    *("-D", str(data), "-k", str(folder)),
                    *("-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=64"),
                ],
                stdout=log,
                stderr=log,
                **_as(user),
            )
        try:
            _until_ready([str(programs["pg_isready"]), "--host", str(folder)], process, folder / "log")
            yield folder
        finally:
            process.send_signal(signal.SIGQUIT)  # "immediate": nothing is written that is removed next
            process.wait(_SECONDS)
    finally:
        shutil.rmtree(folder)


def _ordinary_user() -> tuple[int, int]:
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:
        raise Unavailable("no user postgres to run the server as: root is refused") from None
    return entry.pw_uid, entry.pw_gid


def _as(user: tuple[int, int]) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    return {"user": user[0], "group": user[1], "extra_groups": [], "cwd": "/"}


def _find(name: str) -> Path | None:
    """Return a program of the server; Debian keeps them off the PATH, one folder a version."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which(name, path=":".join([*map(str, folders), os.environ.get("PATH", "")]))
    return Path(found) if found else None


def _run(command: Sequence[Any], user: tuple[int, int]) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **_as(user))
    assert done.returncode == 0, done.stderr


def _until_ready(probe: list[str], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while subprocess.run(probe, capture_output=True).returncode:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.05)
