"""Clients that hold connections of a server: requests without an end, bodies in drops, answers unread."""

from __future__ import annotations

import http.client
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.waiting import until

_SERVE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
from hpcprof.serve import connections
connections._HEAD_SECONDS, connections._BODY_SECONDS = float(sys.argv[2]), float(sys.argv[2])
sys.argv[1:] = ["serve", "--port", "0", "--runs-dir", sys.argv[3], *sys.argv[4:]]
from hpcprof.cli.main import cli
cli()
"""


@contextmanager
def serving(folder: Path, files: int, seconds: float, *options: str) -> Iterator[tuple[int, Path]]:
    """Start a server that may open some files, and yield its port and what it writes to its terminal."""
    said = folder / "said"
    command = [sys.executable, "-c", _SERVE, str(files), str(seconds), str(folder), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said.open("w"), text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, said.read_text()
        try:
            yield int(address.rpartition(":")[2].strip("/")), said
        finally:
            process.terminate()


def connect(port: int, begin: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), 10)
    made.sendall(begin)
    return made


def is_answered(port: int) -> bool:
    """Return whether another client is answered within five seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/api/runs")
        return connection.getresponse().status == 200
    except ConnectionError:
        return False
    finally:
        connection.close()


def seconds_until_closed(client: socket.socket) -> float:
    client.settimeout(20)
    before = time.monotonic()
    with client:
        try:
            while client.recv(1 << 16):
                pass
        except ConnectionError:
            pass
    return time.monotonic() - before


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process open more files than the server may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


_BEGINNINGS = {
    "header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "body": b"POST /api/sql HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 60000\r\n\r\n{",
    "unread": b"GET /static/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 12,
}


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize(
    ("files", "clients", "kind"), [(1024, 1100, "header"), (128, 150, "body"), (128, 150, "unread")]
)
def test_clients_that_stop_halfway_hold_up_nobody_and_do_not_fill_the_log(
    files: int, clients: int, kind: str, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    with serving(tmp_path, files, 60) as (port, said), ExitStack() as held:
        assert is_answered(port)
        began = time.monotonic()
        for _ in range(clients):
            held.enter_context(connect(port, _BEGINNINGS[kind]))
        until(lambda: is_answered(port))  # once the requests that are whole have been answered
        for _ in range(3):
            assert is_answered(port)
        assert len(said.read_text().splitlines()) <= time.monotonic() - began + 1


def test_a_client_that_takes_its_time_is_not_waited_for(tmp_path: Path) -> None:
    token = b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\ntok"
    beginnings = {
        "nothing": b"",
        "a header": b"GET / HTTP/1.1\r\nHost: loc",
        "after an answer": b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a second header": b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\nGET /ap",
        "a body": token,
        "a refused body": token.replace(b"60000", b"600000000"),
    }
    with serving(tmp_path, 1024, 1.0, "--accept") as (port, _):
        clients = {kind: connect(port, begin) for kind, begin in beginnings.items()}
        for kind, client in clients.items():
            assert seconds_until_closed(client) < 6, kind
