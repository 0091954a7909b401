"""The table of checks, and how they run: at the same time, each with a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping

from hpcprof.submit.doctor.machine import COMMAND_SECONDS, CheckResult, Inspected, Status
from hpcprof.submit.doctor.mpi import mpi
from hpcprof.submit.doctor.node import counters, dcgm, perf_events, runs, tmpdir
from hpcprof.submit.doctor.software import gpus, ncu, nsys, scheduler, torch

Check = Callable[[Inspected], CheckResult]

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

_STARTS_RANKS = "MPI"

CHECK_SECONDS = 2 * COMMAND_SECONDS
"""The time limit of a check; a command inside one has a shorter limit."""


def examine(
    machine: Inspected, checks: Mapping[str, Check], seconds: float = CHECK_SECONDS
) -> Iterator[CheckResult]:
    """Run checks at the same time, and yield their findings in the order of the table.

    A check that raises an exception or exceeds the time limit yields a finding too. A check may hang on a
    file system that is gone, from which no process returns; its thread does not keep the program alive.

    A check that starts ranks in a batch system runs in this thread, so that Ctrl-C gives their node back, and
    each of its commands has a time limit of its own.
    """
    found: dict[str, CheckResult] = {}
    in_job = _STARTS_RANKS in checks and machine.starts_ranks and not machine.scheduler.runs_here
    threads = {
        name: _start(name, check, machine, found)
        for name, check in checks.items()
        if not (in_job and name == _STARTS_RANKS)
    }
    deadline = time.monotonic() + seconds
    if in_job:
        _run(_STARTS_RANKS, checks[_STARTS_RANKS], machine, found)
    for name in checks:
        if name in threads:
            threads[name].join(max(0.0, deadline - time.monotonic()))
        yield found.get(name) or CheckResult(
            name,
            Status.BROKEN,
            f"The check did not finish within {seconds:.0f} s.",
            "Look for a file system or a server that does not respond.",
        )


def _start(name: str, check: Check, machine: Inspected, found: dict[str, CheckResult]) -> threading.Thread:
    thread = threading.Thread(target=_run, args=(name, check, machine, found), daemon=True)
    thread.start()
    return thread


def _run(name: str, check: Check, machine: Inspected, found: dict[str, CheckResult]) -> None:
    try:
        found[name] = check(machine)
    except Exception as error:
        observation = f"The check failed: {type(error).__name__}: {error}."
        found[name] = CheckResult(name, Status.BROKEN, observation, "Report it.")
