"""End a job in which a rank has died or hangs, and report which rank it is and where.

If a rank is lost, all others wait in their next collective forever. So a thread of each rank publishes how
far the rank has come. A rank that makes no progress for too long compares the others: the one that shows no
sign of life, or else the one that is behind, is to blame.
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
# A rank whose thread has published nothing for this long counts as dead; a busy machine may delay a thread.
_SILENT_S = 3.0
# Only this thread uses the store, which answers at once or not at all.
STORE_TIMEOUT = timedelta(seconds=5)


@dataclass(frozen=True)
class Position:
    """The progress of a rank: how many steps and phases it has begun, and the latest of them, ``what``."""

    count: int
    what: str
    beat: int


class Watchdog:
    """Watches the progress of this rank and, if it stops, compares that of the others; a context manager.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        All ranks; used for a barrier at the start and to abort.
    store : torch.distributed.Store
        Where the ranks publish their progress; nothing else uses this connection.
    timeout_s : float
        The job ends after this many seconds without progress.
    end : callable
        ``f(comm, text, code)`` prints ``text`` and ends the job.
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
        """Set the point of the sweep that the next steps belong to; empty for none."""
        self._where = f" at {point}" if point else ""

    def enter(self, what: str, passed: Callable[[], bool] = lambda: True) -> None:
        """Note that ``what`` begins; the device has reached it once ``passed()`` returns true."""
        self._entered += 1
        self._begun.append((what + self._where, passed))

    def lost(self) -> str | None:
        """Describe the ranks that show no sign of life; None if all do. This takes several seconds."""
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
            # Rank 0 hosts the store. If it is gone, that is reported after the timeout.
            with suppress(RuntimeError):
                self._tell()
            if (now := (self._entered, self._count)) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > self._timeout_s:
                self._blame()
                return

    def _advance(self) -> None:
        """Move on to the latest step or phase that the device has reached."""
        while self._begun and self._begun[0][1]():
            self._what = self._begun.popleft()[0]
            self._count += 1

    def _tell(self) -> None:
        self._beats += 1
        self._store.set(_key(self._comm.rank), json.dumps([self._count, self._what, self._beats]))

    def _positions(self) -> dict[int, Position]:
        return {rank: Position(*json.loads(self._store.get(_key(rank)))) for rank in range(self._comm.size)}

    def _silent(self) -> dict[int, Position]:
        """Return the ranks that publish nothing any more, with their last positions."""
        before = self._positions()
        deadline = time.monotonic() + _SILENT_S
        silent = {rank: position for rank, position in before.items() if rank != self._comm.rank}
        while silent and time.monotonic() < deadline:
            time.sleep(_BEAT_S)
            # Other ranks may be checking this one at the same time.
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
            # The main thread may hold the lock that MPI's abort needs.
            threading.Timer(STORE_TIMEOUT.total_seconds(), os._exit, (1,)).start()
            self._end(self._comm, text, 1)

    def _first(self) -> bool:
        """Return whether this rank is the first to report; otherwise wait for the end of the job."""
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
