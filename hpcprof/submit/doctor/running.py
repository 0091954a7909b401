"""Running the checks at the same time, and ending the wait for one that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping

from hpcprof.submit.doctor.finding import Finding, Status
from hpcprof.submit.doctor.machine import COMMAND_SECONDS, Machine

Check = Callable[[Machine], Finding]

CHECK_SECONDS = 2 * COMMAND_SECONDS
"""How long a check may take; a command inside one is ended before that."""


def examine(
    machine: Machine, checks: Mapping[str, Check], seconds: float = CHECK_SECONDS
) -> Iterator[Finding]:
    """Yield what each check finds, in their order.

    A check that fails is a finding too, and so is one that hangs, for example on a file system that is
    gone: no process can end that wait, so its thread is left behind and does not keep the program alive.
    """
    found: dict[str, Finding] = {}
    threads = {name: _start(name, check, machine, found) for name, check in checks.items()}
    deadline = time.monotonic() + seconds
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        yield found.get(name) or Finding(
            name,
            Status.BROKEN,
            f"The check gave no answer in {seconds:.0f} s.",
            "Look for a file system or a server that does not answer.",
        )


def _start(name: str, check: Check, machine: Machine, found: dict[str, Finding]) -> threading.Thread:
    def work() -> None:
        try:
            found[name] = check(machine)
        except Exception as error:
            said = f"The check failed: {type(error).__name__}: {error}."
            found[name] = Finding(name, Status.BROKEN, said, "Report it.")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
