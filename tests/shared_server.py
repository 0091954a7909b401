"""Servers that all processes of a test session share; each starts when it is first needed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

_FOLDER = "TESTS_SHARED_SERVERS"
_started: list[subprocess.Popen[str]] = []


def begin_session() -> Callable[[], None]:
    """Make the folder of the servers' sockets, and return the function that ends the servers."""
    folder = tempfile.mkdtemp()
    os.environ[_FOLDER] = folder
    os.mkfifo(f"{folder}/session")
    session = os.open(f"{folder}/session", os.O_RDWR)

    def end() -> None:
        os.close(session)
        for server in _started:
            server.wait(timeout=60)
        shutil.rmtree(folder)

    return end


def shared_server(module: str, variables: Mapping[str, str]) -> str:
    """Return the address of a server, ``python -m MODULE --serve ADDRESS``, started with further variables.

    The server prints a line when it is ready. Its standard input ends with the session.
    """
    folder = Path(os.environ[_FOLDER])
    address = folder / module
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            session = os.open(folder / "session", os.O_RDONLY)
            server = subprocess.Popen(
                [sys.executable, "-m", module, "--serve", str(address)],
                cwd=Path(__file__).parents[1],
                env={**os.environ, **variables},
                stdin=session,
                stdout=subprocess.PIPE,
                text=True,
            )
            os.close(session)
            _started.append(server)
            assert server.stdout is not None and server.stdout.readline() == "ready\n"
    return str(address)
