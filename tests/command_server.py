"""Runs ``hpcprof`` commands in processes that are forked from one that has imported it.

A command costs its own work only, and not a second of imports. Otherwise it is a process of its own, with its
own arguments, environment, directory and exit code. What an interpreter reads at its start, except
folders of packages in ``PYTHONPATH``, cannot differ.
Threads may run several at a time.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, TypedDict

import hpcprof
from tests.waiting import until

READ_AT_START = ("PYTHON", "LANG", "LC_", "TZ", "LD_", "MALLOC_", "OPENBLAS_", "OMP_")
"""Prefixes of the variables that a process reads only when it starts."""


def _read_at_start() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(READ_AT_START)}


def _added_packages(environment: Mapping[str, str]) -> list[str]:
    """Return the folders of packages that an environment has beyond that of this process."""
    path = environment.get("PYTHONPATH", "")
    return path.split(os.pathsep) if path and path != AT_START.get("PYTHONPATH") else []


AT_START = _read_at_start()
"""These variables before any test."""

_NUMBER = struct.Struct("i")
# The first command waits until the server has imported everything.
_START_SECONDS = 480
_NOT_IMPORTED = (
    "hpcprof.__main__",
    "hpcprof.mcp",
    "hpcprof.results.collect.executors",
    "hpcprof.templates",
    "hpcprof.workloads",
)
"""Modules that commands import only where needed: torch, MPI, and those that run as programs."""
_LIBRARIES = (
    "pandas",
    "psycopg",
    "rich.progress",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.dialects.postgresql",
)


class Request(TypedDict):
    """A command as it is sent to the server."""

    module: str
    arguments: list[str]
    directory: str
    environment: dict[str, str]
    umask: int


class CommandServer:
    """The process that forks, and the connection to it; it ends with the block."""

    def __enter__(self) -> CommandServer:
        """Start the server, which is ready when it has imported everything."""
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.command_server", str(theirs.fileno())],
                env={name: os.environ[name] for name in os.environ.keys() - _read_at_start().keys()}
                | AT_START,
                cwd=Path(__file__).parents[1],
                pass_fds=[theirs.fileno()],
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """End the server, which notices that nobody is connected."""
        self._connection.close()
        self._process.wait(timeout=60)

    def serves(self) -> bool:
        """Return whether the server was started with the environment that a command is to have now."""
        now, start = _read_at_start(), AT_START
        if added := _added_packages(now):
            now, start = ({**variables, "PYTHONPATH": ""} for variables in (now, start))
        return now == start and not any(Path(folder, "sitecustomize.py").exists() for folder in added)

    def run(
        self, arguments: list[str], directory: Path, timeout: float, module: str = "hpcprof"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in ``directory``, as ``python -m module`` does, and return what it printed."""
        with self.start(arguments, directory, module) as command:
            code = command.wait(timeout)
            return subprocess.CompletedProcess([module, *arguments], code, *command.printed())

    @contextlib.contextmanager
    def start(
        self,
        arguments: list[str],
        directory: Path,
        module: str = "hpcprof",
        environment: Mapping[str, str] = os.environ,
    ) -> Iterator[Command]:
        """Start a command, as `run` does, that works beside the block, which kills it at its end."""
        umask = os.umask(0)
        os.umask(umask)
        request = Request(
            module=module,
            arguments=arguments,
            directory=str(directory),
            environment=dict(environment),
            umask=umask,
        )
        answers, theirs = socket.socketpair()
        with tempfile.TemporaryFile("w+") as asked, _printed() as stdout, _printed() as stderr, answers:
            json.dump(request, asked)
            asked.flush()
            with theirs:
                files = [file.fileno() for file in (asked, stdout, stderr, theirs)]
                socket.send_fds(self._connection, [b"!"], files)
            answers.settimeout(_START_SECONDS)
            command = Command(_number(answers), answers, stdout, stderr)
            try:
                yield command
            finally:
                if not command.ended():
                    command.send_signal(signal.SIGKILL)


