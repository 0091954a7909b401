"""Connections without sockets: which one goes, and how much their unread answers take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpcprof.serve import connections
from hpcprof.serve.connections import Connections, network_of


class Client(SimpleNamespace):
    """A connection that waits for its client since a time, with bytes to read."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, address: str = "127.0.0.1", since: float = 0.0, unread: int = 0) -> None:
        transport = SimpleNamespace(get_write_buffer_size=lambda: unread, abort=self.abort)
        loop = SimpleNamespace(call_later=lambda *_: None)
        super().__init__(address=address, unread_since=since, transport=transport, loop=loop)
        self.open = self.awaits_client = True

    def abort(self) -> None:
        self.open = False


def add(made: Connections, *clients: Any) -> None:
    for client in clients:
        made.add(client)


def test_answers_that_nobody_reads_take_a_bounded_amount_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_UNREAD_BYTES", 100)
    made = Connections()
    clients = [Client(since=float(second), unread=60) for second in (2, 1, 3, 0)]
    add(made, *clients)
    made.limit_unread(clients[2])  # type: ignore[arg-type]
    assert [client.open for client in clients] == [False, False, True, True]
    made.limit_unread(clients[2])  # type: ignore[arg-type]
    assert clients[2].open


def test_the_client_that_was_silent_longest_goes_and_no_request_in_work() -> None:
    made = Connections()
    made.most = 3
    first, second, working = Client(), Client(), Client()
    working.awaits_client = False
    add(made, working, first, second)
    made.hear(first)  # type: ignore[arg-type]
    add(made, Client())
    assert (working.open, first.open, second.open) == (True, True, False)


def test_a_host_of_ipv6_counts_by_its_network() -> None:
    assert network_of("2001:db8::1:2") == network_of("2001:db8::ffff") == "2001:db8::/64"
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"
    assert network_of("fe80::1%eth0") == "fe80::/64" and network_of("::1") == "::1"
