"""The way to a hub, with and without a proxy, and hubs that do not answer as one does."""

from __future__ import annotations

import http.server
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from hpcprof.common.errors import HpcprofError
from hpcprof.results.across import push
from hpcprof.results.across.push import HubAddress

HUB = HubAddress("https", "hub.example.org", None, "x" * 43)


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_a_proxy_of_the_environment_leads_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://me:pass%20word@proxy.example.org:3128")
    sent: list[bytes] = []
    connection = HUB.connect()
    assert (connection.host, connection.port) == ("proxy.example.org", 3128)

    class Socket:
        def setsockopt(self, *_: object) -> None:
            pass

        def close(self) -> None:
            pass

        def sendall(self, data: bytes) -> None:
            sent.append(data)
            raise ConnectionError

    monkeypatch.setattr(connection, "_create_connection", lambda *_: Socket())
    with pytest.raises(ConnectionError):
        connection.connect()
    asked = b"".join(sent)
    assert asked.startswith(b"CONNECT hub.example.org:443 HTTP/1.")
    assert b"Proxy-Authorization: Basic bWU6cGFzcyB3b3Jk" in asked and b"x" * 43 not in asked


def test_hosts_of_no_proxy_and_this_machine_are_reached_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "proxy.example.org:3128")
    assert HUB.connect().host == "proxy.example.org"
    assert HubAddress("http", "127.0.0.1", 8765, "").connect().host == "127.0.0.1"
    monkeypatch.setenv("no_proxy", "localhost,.example.org")
    assert HUB.connect().host == "hub.example.org"


@pytest.mark.parametrize("proxy", ["socks5://proxy.example.org", "http://", "http://h:port"])
def test_a_proxy_that_is_none_is_named_without_its_password(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(HpcprofError, match="https_proxy names no usable proxy"):
        HUB.connect()


Answer = Callable[[str, int], tuple[int, bytes]]
"""The status and the text for a method and the offset of what is sent."""


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], str]:
    """Push to a server with given answers, and return why that ended."""
    monkeypatch.setattr(push, "_PAUSE_S", 0.0)
    package = tmp_path / "package"
    package.write_bytes(b"package")

    def pushed(answer: Answer) -> str:
        class Other(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                status, text = answer(self.command, int(self.headers["Upload-Offset"] or 0))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text)

            do_PUT = do_GET

            def log_message(self, format: str, *args: object) -> None:
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
            Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            with pytest.raises(HpcprofError) as refused:
                push._send(package, HubAddress("http", "127.0.0.1", server.server_port, ""), lambda *_: None)
            server.shutdown()
        return str(refused.value)

    return pushed


@pytest.mark.parametrize("answer", [b"{}", b"[]", b"<html>", b'{"offset": -5, "run": null}'])
def test_what_is_no_hub_is_one_sentence(answer: bytes, refusal: Callable[[Answer], str]) -> None:
    assert "is not a hub" in refusal(lambda *_: (200, answer))


@pytest.mark.parametrize(
    ("status", "advice"),
    [(401, "Bearer token"), (413, "have it let 8 MiB through"), (403, "keeps pushes out")],
)
def test_what_a_proxy_before_the_hub_refuses_has_advice(
    status: int, advice: str, refusal: Callable[[Answer], str]
) -> None:
    assert advice in refusal(lambda *_: (status, b"<html>"))


def test_a_certificate_that_cannot_be_trusted_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ask(*_: object) -> None:
        asked.append(1)
        error = ssl.SSLCertVerificationError()
        error.verify_message = "self-signed certificate"
        raise error

    monkeypatch.setattr(push, "_request", ask)
    (tmp_path / "package").write_bytes(b"package")
    with pytest.raises(HpcprofError, match=r"cannot be trusted: self-signed certificate; SSL_CERT_FILE=FILE"):
        push._send(tmp_path / "package", HUB, lambda *_: None)
    assert len(asked) == 1


def test_a_hub_that_never_agrees_how_much_it_has_is_left(refusal: Callable[[Answer], str]) -> None:
    def disagree(method: str, offset: int) -> tuple[int, bytes]:
        return 409 if method == "PUT" else 200, json.dumps({"offset": int(not offset)}).encode()

    assert "accepts no more than" in refusal(disagree)


def test_a_hub_that_can_write_nothing_is_asked_five_times(refusal: Callable[[Answer], str]) -> None:
    asked = []

    def fail(method: str, offset: int) -> tuple[int, bytes]:
        asked.append(method)
        return (503, b'{"error": "the disk is full."}') if method == "PUT" else (200, b'{"offset": 0}')

    assert "it answered 503: the disk is full; push again to resume" in refusal(fail)
    assert asked == ["GET", "PUT"] * 5
