"""A host of --host that answers something other than it was asked for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hpcprof.common.errors import HpcprofError
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
        answers(b"Welcome!\nhpcprof-account\n" + account).account()
    assert answers(b"Welcome!\nhpcprof-account\nu\n/home/u\n").account().home == "/home/u"
