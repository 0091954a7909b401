"""Ranks that are forked from a process that has imported torch, since the import takes longer than a test.

A launcher starts ``python -IS rank_server.py ARGUMENTS`` for each rank instead of ``python ARGUMENTS``. That
passes its environment, directory and open files to the server, lives as long as the rank, and ends like it.
A rank has the ``sitecustomize`` of its ``PYTHONPATH``, but for the workloads, and its environment is in
``/proc``. What else an interpreter or a library reads at its start, as ``OMP_NUM_THREADS``, is the server's.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import ctypes
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import site
import socket
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

ADDRESS = "RANK_SERVER"
"""The variable with the path of the server's socket."""
SPACE = {"SPACE_FOR_VARIABLES_OF_A_RANK": 30_000 * "-"}
"""A variable that makes those of the server longer than those of a rank."""
_IMPORTED = (
    "torch.distributed",
    "torch.profiler",
    # The first DistributedDataParallel of a process imports it, which takes longer than torch itself.
    "torch._dynamo",
    "hpcprof.workloads.ddp.benchmark",
)
_HIGH = 512
_ended_by: list[BaseException] = []


def rank(arguments: list[str]) -> None:
    """Have the server run a rank, and end as it ends; a launcher that kills this process ends the rank."""
    # The last one is the connection to MPICH's launcher.
    files = [0, 1, 2, *(int(os.environ[name]) for name in ("PMI_FD",) if name in os.environ)]
    request = [files, arguments, str(Path.cwd()), dict(os.environ)]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        with connection.makefile("rw", encoding="utf-8") as stream:
            socket.send_fds(connection, [b"!"], files)
            print(json.dumps(request), file=stream, flush=True)
            process = int(stream.readline())
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda number, _: os.kill(process, number))
            code = int(stream.readline())
    if code < 0:
        # The default of SIGKILL cannot be set.
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def serve(address: str) -> None:
    """Start ranks until standard input ends."""
    gc.disable()
    # The first exit handler to be registered runs last.
    atexit.register(end)
    for module in _IMPORTED:
        import_module(module)
    # C's exit handlers run in the same order: those of libraries that only a rank loads before this one.
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    gc.freeze()
    gc.enable()
    # The terminal's Ctrl-C is for the launcher, and nobody waits for those that keep the ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        while 0 not in select.select([0, listener.fileno()], [], [])[0]:
            connection, _ = listener.accept()
            if not os.fork():
                listener.close()
                return keep(connection)
            connection.close()


def keep(connection: socket.socket) -> None:
    """Start the rank of a connection and tell how it ended; kill it when nobody is connected."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, files, _, _ = socket.recv_fds(connection, 1, 4)
    stream = connection.makefile("rw", encoding="utf-8")
    request = json.loads(stream.readline())
    process = os.fork()
    if not process:
        # An object that closed its file later would close another one of that number.
        stream.close()
        connection.close()
        return become(files, *request)
    for file in files:
        os.close(file)
    print(process, file=stream, flush=True)
    ended = os.pidfd_open(process)
    if ended not in select.select([ended, connection.fileno()], [], [])[0]:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    with contextlib.suppress(BrokenPipeError):
        print(os.waitstatus_to_exitcode(status), file=stream, flush=True)
    os._exit(0)


def become(
    files: list[int], numbers: list[int], arguments: list[str], folder: str, environment: dict[str, str]
) -> None:
    """Turn this process into the rank."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, _HIGH) for file in files]
    for file, number in zip(high, numbers, strict=True):
        os.dup2(file, number)
    for file in {*files, *high} - {*numbers}:
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    show(environment)
    os.chdir(folder)
    if arguments[0] == "-u":
        del arguments[0]
    module = arguments[0] == "-m"
    sys.argv = arguments[module:]
    path = environment.get("PYTHONPATH", "")
    sys.path[:1] = path.split(os.pathsep) if path else []
    if PathFinder.find_spec("sitecustomize") and not sys.argv[0].startswith("hpcprof."):
        start_site()
    sys.path.insert(0, folder if module else str(Path(arguments[0]).parent))
    try:
        if module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException as error:
        _ended_by.append(error)
        raise


def end() -> None:
    """End as an interpreter does, but leave torch in memory: taking it apart takes longer than most ranks."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()
    for file in (sys.stdout, sys.stderr):
        file.flush()
    code: object = 0
    for error in _ended_by:
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        code = error.code if isinstance(error, SystemExit) else 1
    libc = ctypes.PyDLL(None)
    libc.fflush(None)
    # In an exit handler, MPICH tells its launcher that the rank has ended well.
    libc.exit(code if isinstance(code, int) else int(code is not None))


def show(environment: dict[str, str]) -> None:
    """Have ``/proc`` show the environment, by which hpcprof knows the processes of a rank."""
    # From env_start to env_end (proc(5)), where the variables of the server were.
    numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = map(int, numbers[47:49])
    block = os.fsencode("".join(f"{name}={value}\0" for name, value in environment.items()))
    assert len(block) < end - start
    # One last word: thousands of empty ones would take those long that read them.
    ctypes.memmove(start, block.ljust(end - start - 1, b"-") + b"\0", end - start)


class Imported:
    """Finds a module that the server has imported when the program first imports it."""

    def __init__(self, module: ModuleType) -> None:
        self._module = sys.modules.pop(module.__name__)
        self._spec = module.__spec__
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return the spec of the module, once."""
        if name != self._module.__name__:
            return None
        sys.meta_path.remove(self)
        spec = copy.copy(self._spec)
        assert spec is not None
        spec.loader = self  # type: ignore[assignment]
        return spec

    def create_module(self, _: ModuleSpec) -> ModuleType:
        """Return the module as it is."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as the server has it."""
        module.__spec__ = self._spec


def start_site() -> None:
    """Import the rank's own ``sitecustomize``, which may watch what the program imports."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("hpcprof", "sitecustomize")]:
        del sys.modules[name]
    Imported(sys.modules["torch"])
    site.execsitecustomize()


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    else:
        rank(sys.argv[1:])
