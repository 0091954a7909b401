"""Running a scheduler's commands."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hpcprof.common.errors import SchedulerError

_SECONDS = 120.0
_FIRST_PAUSE = 0.5
_RETRIES = 3
_RETRY_SECONDS = 8.0

# Settings of the user's that change which jobs squeue and sacct list, and how they print times.
_IGNORED = ("SQUEUE_", "SACCT_", "SLURM_TIME_FORMAT")

Answer = TypeVar("Answer")


class Unreachable(SchedulerError):
    """The scheduler gave no answer: nothing is known of any job, and asking again may help."""


@dataclass(frozen=True)
class Output:
    """What a command left: its exit code (negative for a signal) and what it printed."""

    code: int
    stdout: str
    stderr: str


def call(arguments: Sequence[str], directory: Path | None = None, seconds: float = _SECONDS) -> Output:
    """Run a command, never through a shell, and return what it left.

    Raises
    ------
    SchedulerError
        If it cannot be started.
    Unreachable
        If it did not end in ``seconds``.
    """
    program = arguments[0]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_IGNORED)}
    try:
        done = subprocess.run(
            list(arguments),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            # The second one makes sacct print all indices of an array, however many they are.
            env={**environment, "LC_ALL": "C", "SLURM_BITSTR_LEN": "0"},
        )
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{program} gave no answer in {seconds:.0f} s.") from None
    except FileNotFoundError:
        if directory is not None and not directory.is_dir():
            raise SchedulerError(f"the directory {directory} to submit from is not there.") from None
        raise SchedulerError(f"{program} is not on the PATH: is this a login node of the site?") from None
    except OSError as error:
        raise SchedulerError(f"{program} does not start: {error.strerror}.") from None
    return Output(done.returncode, done.stdout, done.stderr)


def retry_pauses() -> Iterator[float]:
    """Yield the seconds to wait before each further question to a scheduler that did not answer."""
    for attempt in range(_RETRIES):
        yield _FIRST_PAUSE * 2**attempt


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Return the answer to a question that changes nothing, asked again while the scheduler is silent.

    Slurm's commands try for 9 to 18 seconds by themselves before they give up (seen on 22.05); they are
    not asked again.
    """
    began = time.monotonic()
    for pause in retry_pauses():
        try:
            return ask()
        except Unreachable:
            if time.monotonic() - began > _RETRY_SECONDS:
                raise
            time.sleep(pause)
    return ask()


def said(text: str) -> str:
    """Return what a command complained of as the end of a sentence, without its usage and prefixes."""
    lines = [line.strip() for line in text.partition("\nusage:")[0].splitlines() if line.strip()]
    return " ".join(lines).rstrip(".") or "it gave no reason"
