"""Ends a job of which one rank died or hangs, and says which one and where.

A rank that is lost lets all others wait in their next collective for ever. So each rank tells, from a thread
of its own, how far it has come; a rank that makes no progress for too long looks at what the others told. The
one that gives no sign of life, or else the one that is behind, is to blame.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

from hpcprof.workloads.failure import abort

_BEAT_S = 0.25
# A rank whose thread did not get its turn for so long on a busy machine is taken for dead.
_SILENT_S = 3.0
# The store is asked by this thread alone, and answers at once or not at all.
STORE_TIMEOUT = timedelta(seconds=5)


@dataclass(frozen=True)
class Position:
    """How far a rank has come: so many beginnings of steps and phases, the latest of which is ``what``."""

    count: int
    what: str
    beat: int


class Watchdog:
    """Watches the progress of this rank and, when there is none, of the others; a context manager.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        All ranks; it is used to abort alone.
    store : torch.distributed.Store
        Where the ranks tell how far they have come; nobody else uses this connection.
    timeout_s : float
        So long without progress is too long.
    end : callable
        ``f(comm, text, code)`` ends the job.
    """

    def __init__(
        self,
        comm: Any,
        store: Any,
        timeout_s: float,
        end: Callable[[Any, str, int], object] = abort,
    ) -> None:
        self._comm = comm
        self._store = store
        self._timeout_s = timeout_s
        self._end = end
        self._begun: deque[tuple[str, Callable[[], bool]]] = deque()
        self._entered = self._count = self._beats = 0
        self._what = "the start"
        self._where = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="watchdog")

    def __enter__(self) -> Watchdog:
        self._tell()
        self._comm.Barrier()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def within(self, point: str) -> None:
        """Name the point of a sweep that what begins from now on belongs to."""
        self._where = f" at {point}" if point else ""

    def enter(self, what: str, passed: Callable[[], bool] = lambda: True) -> None:
        """Note that ``what`` begins; the device has come there when ``passed()`` says so."""
        self._entered += 1
        self._begun.append((what + self._where, passed))

    def lost(self) -> str | None:
        """Return a sentence on the ranks that give no sign of life, None if all do; it takes seconds."""
        try:
            silent = self._silent()
        except RuntimeError:
            return "rank 0 died or was stopped: it cannot be reached."
        if not silent:
            return None
        rank, position = next(iter(silent.items()))
        others = f" ({len(silent)} ranks are silent)" if len(silent) > 1 else ""
        return f"rank {rank} died or was stopped; its last sign of life came from {position.what}{others}."

    def _run(self) -> None:
        seen, since = (-1, -1), time.monotonic()
        while not self._stopped.wait(_BEAT_S):
            self._advance()
            # Rank 0 keeps the store; what is to be said about it is said after the timeout.
            with suppress(RuntimeError):
                self._tell()
            if (now := (self._entered, self._count)) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > self._timeout_s:
                self._blame()
                return

    def _advance(self) -> None:
        """Go on to the latest beginning that the device has passed."""
        while self._begun and self._begun[0][1]():
            self._what = self._begun.popleft()[0]
            self._count += 1

    def _tell(self) -> None:
        self._beats += 1
        self._store.set(_key(self._comm.rank), json.dumps([self._count, self._what, self._beats]))

    def _positions(self) -> dict[int, Position]:
        return {rank: Position(*json.loads(self._store.get(_key(rank)))) for rank in range(self._comm.size)}

    def _silent(self) -> dict[int, Position]:
        """Return the ranks whose thread tells nothing, with where they were."""
        before = self._positions()
        deadline = time.monotonic() + _SILENT_S
        silent = {rank: position for rank, position in before.items() if rank != self._comm.rank}
        while silent and time.monotonic() < deadline:
            time.sleep(_BEAT_S)
            # The others may be looking at this rank just now.
            self._tell()
            now = self._positions()
            silent = {rank: now[rank] for rank in silent if now[rank].beat == before[rank].beat}
        return silent

    def _blame(self) -> None:
        sentence = self.lost()
        if sentence is None:
            # Alive, but behind: the others wait for it in a collective.
            positions = self._positions()
            least = min(position.count for position in positions.values())
            behind = [rank for rank, position in positions.items() if position.count == least]
            if len(behind) == len(positions) > 1:
                sentence = f"all {len(behind)} ranks hang in {positions[0].what}."
            else:
                named = ", ".join(map(str, behind))
                noun, verb = ("rank", "hangs") if len(behind) == 1 else ("ranks", "hang")
                sentence = f"{noun} {named} {verb} in {positions[behind[0]].what}."
        if self._first():
            text = f"no progress for {self._timeout_s:g} s (--step-timeout): {sentence}\n"
            # The main thread may hold the lock that MPI's abort waits for.
            threading.Timer(STORE_TIMEOUT.total_seconds(), os._exit, (1,)).start()
            self._end(self._comm, text, 1)

    def _first(self) -> bool:
        """Say whether no other rank speaks yet; wait for the end of the job if one does."""
        try:
            if self._store.add("verdict", 1) == 1:
                return True
        except RuntimeError:
            return True
        if not self._stopped.wait(STORE_TIMEOUT.total_seconds()):
            sys.stderr.flush()
            os._exit(1)
        return False


def _key(rank: int) -> str:
    return f"position {rank}"
