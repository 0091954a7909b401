"""Limits of the number of clients' connections, and of the time that each may take for a request.

uvicorn limits neither: a client that never ends its request, or never reads the answer, would hold a
connection for ever, and enough such clients would use up the files that the process may open.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_MAX_CONNECTIONS = 400
"""Maximum number of connections."""

_MAX_WAITING_CLIENTS = 512
"""Maximum number of clients that wait for their connection to be accepted."""

_OPEN_FILES = 4096
"""Number of files that the process asks to be allowed to open."""

_ADDRESS_DIVISOR = 4
"""One address may have all connections divided by this; local addresses (proxy, tunnel) may have all."""

_HEAD_SECONDS = 10
"""Seconds for the headers of a request, and between two requests."""

_BODY_SECONDS, _BODY_BYTES_PER_S = 20, 16 << 10
"""Seconds for the body of a request, and bytes of it that give one second more."""

_READING_SECONDS = 60
"""Maximum time in seconds in which a client must read a part of its answer."""

_UNREAD_BYTES = 256 << 20
"""Maximum bytes of answers that wait for their clients to read them."""

_CHECK_INTERVAL_S = 1.0


class Connections:
    """The open connections, by address in the order in which their clients were last heard of.

    Above `most` connections, one of the address with the most connections is closed: the one that has waited
    longest for its client. A quarter of the files that the process may open is for them, another for the
    clients that are `waiting` for their connection to be accepted.
    """

    def __init__(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        self.most = max(8, min(_MAX_CONNECTIONS, wanted // 4))
        # asyncio accepts all that wait before any is closed.
        self.waiting = max(8, min(_MAX_WAITING_CLIENTS, wanted // 4))
        self._open: dict[str, dict[TimedProtocol, None]] = {}
        self._checking = False

    def add(self, connection: TimedProtocol) -> None:
        """Add a connection; another one may be closed for it, or itself."""
        same_address = self._open.setdefault(connection.address, {})
        same_address[connection] = None
        if len(same_address) > self._limit_of(connection.address):
            self._make_room(same_address, connection)
        elif sum(map(len, self._open.values())) > self.most:
            self._make_room(max(self._open.values(), key=len), connection)
        if not self._checking:
            self._checking = True
            connection.loop.call_later(_CHECK_INTERVAL_S, self._check, connection.loop)

    def remove(self, lost: TimedProtocol) -> None:
        """Remove a connection that has ended."""
        same_address = self._open.get(lost.address, {})
        same_address.pop(lost, None)
        if not same_address:
            self._open.pop(lost.address, None)

    def hear(self, client: TimedProtocol) -> None:
        """Note that a client has sent or read something."""
        same_address = self._open.get(client.address, {})
        if client in same_address:
            same_address[client] = same_address.pop(client)  # the latest one

    def limit_unread(self, latest: TimedProtocol) -> None:
        """Close connections, the longest unread first up to ``latest``, while too many bytes are unread."""
        unread = [client for clients in self._open.values() for client in clients if client.unread_since]
        unsent_bytes = sum(client.transport.get_write_buffer_size() for client in unread)
        for client in sorted(unread, key=lambda client: client.unread_since):
            if unsent_bytes <= _UNREAD_BYTES or client is latest:
                return
            unsent_bytes -= client.transport.get_write_buffer_size()
            self._close(client)

    def _limit_of(self, address: str) -> int:
        local = address in ("", "::1") or address.startswith("127.")
        return self.most if local else max(4, self.most // _ADDRESS_DIVISOR)

    def _make_room(self, among: dict[TimedProtocol, None], connection: TimedProtocol) -> None:
        waiting_clients = (client for client in among if client.awaits_client and client is not connection)
        self._close(next(waiting_clients, connection))

    def _close(self, lost: TimedProtocol) -> None:
        self.remove(lost)
        lost.transport.abort()

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for client in [client for clients in self._open.values() for client in clients]:
            if client.is_late(now):
                self._close(client)
        self._checking = bool(self._open)
        if self._checking:
            loop.call_later(_CHECK_INTERVAL_S, self._check, loop)


class TimedProtocol(H11Protocol):
    """HTTP on one connection, which knows how long it has waited for its client."""

    def __init__(self, connections: Connections, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._connections = connections
        self._since, self._received = self.loop.time(), 0
        self.unread_since = 0.0
        self.address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; ``transport`` has the address of the client."""
        super().connection_made(transport)
        self.address = network_of(self.client[0]) if self.client else ""
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        before = self.cycle
        self._received += len(data)
        self._connections.hear(self)
        super().data_received(data)
        if self.cycle is not before:
            self._since, self._received = self.loop.time(), 0

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Note since when the client reads too slowly."""
        self.unread_since = self.loop.time()
        self._connections.limit_unread(self)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note that the client has read."""
        self.unread_since = 0.0
        self._connections.hear(self)
        super().resume_writing()

    @property
    def awaits_client(self) -> bool:
        """True while the client has to send a request or the rest of it, or to read its answer."""
        return self._without_request or self._sends_body or bool(self.unread_since)

    @property
    def _without_request(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _sends_body(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused

    def is_late(self, now: float) -> bool:
        """Return whether the client takes too long with its request, or to read the answer."""
        if self.unread_since and now - self.unread_since > _READING_SECONDS:
            return True
        waited = now - self._since
        if self._without_request:
            return waited > _HEAD_SECONDS
        return self._sends_body and waited > _BODY_SECONDS + self._received / _BODY_BYTES_PER_S


def network_of(address: str) -> str:
    """Return the network of a client: its IPv4 address, or the /64 that a host has of IPv6."""
    if ":" not in address or address == "::1":
        return address
    host = ipaddress.IPv6Address(address.partition("%")[0])
    return str(host.ipv4_mapped or ipaddress.ip_network((host.packed[:8] + bytes(8), 64)))
