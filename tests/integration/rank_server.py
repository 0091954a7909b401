"""Ranks that are forked from a process that has imported torch, since the import takes longer than a test.

A launcher starts ``python -IS rank_server.py ARGUMENTS`` for each rank instead of ``python ARGUMENTS``. That
passes its environment, directory and open files to the server, lives as long as the rank, and ends like it.
What an interpreter or a library reads at its start, such as ``OMP_NUM_THREADS``, is that of the server.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path

ADDRESS = "RANK_SERVER"
"""The variable with the path of the server's socket."""
_IMPORTED = (
    "torch.distributed",
    "torch.profiler",
    # The first DistributedDataParallel of a process imports it, which takes longer than torch itself.
    "torch._dynamo",
    "hpcprof.workloads.ddp.benchmark",
)
_HIGH = 512


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
    for module in _IMPORTED:
        import_module(module)
    gc.collect()
    gc.freeze()
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
    os.chdir(folder)
    module = arguments[0] == "-m"
    sys.argv = arguments[module:]
    sys.path[0] = folder if module else str(Path(arguments[0]).parent)
    if module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    else:
        rank(sys.argv[1:])