@dataclass
class Command:
    """A command at work."""

    pid: int
    answers: socket.socket
    stdout: IO[str]
    stderr: IO[str]
    exit_code: int | None = None

    def printed(self) -> tuple[str, str]:
        """Return what it has printed so far on both files."""
        stdout, stderr = map(_text, (self.stdout, self.stderr))
        return stdout, stderr

    def first_line(self) -> str:
        """Wait for the first line on stdout, and return it."""
        until(lambda: "\n" in self.printed()[0] or self.ended(), _START_SECONDS)
        stdout, stderr = self.printed()
        assert "\n" in stdout, stderr
        return stdout.splitlines()[0]

    def ended(self) -> bool:
        """Return whether it has ended."""
        return self.exit_code is not None or bool(select.select([self.answers], [], [], 0)[0])

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def wait(self, timeout: float) -> int:
        """Wait until it has ended, and return its exit code."""
        self.answers.settimeout(timeout)
        self.exit_code = _number(self.answers)
        return self.exit_code


def _number(answers: socket.socket) -> int:
    (number,) = _NUMBER.unpack(answers.recv(_NUMBER.size, socket.MSG_WAITALL))
    return int(number)


def _printed() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8")


def _text(file: IO[str]) -> str:
    # The command writes at the position of the same open file, which must stay where it is.
    text = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode("utf-8")
    return io.StringIO(text, newline=None).read()


def serve(connection: socket.socket) -> None:
    """Answer requests until nobody is connected; in each forked process, run the command instead."""
    import_everything()
    # The terminal's Ctrl-C is for the command.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A handler makes the end of a command write to the second file.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ended, noted = socket.socketpair()
    noted.setblocking(False)
    signal.set_wakeup_fd(noted.fileno())
    running: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([connection, ended], [], [])
        if ended in ready:
            ended.recv(1024)
            _tell_ends(running)
        if connection not in ready:
            continue
        _, files, _, _ = socket.recv_fds(connection, 1, 4)
        if not files:
            return
        *command, answers = files
        process = os.fork()
        if not process:
            signal.set_wakeup_fd(-1)
            for own in (connection, ended, noted, *running.values()):
                own.close()
            os.close(answers)
            become(*command)
        for file in command:
            os.close(file)
        running[process] = socket.socket(fileno=answers)
        running[process].sendall(_NUMBER.pack(process))


def _tell_ends(running: dict[int, socket.socket]) -> None:
    """Tell those who wait for a command that it has ended, and how."""
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        if not process:
            return
        # Nobody waits any more for one that took too long.
        with running.pop(process) as answers, contextlib.suppress(BrokenPipeError):
            answers.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))


def import_everything() -> None:
    """Import and compile what commands do, and leave it out of every later search for garbage."""
    gc.disable()
    _import_below(hpcprof)
    for name in _LIBRARIES:
        with contextlib.suppress(ImportError):
            import_module(name)
    assert "torch" not in sys.modules, "each command would cost twice as much, to copy its tables of pages"
    _compile()
    # A collect without --jobs is to need no further processes, which would import everything again.
    os.sched_getaffinity = lambda _: {0}
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def _import_below(package: ModuleType) -> None:
    """Import the modules of a package, but no package whose modules are left to the commands."""
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not found.name.startswith(_NOT_IMPORTED):
            module = import_module(found.name)
            if found.ispkg:
                _import_below(module)


def _compile() -> None:
    """Keep templates and statements compiled, as they are after the first job of a sweep."""
    # Imported here: the tests that start no command need none of it.
    from hpcprof.report.page.page import page_environment
    from hpcprof.results.store.database import creations
    from hpcprof.submit.rendering.templates import template_environment
    from hpcprof.submit.schedulers.registry import find_scheduler

    # Else the checkout's folder would be that of a user's own templates, which come first.
    os.chdir("/")
    # The filters of Kubernetes are those of all schedulers.
    scripts = template_environment(None, find_scheduler("kubernetes"))
    for environment, folders in ((scripts, ("job/", "rank/")), (page_environment(None), ("report/",))):
        for name in environment.list_templates():
            if name.startswith(folders):
                environment.get_template(name)
    creations("sqlite")


def become(asked: int, stdout: int, stderr: int) -> None:
    """Turn this process into the command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(asked, encoding="utf-8") as file:
        file.seek(0)
        request: Request = json.load(file)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, file_number in ((1, stdout), (2, stderr)):
        os.dup2(file_number, number)
        os.close(file_number)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.umask(request["umask"])
    os.chdir(request["directory"])
    # Python puts the directory there that python -m is started in.
    sys.path[:1] = [request["directory"], *_added_packages(os.environ)]
    sys.argv = [request["module"], *request["arguments"]]
    code = 0
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    _end(code)


def _end(code: int) -> None:
    """End as an interpreter does, but leave its memory to the system: this process shares most of it."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        file.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
