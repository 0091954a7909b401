"""Limits of the number of clients' connections, and of the time that each may take for a request.

uvicorn limits neither: a client that never ends its request, or never reads the answer, would hold a
connection for ever, and enough of them all that the process may open.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_MAX_CONNECTIONS = 400
"""Maximum number of connections."""

_MOST_WAITING = 512
"""Maximum number of clients that wait for their connection to be accepted."""

_FILES = 4096
"""Files that the process asks to be allowed to open."""

_ADDRESS_DIVISOR = 4
"""Divisor of all connections for the maximum of one address; local addresses (proxy, tunnel) may have all."""

_HEAD_SECONDS = 10
"""Seconds for the headers of a request, and between two requests."""

_BODY_SECONDS, _BODY_BYTES_PER_S = 20, 16 << 10
"""Seconds for the body of a request, and bytes of it that give one second more."""

_READING_SECONDS = 60
"""Seconds in which a client has to read something of its answer."""

_LOOK_S = 1.0


class Connections:
    """The open connections, by address in the order in which they were made.

    When there are more than `most`, the oldest one without a request goes, of the address with the most of
    them. A quarter of the files that the process may open is for them, another for those that `wait`.
    """

    def __init__(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        self.most = max(8, min(_MAX_CONNECTIONS, wanted // 4))
        # asyncio accepts all that wait before any is closed.
        self.waiting = max(8, min(_MOST_WAITING, wanted // 4))
        self._open: dict[str, dict[TimedProtocol, None]] = {}
        self._looking = False

    def add(self, made: TimedProtocol) -> None:
        """Add a connection; another one may be closed for it, or itself."""
        of_address = self._open.setdefault(made.address, {})
        of_address[made] = None
        if len(of_address) > self._most_of(made.address):
            self._make_room(of_address, made)
        elif sum(map(len, self._open.values())) > self.most:
            self._make_room(max(self._open.values(), key=len), made)
        if not self._looking:
            self._looking = True
            made.loop.call_later(_LOOK_S, self._look, made.loop)

    def remove(self, lost: TimedProtocol) -> None:
        """Remove a connection that has ended."""
        of_address = self._open.get(lost.address, {})
        of_address.pop(lost, None)
        if not of_address:
            self._open.pop(lost.address, None)

    def _most_of(self, address: str) -> int:
        local = address in ("", "::1") or address.startswith("127.")
        return self.most if local else max(4, self.most // _ADDRESS_DIVISOR)

    def _make_room(self, among: dict[TimedProtocol, None], made: TimedProtocol) -> None:
        oldest = next((one for one in among if one.without_request and one is not made), made)
        self.remove(oldest)
        oldest.transport.abort()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for one in [one for of_address in self._open.values() for one in of_address]:
            if one.is_late(now):
                self.remove(one)
                one.transport.abort()
        self._looking = bool(self._open)
        if self._looking:
            loop.call_later(_LOOK_S, self._look, loop)


class TimedProtocol(H11Protocol):
    """HTTP on one connection, which knows how long it has waited for its client."""

    def __init__(self, connections: Connections, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._connections = connections
        self._since, self._received, self._unread_since = self.loop.time(), 0, 0.0
        self.address = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; ``transport`` has the address of the client."""
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        before = self.cycle
        self._received += len(data)
        super().data_received(data)
        if self.cycle is not before:
            self._since, self._received = self.loop.time(), 0

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Note since when the client reads too slowly."""
        self._unread_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note that the client has read."""
        self._unread_since = 0.0
        super().resume_writing()

    @property
    def without_request(self) -> bool:
        """True while the client has not yet said what it wants, or has its answer."""
        return self.cycle is None or self.cycle.response_complete

    def is_late(self, now: float) -> bool:
        """Return whether the client takes too long with its request, or to read the answer."""
        if self._unread_since and now - self._unread_since > _READING_SECONDS:
            return True
        waited = now - self._since
        if self.without_request:
            return waited > _HEAD_SECONDS
        sending = self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused
        return sending and waited > _BODY_SECONDS + self._received / _BODY_BYTES_PER_S
