"""Turns of readers: each reader has a queue, so that nobody waits for all requests of another reader."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import Event

from hpcprof.serve.tiles import AskAgain

_MAX_KNOWN_READERS = 10_000


class Turns:
    """Places that readers take in turns, one each; up to ``most_waiting`` requests of a reader may wait."""

    def __init__(self, places: int, most_waiting: int) -> None:
        self._places, self._most_waiting = places, most_waiting
        self._served: set[str] = set()
        self._waiting: dict[str, deque[Event]] = {}
        self._last: dict[str, int] = {}
        self._count = 0

    @asynccontextmanager
    async def turn(self, reader: str) -> AsyncIterator[None]:
        """Wait for the turn of a reader. Raises `AskAgain` if too many of its requests wait already."""
        queue = self._waiting.setdefault(reader, deque())
        if len(queue) >= self._most_waiting:
            raise AskAgain(f"too many queries: {self._most_waiting} of yours wait already; ask again.")
        turn = Event()
        queue.append(turn)
        self._advance()
        try:
            await turn.wait()
            yield
        finally:
            if turn.is_set():
                self._served.discard(reader)
            else:
                queue.remove(turn)
                self._forget()
            self._advance()

    def _advance(self) -> None:
        while len(self._served) < self._places:
            waiting = [reader for reader in self._waiting if reader not in self._served]
            if not waiting:
                return
            reader = min(waiting, key=lambda reader_name: self._last.get(reader_name, 0))
            self._waiting[reader].popleft().set()
            self._served.add(reader)
            self._count += 1
            self._last[reader] = self._count
            self._forget()

    def _forget(self) -> None:
        self._waiting = {reader: queue for reader, queue in self._waiting.items() if queue}
        if len(self._last) > _MAX_KNOWN_READERS:
            self._last.clear()
