"""Signals of the job for programs of nodes that neither the scheduler nor the launcher reaches."""

import os
import signal

from .stalls import Process, read


class Signals:
    """Sends the programs of a node the signals that job.sh notes in ``state/signals``.

    A line is the signal's name and the node of job.sh, which signals its own programs itself. Where signals
    have ended what connects the nodes, as qsig ends that of PBS, job.sh can start nothing on other nodes.
    """

    def __init__(self, run: str) -> None:
        self._path = run + "/state/signals"
        self._sent = len(self._lines())

    def _lines(self) -> "list[str]":
        return read(self._path).decode().split("\n")[:-1]

    def look(self, here: "list[Process]") -> None:
        """Send what was noted since the last look."""
        lines = self._lines()
        for name, node in map(str.split, lines[self._sent :]):
            for process in here if node != os.uname().nodename else []:
                if process.is_program:
                    process.send(getattr(signal, "SIG" + name))
        self._sent = len(lines)
