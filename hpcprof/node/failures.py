"""The end of a node's programs after a rank has failed, for which they would wait until the walltime."""

import os
import signal
import time
from typing import Dict

from .stalls import processes, read, waiting_ranks

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

    def look(self) -> None:
        """End what runs here of ranks that have not ended, if another rank has failed."""
        if not self._note or not (os.path.exists(self._note) or self._note_failure()):
            return
        now = time.monotonic()
        self._noticed = self._noticed or now
        late = now - self._noticed >= _KILL_SECONDS + self._profiler_seconds
        state = set(os.listdir(self._run + "/state"))
        for process in processes(self._run):
            if process.rank is None or "rank%05d.exit" % process.rank in state:
                continue
            if process.is_program:
                # Later than the others begins one whose profiler takes some seconds to start it.
                seconds = now - self._since.setdefault(process.rank, now)
                if seconds == 0 or seconds >= _KILL_SECONDS:
                    process.send(signal.SIGKILL if seconds else signal.SIGTERM)
            elif late and self._profiler_seconds:
                process.send(signal.SIGKILL)

    def _note_failure(self) -> bool:
        """Note a program here that failed while its profiler still writes; return whether there is one."""
        waiting = waiting_ranks(self._run) if self._profiler_seconds else set()
        here = {process.rank for process in processes(self._run)} if waiting else set()
        for rank in sorted(waiting & here):
            code = read("%s/state/rank%05d.code" % (self._run, rank)).decode().strip()
            if code not in _NO_FAILURE:
                try:
                    with open(self._note, "x") as file:
                        file.write("%d %s\n" % (rank, code))
                except FileExistsError:
                    pass
                return True
        return False
