"""Processes that programs leave behind, such as daemons, for which a profiler or a launcher waits."""

import os
import signal
import time
from typing import Dict, List

from .stalls import Process, programs, waiting_ranks

_KILL_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL."""


class Leftovers:
    """Ends what the programs of a node have left, ``grace`` seconds after they have ended.

    Nothing is done once the wrapper of a rank has ended too, with its exit code in ``state/rankNNNNN.exit``.
    """

    def __init__(self, run: str, grace: float) -> None:
        self._run, self._grace = run, grace
        self._since: Dict[int, float] = {}

    def look(self) -> None:
        """Note what the programs have left in ``state/rankNNNNN.left``, and end it when its time is over."""
        now = time.monotonic()
        waiting = waiting_ranks(self._run)
        left: Dict[int, List[Process]] = {}
        for process in programs(self._run) if waiting else []:
            if process.rank in waiting:
                left.setdefault(process.rank, []).append(process)
        self._since = {rank: self._since.get(rank, now) for rank in left}
        for rank, here in left.items():
            self._note(rank, here)
            over = now - self._since[rank] - self._grace
            if over >= 0:
                for process in here:
                    process.send(signal.SIGTERM if over < _KILL_SECONDS else signal.SIGKILL)

    def _note(self, rank: int, left: List[Process]) -> None:
        path = "%s/state/rank%05d.left" % (self._run, rank)
        if not os.path.exists(path):
            names = sorted("%s (%d)" % (process.text("comm").strip(), process.pid) for process in left)
            with open(path + ".part", "w") as file:
                file.write(", ".join(names) + "\n")
            os.replace(path + ".part", path)
