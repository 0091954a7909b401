"""The way to a hub, with and without a proxy."""

from __future__ import annotations

import pytest

from hpcprof.common.errors import HpcprofError
from hpcprof.results.push import HubAddress

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
    with pytest.raises(HpcprofError, match="https_proxy names no proxy"):
        HUB.connect()
