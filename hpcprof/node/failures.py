"""The end of a node's programs after a rank has failed, for which they would wait until the walltime."""

import os
import signal
import time
from contextlib import suppress
from typing import Dict, List

from .stalls import Process, ended_ranks, read, waiting_ranks

_KILL_SECONDS = 20.0
"""Seconds between SIGTERM and SIGKILL."""

_NO_FAILURE = ("", "0", "129", "130", "143")
"""Exit codes of success, and of signals from outside, by which a job is cancelled or its time is over."""


class Failures:
    """Ends the programs of a node, and after further seconds their profilers, once a rank has failed.

    The first rank that fails notes that in a file with the time of the job's start in its name; nothing is
    ended without such a time. ``profiler_seconds`` is 0 for no limit.
    """

    def __init__(self, run: str, profiler_seconds: float) -> None:
        self._run, self._profiler_seconds = run, profiler_seconds
        started = read(run + "/state/started").decode().strip()
        self._note = "%s/state/failed.%s" % (run, started) if started else ""
        self._noticed = 0.0
        self._since: Dict[int, float] = {}

    def look(self, local: List[Process]) -> None:
        """End what runs here of ranks that have not ended, if another rank has failed."""
        if not self._note or not (os.path.exists(self._note) or self._note_failure(local)):
            return
        now = time.monotonic()
        self._noticed = self._noticed or now
        late = now - self._noticed >= _KILL_SECONDS + self._profiler_seconds
        over = ended_ranks(self._run, {process.rank for process in local if process.rank is not None})
        for process in local:
            if process.rank is None or process.rank in over:
                continue
            if process.is_program:
                # A program begins later than the others if its profiler takes some seconds to start it.
                seconds = now - self._since.setdefault(process.rank, now)
                if seconds == 0 or seconds >= _KILL_SECONDS:
                    process.send(signal.SIGKILL if seconds else signal.SIGTERM)
            elif late and self._profiler_seconds:
                process.send(signal.SIGKILL)

    def _note_failure(self, local: List[Process]) -> bool:
        """Note a program here that failed while its profiler still writes; return whether there is one."""
        for rank in sorted(waiting_ranks(local)) if self._profiler_seconds else []:
            code = read("%s/state/rank%05d.code" % (self._run, rank)).decode().strip()
            if code not in _NO_FAILURE:
                with suppress(FileExistsError), open(self._note, "x") as file:
                    file.write("%d %s\n" % (rank, code))
                return True
        return False
