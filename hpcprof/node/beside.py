"""The process beside the ranks of a node: samples, stalls, signals, and the end of what is left or waits.

The wrapper of the node's first rank starts it as ``python3 -IS RUN/node`` with these arguments: the run, the
node, the process of the wrapper, its rank and the number of ranks; whether to sample (1 or 0); the seconds
without progress that are a stall (0 for none); whether a stall ends the run; the seconds that leftover
processes have to end; whether the failure of a rank ends the programs of the others; and the seconds that
their profilers then have (0 for no limit). Nothing here may make the job fail.
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Sequence, Union

from .failures import Failures
from .leftovers import Leftovers
from .signals import Signals
from .stalls import StallWatch, processes
from .telemetry import Sampler

_LOOK_SECONDS = 2.0


def main() -> None:
    """Run until the ranks of the node have ended, or SIGTERM."""
    run, node = sys.argv[1:3]
    wrapper, rank, _ranks, samples, limit, stops, grace, fails, profilers = map(int, sys.argv[3:])
    # Before the first thread: the sampler waits for this signal, and takes a last sample.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    watch = StallWatch(run, node, rank, limit, bool(stops), wrapper) if limit else None
    threads = [threading.Thread(target=_watch, args=(watch,), daemon=True)] if watch else []
    lookers = [Signals(run), Leftovers(run, grace), *([Failures(run, profilers)] if fails else [])]
    threads.append(threading.Thread(target=_look, args=(run, wrapper, lookers), daemon=True))
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
                return
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threads[0].join()


def _watch(watch: StallWatch) -> None:
    """Watch; when the run was ended for a stall, the sampler ends too."""
    if watch.watch():
        os.kill(os.getpid(), signal.SIGTERM)


def _look(run: str, wrapper: int, lookers: "Sequence[Union[Signals, Leftovers, Failures]]") -> None:
    while True:
        here = processes(run)
        if not here and os.getppid() != wrapper:
            return
        for looker in lookers:
            with suppress(OSError):  # a process or the folder is gone
                looker.look(here)
        time.sleep(_LOOK_SECONDS)
