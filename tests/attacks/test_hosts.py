"""Hosts and hubs that answer something other than they were asked for."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from hpcprof.common.errors import HpcprofError
from hpcprof.results.across import push
from hpcprof.submit.remote.host import Host, _ssh

Answers = Callable[[bytes], Host]


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Let the ssh of this test print something, whatever it is asked."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\nfor word; do [ "$word" != -G ] || exit 0; done\nexec cat {tmp_path}/answer\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    _ssh.cache_clear()

    def answering(said: bytes) -> Host:
        (tmp_path / "answer").write_bytes(said)
        return Host("login.example.org")

    return answering


@pytest.mark.parametrize(
    "account",
    [
        *(b"", b"u\n", b"u\nhome\n", b"-oProxyCommand=id\n/home/u\n", b"u;id\n/home/u\n", b"u\n/home/u\nx\n"),
        *(b"u\n/home/\x1b[2Ju\n", b"u\n/home/u\0\n", b"\xff\n/home/u\n", b"u\n/home/\xe2\x80\xaeu\n"),
    ],
)
def test_an_account_that_could_be_an_option_or_steer_a_terminal_is_refused(
    account: bytes, answers: Answers
) -> None:
    with pytest.raises(HpcprofError, match="does not report the user's name and home folder"):
        answers(b"Welcome!\nhpcprof-begins\n" + account).account()
    assert answers(b"Welcome!\nhpcprof-begins\nu\n/home/u\n").account().home == "/home/u"


@pytest.mark.parametrize("begin", [b"X: ", b"Content-Length: 9999\r\n\r\n"])
def test_a_hub_that_never_ends_its_answer_is_left(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "_TIMEOUT_S", 0.5)

    def dribble() -> None:
        with listener.accept()[0] as client:
            client.sendall(b"HTTP/1.1 200 OK\r\n" + begin)
            for _ in range(100):
                time.sleep(0.05)
                try:
                    client.sendall(b" ")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=dribble)
        thread.start()
        hub = push.HubAddress("http", "127.0.0.1", listener.getsockname()[1], "t" * 20)
        with pytest.raises(HpcprofError, match=r"did not end its answer within 0\.5 s"):
            push._request(hub, "GET", "/")
        thread.join(4)
        assert not thread.is_alive()
