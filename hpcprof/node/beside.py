"""The process beside the ranks of a node: samples, stalls, signals, and the end of what is left or waits.

The wrapper of the node's first rank starts it as ``python3 -IS RUN/node`` with these arguments: the run, the
node, the process of the wrapper, its rank and the number of ranks; whether to sample (1 or 0); the seconds
without progress that are a stall (0 for none); whether a stall ends the run; the seconds that leftover
processes have to end; whether the failure of a rank ends the programs of the others; and the seconds that
their profilers then have (0 for no limit).
"""

import glob
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Dict, List, Sequence, Set

from .failures import Failures
from .program_words import PYTHON, Command, launcher_of
from .stalls import Process, StallWatch, ended_ranks, processes, programs, read, waiting_ranks
from .telemetry import Sampler

_LOOK_SECONDS = 2.0
_LEFTOVER_KILL_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL."""


class Signals:
    """Sends the programs of a node the signals that job.sh notes in ``state/signals``.

    Neither the scheduler nor the launcher reaches them. A line is the signal's name and the node of job.sh,
    which signals its own programs itself. A signal may end the launcher that connects the nodes, as qsig of
    PBS does; then job.sh cannot start anything on other nodes.
    """

    def __init__(self, run: str) -> None:
        self._path = run + "/state/signals"
        self._sent = len(self._lines())

    def _lines(self) -> List[str]:
        return read(self._path).decode().split("\n")[:-1]

    def look(self, local: List[Process]) -> None:
        """Send what was noted since the last look."""
        lines = self._lines()
        for name, node in map(str.split, lines[self._sent :]):
            for process in local if node != os.uname().nodename else []:
                if process.is_program:
                    process.send(getattr(signal, "SIG" + name))
        self._sent = len(lines)


class Leftovers:
    """Ends what programs have left, for which profilers and Hydra wait, after ``grace`` seconds."""

    def __init__(self, run: str, grace: float) -> None:
        self._run, self._grace = run, grace
        self._since: Dict[int, float] = {}

    def look(self, local: List[Process]) -> None:
        """Note what the programs have left in ``state/rankNNNNN.left``, and end it when its time is over."""
        now = time.monotonic()
        waiting = waiting_ranks(local)
        if _have_ended(self._run, local):
            waiting |= {process.rank for process in local if process.rank is not None}
        processes: Dict[int, List[Process]] = {}
        for process in local:
            if process.is_program and process.rank in waiting:
                processes.setdefault(process.rank, []).append(process)
        self._since = {rank: self._since.get(rank, now) for rank in processes}
        for rank, started in processes.items():
            names = sorted("%s (%d)" % (process.text("comm").strip(), process.pid) for process in started)
            _note(self._run, rank, "left", ", ".join(names))
            over = now - self._since[rank] - self._grace
            for process in started if over >= 0 else []:
                process.send(signal.SIGTERM if over < _LEFTOVER_KILL_SECONDS else signal.SIGKILL)


class Launches:
    """Notes in ``state/rankNNNNN.launcher`` the launcher that a program has started."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._ranks: Set[int] = set()

    def look(self, local: List[Process]) -> None:
        """Note the first launcher of each rank."""
        for process in local:
            if not process.is_program or process.rank is None or process.rank in self._ranks:
                continue
            words = process.text("cmdline").split("\0")[:-1]
            is_script = PYTHON.fullmatch(os.path.basename(words[0])) and words[1:] if words else False
            if is_script and not words[1].startswith("-"):
                words = words[1:]
            name = launcher_of(Command(words)) if words else ""
            if name:
                self._ranks.add(process.rank)
                _note(self._run, process.rank, "launcher", name)


def _note(run: str, rank: int, fact: str, text: str) -> None:
    """Write a fact about a rank, unless there is one."""
    path = "%s/state/rank%05d.%s" % (run, rank, fact)
    if not os.path.exists(path):
        with open(path + ".part", "w") as file:
            file.write(text + "\n")
        os.replace(path + ".part", path)


def main() -> None:
    """Run until the ranks of the node have ended, or SIGTERM."""
    run, node = sys.argv[1:3]
    wrapper, rank, ranks, samples, limit, stops, grace, fails, profilers = map(int, sys.argv[3:])
    # Before the first thread: the sampler waits for this signal, and takes a last sample.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # Until here it was ignored; the wrapper sends it once all ranks have ended.
    if ended_ranks(run, {rank}) and len(glob.glob(glob.escape(run) + "/state/rank*.exit")) >= ranks:
        os.kill(os.getpid(), signal.SIGTERM)
    watch = StallWatch(run, node, rank, limit, bool(stops), wrapper) if limit else None
    threads = [threading.Thread(target=_watch, args=(watch,), daemon=True)] if watch else []
    watches: List[Any] = [Signals(run), Leftovers(run, grace), Launches(run)]
    watches += [Failures(run, profilers)] if fails else []
    threads.append(threading.Thread(target=_look, args=(run, wrapper, watches), daemon=True))
    for thread in threads:
        thread.start()
    if samples:
        try:
            Sampler(run, node, wrapper).run()
        except Exception as error:
            # A full disk or a quota are the causes to expect.
            sys.stderr.write("hpcprof: no further telemetry of %s: %s\n" % (node, error))
        else:
            if not os.path.exists(run + "/state/stall_stop"):
                _await_leftovers(run, grace)
                return
    while threads[0].is_alive() and signal.sigtimedwait({signal.SIGTERM}, _LOOK_SECONDS) is None:
        pass
    _await_leftovers(run, grace)


def _have_ended(run: str, local: List[Process]) -> bool:
    """Return whether processes of programs are left, and all their ranks have ended."""
    ranks = {process.rank for process in local if process.is_program and process.rank is not None}
    return bool(ranks) and all(os.path.exists("%s/state/rank%05d.exit" % (run, rank)) for rank in ranks)


def _await_leftovers(run: str, grace: int) -> None:
    """Continue in a process for which the wrapper does not wait, while processes of ended programs remain."""
    local, leftovers = processes(run), Leftovers(run, grace)
    if _have_ended(run, local) and os.fork() == 0:
        while local:
            leftovers.look(local)
            time.sleep(_LOOK_SECONDS)
            local = programs(run)


def _watch(watch: StallWatch) -> None:
    """Watch; when the run was ended for a stall, the sampler ends too."""
    if watch.watch():
        os.kill(os.getpid(), signal.SIGTERM)


def _look(run: str, wrapper: int, watches: Sequence[Any]) -> None:
    while True:
        local = processes(run)
        if not local and os.getppid() != wrapper:
            return
        for watch_on in watches:
            with suppress(OSError):  # a process or the folder is gone
                watch_on.look(local)
        time.sleep(_LOOK_SECONDS)
