"""Run other programs: the only module that starts processes, except the supervisor of local jobs.

No command goes through a shell. `subprocess` is imported on first use, since many commands of hpcprof start
no process and the import takes 3 ms.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcprof.common.errors import HpcprofError

if TYPE_CHECKING:
    from subprocess import Popen


@dataclass(frozen=True)
class Completed:
    """A command that has ended.

    Attributes
    ----------
    command : tuple of str
        The program and its arguments.
    exit_code : int
        The exit code; negative if a signal ended the command, as in `subprocess`.
    stdout, stderr : str
        What the command printed, decoded as UTF-8; invalid bytes become U+FFFD.
    seconds : float
        The wall-clock time.
    """

    command: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    seconds: float


class CommandNotStarted(HpcprofError):
    """A program was not found or is not executable; ``reason`` is the system's."""

    def __init__(self, program: str, reason: str) -> None:
        # Both are arguments of the exception, so that it can be pickled.
        super().__init__(program, reason)
        self.program, self.reason = program, reason

    def __str__(self) -> str:
        return f"cannot start {self.program}: {self.reason}."


class CommandTimedOut(HpcprofError):
    """A command exceeded its time limit of ``seconds`` and was killed with its children."""

    def __init__(self, program: str, seconds: float) -> None:
        super().__init__(program, seconds)
        self.program, self.seconds = program, seconds

    def __str__(self) -> str:
        return f"{self.program} did not finish within {self.seconds:.0f} s and was killed."


def run_command(
    command: Sequence[str],
    *,
    timeout: float,
    text_input: str = "",
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Completed:
    """Run a command to its end and return its exit code and output.

    The command gets a session of its own. If it exceeds the time limit, or the caller is interrupted, it is
    killed with all processes of that session.

    Parameters
    ----------
    command : sequence of str
        The program and its arguments.
    timeout : float
        Time limit in seconds.
    text_input : str
        Standard input; the command reads end-of-file after it.
    directory : Path, optional
        Working directory, by default the caller's.
    environment : mapping, optional
        The whole environment, by default the caller's.

    Raises
    ------
    CommandNotStarted
        If the program was not found or is not executable, or ``directory`` does not exist.
    CommandTimedOut
        If the command exceeded the time limit.
    """
    import subprocess

    began = time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if text_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise _not_started(command[0], error, directory) from None
    with process:
        try:
            stdout, stderr = process.communicate(text_input or None, timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise CommandTimedOut(command[0], timeout) from None
        except BaseException:
            _kill(process)
            raise
    return Completed(tuple(command), process.returncode, stdout, stderr, time.monotonic() - began)


def run_in_terminal(command: Sequence[str]) -> int:
    """Run a command with the caller's standard input and output, and return its exit code.

    Raises
    ------
    CommandNotStarted
        If the program was not found or is not executable.
    """
    import subprocess

    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        raise _not_started(command[0], error) from None


def start_in_background(command: Sequence[str], directory: Path) -> Popen[bytes]:
    """Start a process that outlives the caller and its terminal, without input or output.

    Raises
    ------
    CommandNotStarted
        If the program was not found or is not executable, or ``directory`` does not exist.
    """
    import subprocess

    nowhere = subprocess.DEVNULL
    try:
        return subprocess.Popen(
            command, stdin=nowhere, stdout=nowhere, stderr=nowhere, cwd=directory, start_new_session=True
        )
    except OSError as error:
        raise _not_started(command[0], error, directory) from None


def _not_started(program: str, error: OSError, directory: Path | None = None) -> CommandNotStarted:
    if directory is not None and not directory.is_dir():
        return CommandNotStarted(program, f"the directory {directory} does not exist")
    if isinstance(error, FileNotFoundError) and "/" not in program:
        return CommandNotStarted(program, "it is not on the PATH")
    return CommandNotStarted(program, error.strerror or str(error))


def _kill(process: Popen[str]) -> None:
    """Kill a command with the processes of its session that have not left its process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
