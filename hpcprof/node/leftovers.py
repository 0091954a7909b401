"""Processes that programs leave behind, such as daemons, for which a profiler or a launcher waits."""

import os
import signal
import time
from typing import Dict, List

from .stalls import Process, waiting_ranks

_KILL_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL."""


class Leftovers:
    """Ends what the programs of a node have left, ``grace`` seconds after they have ended.

    Nothing is done once the profiler of a rank has ended too.
    """

    def __init__(self, run: str, grace: float) -> None:
        self._run, self._grace = run, grace
        self._since: Dict[int, float] = {}

    def look(self, here: List[Process]) -> None:
        """Note what the programs have left in ``state/rankNNNNN.left``, and end it when its time is over."""
        now = time.monotonic()
        left: Dict[int, List[Process]] = {rank: [] for rank in waiting_ranks(here)}
        for process in here:
            if process.is_program and process.rank in left:
                left[process.rank].append(process)
        left = {rank: started for rank, started in left.items() if started}
        self._since = {rank: self._since.get(rank, now) for rank in left}
        for rank, started in left.items():
            self._note(rank, started)
            over = now - self._since[rank] - self._grace
            if over >= 0:
                for process in started:
                    process.send(signal.SIGTERM if over < _KILL_SECONDS else signal.SIGKILL)

    def _note(self, rank: int, left: List[Process]) -> None:
        path = "%s/state/rank%05d.left" % (self._run, rank)
        if not os.path.exists(path):
            names = sorted("%s (%d)" % (process.text("comm").strip(), process.pid) for process in left)
            with open(path + ".part", "w") as file:
                file.write(", ".join(names) + "\n")
            os.replace(path + ".part", path)
