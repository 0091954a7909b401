"""The table of checks, and how they run: at the same time, each with a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping

from hpcprof.submit.doctor.machine import COMMAND_SECONDS, Finding, Machine, Status
from hpcprof.submit.doctor.node import counters, dcgm, perf_events, runs, tmpdir
from hpcprof.submit.doctor.software import gpus, mpi, ncu, nsys, scheduler, torch

Check = Callable[[Machine], Finding]

CHECKS: dict[str, Check] = {
    "scheduler": scheduler,
    "MPI": mpi,
    "GPUs": gpus,
    "nsys": nsys,
    "ncu": ncu,
    "hardware counters": counters,
    "CPU sampling": perf_events,
    "TMPDIR": tmpdir,
    "DCGM": dcgm,
    "PyTorch": torch,
    "runs folder": runs,
}
"""Every check by the name of its finding. To add one, write a function and enter it here."""

CHECK_SECONDS = 2 * COMMAND_SECONDS
"""The time limit of a check; a command inside one has a shorter limit."""


def examine(
    machine: Machine, checks: Mapping[str, Check], seconds: float = CHECK_SECONDS
) -> Iterator[Finding]:
    """Run checks at the same time, and yield their findings in the order of the table.

    A check that raises an exception or exceeds the time limit yields a finding too. A check may hang on a
    file system that is gone, from which no process returns; its thread does not keep the program alive.
    """
    found: dict[str, Finding] = {}
    threads = {name: _start(name, check, machine, found) for name, check in checks.items()}
    deadline = time.monotonic() + seconds
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        yield found.get(name) or Finding(
            name,
            Status.BROKEN,
            f"The check did not finish within {seconds:.0f} s.",
            "Look for a file system or a server that does not respond.",
        )


def _start(name: str, check: Check, machine: Machine, found: dict[str, Finding]) -> threading.Thread:
    def work() -> None:
        try:
            found[name] = check(machine)
        except Exception as error:
            observation = f"The check failed: {type(error).__name__}: {error}."
            found[name] = Finding(name, Status.BROKEN, observation, "Report it.")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
