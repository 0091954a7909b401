"""Run other programs: the only module that starts processes, except the supervisor of local jobs.

No command goes through a shell, and each is logged (`hpcprof.common.logs`). The modules for both are imported
on first use: many commands of hpcprof start no process, and `subprocess` alone takes 3 ms.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hpcprof.common.errors import HpcprofError

if TYPE_CHECKING:
    from subprocess import Popen


NO_WORKING_FOLDER = "import sys; sys.path[:] = filter(None, sys.path); "
"""Start of a program for ``python -c`` that imports nothing from the working folder, which may be unsafe."""


@contextmanager
def without_working_folder() -> Iterator[None]:
    """Keep Python processes that are started in the block from importing from the working folder.

    It needs Python 3.11. It serves the processes of `multiprocessing`, whose program cannot begin with
    `NO_WORKING_FOLDER`.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


@dataclass(frozen=True)
class Completed:
    """A command that has ended."""

    command: tuple[str, ...]
    exit_code: int
    """The exit code; negative if a signal ended the command, as in `subprocess`."""
    stdout: str
    stderr: str
    """The output of the command, decoded as UTF-8; invalid bytes become U+FFFD."""
    seconds: float
    """The wall-clock time."""

    @property
    def answer(self) -> tuple[int, str, str]:
        """The exit code, the output, and the errors without secrets, for parsers of a scheduler's output."""
        from hpcprof.common.masking import masked

        return self.exit_code, self.stdout, masked(self.stderr)


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

    The command reads ``text_input`` and then end-of-file, and gets a session of its own. If it exceeds the
    time limit in seconds (`CommandTimedOut`), or the caller is interrupted, it is killed with all processes
    of that session. ``environment`` is the whole one, by default the caller's.
    """
    import subprocess

    began = time.monotonic()
    deliver = hold_interrupts()
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
        deliver()
        raise _start_error(command, error, directory) from None
    with process:
        try:
            deliver()
            stdout, stderr = process.communicate(text_input or None, timeout)
        except subprocess.TimeoutExpired as error:
            _kill(process)
            _log(command, f"killed after {timeout:.0f} s", _text(error.stdout), _text(error.stderr))
            raise CommandTimedOut(command[0], timeout) from None
        except BaseException:
            _kill(process)
            _log(command, "interrupted and killed")
            raise
    seconds = time.monotonic() - began
    _log(command, f"exit code {process.returncode}, {seconds:.2f} s", stdout, stderr)
    return Completed(tuple(command), process.returncode, stdout, stderr, seconds)


_MAX_STDERR_BYTES = 65_536
"""Maximum bytes of standard error that are kept of a piped command."""

_RESTORE_SECONDS, _RESTORE_SIGNALS = 2.0, 10
"""Time in seconds in which a command may restore its terminal, and the signals that ask it to."""


class Piped:
    """A command of `piped`: its pipes in the block, its exit code and the start of its stderr afterwards."""

    def __init__(self, process: "Popen[bytes]") -> None:
        assert process.stdin is not None and process.stdout is not None
        self.stdin: IO[bytes] = process.stdin
        self.stdout: IO[bytes] = process.stdout
        self.exit_code = 0
        self.stderr = ""


@contextmanager
def piped(command: Sequence[str], *, timeout: float, in_terminal: bool = False) -> Iterator[Piped]:
    """Run a command while the block reads and writes its pipes, and wait for its end after the block.

    The command is killed if the block raises, or the time limit in seconds is exceeded (`CommandTimedOut`).
    With ``in_terminal`` it keeps the caller's terminal, to ask for a password, and standard error.
    """
    import subprocess

    pipe, began = subprocess.PIPE, time.monotonic()
    try:
        errors = None if in_terminal else pipe
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=errors, start_new_session=not in_terminal
        )
    except OSError as error:
        raise _start_error(command, error) from None
    running, stderr, late = Piped(process), bytearray(), threading.Event()

    def listen() -> None:
        # Nobody waits for its end: a process that the command leaves behind may hold the pipe open.
        while process.stderr is not None and (part := os.read(process.stderr.fileno(), _MAX_STDERR_BYTES)):
            stderr.extend(part[: _MAX_STDERR_BYTES - len(stderr)])

    def kill() -> None:
        if in_terminal:
            # A program that asks for a password switches echo off, and restores the terminal at this signal.
            # A signal between its prompt and its reading is lost.
            for _ in range(_RESTORE_SIGNALS):
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_RESTORE_SECONDS / _RESTORE_SIGNALS)
        process.kill()

    def end() -> None:
        late.set()
        kill()

    listener = threading.Thread(target=listen, daemon=True)
    limit = threading.Timer(timeout, end)
    listener.start()
    limit.start()
    try:
        yield running
        with suppress(BrokenPipeError):
            running.stdin.close()
        running.exit_code = process.wait()
    except BaseException:
        kill()
        process.wait()
        if not late.is_set():
            raise
    finally:
        limit.cancel()
        listener.join(1.0)
        running.stderr = bytes(stderr).decode("utf-8", "replace")
        for file in (running.stdin, running.stdout):
            with suppress(OSError):
                file.close()
        _log(command, f"exit code {process.returncode}, {time.monotonic() - began:.2f} s")
    if late.is_set():
        raise CommandTimedOut(command[0], timeout)


def hold_interrupts() -> Callable[[], None]:
    """Defer Ctrl-C and SIGTERM while a process starts, whose id would be lost; the result delivers them."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    signals: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, frame: signals.append(number))

    def deliver() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if signals:
            signal.raise_signal(signals[0])

    return deliver


def run_in_terminal(command: Sequence[str]) -> int:
    """Run a command with the caller's standard input and output, and return its exit code."""
    import subprocess

    began = time.monotonic()
    try:
        exit_code = subprocess.run(command, check=False).returncode
    except OSError as error:
        raise _start_error(command, error) from None
    _log(command, f"exit code {exit_code}, {time.monotonic() - began:.2f} s")
    return exit_code


def start_in_background(
    command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
) -> "Popen[bytes]":
    """Start a process that outlives the caller and its terminal, without input or output."""
    import subprocess

    null = subprocess.DEVNULL
    place: dict[str, Any] = {"cwd": directory, "env": environment, "start_new_session": True}
    try:
        process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, **place)
    except OSError as error:
        raise _start_error(command, error, directory) from None
    _log(command, f"in the background as process {process.pid}")
    return process


def _log(command: Sequence[str], outcome: str, stdout: str = "", stderr: str = "") -> None:
    from hpcprof.common.logs import log_command

    log_command(command, outcome, stdout, stderr)


def _start_error(command: Sequence[str], error: OSError, directory: Path | None = None) -> CommandNotStarted:
    reason = error.strerror or str(error)
    if directory is not None and not directory.is_dir():
        reason = f"the directory {directory} does not exist"
    elif isinstance(error, FileNotFoundError) and "/" not in command[0]:
        reason = "it is not on the PATH"
    _log(command, f"not started: {reason}")
    return CommandNotStarted(command[0], reason)


def _text(output: str | bytes | None) -> str:
    return output.decode("utf-8", "replace") if isinstance(output, bytes) else output or ""


def _kill(process: "Popen[str]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
