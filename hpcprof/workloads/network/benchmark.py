"""Times collectives and messages by the definitions of nccl-tests and OSU's benchmarks.

Sizes are those of nccl-tests: the whole buffer that an operation gathers, scatters or reduces. A time is the
mean of several operations one after another, and the longest of all ranks. ``algbw`` is size over time, and
``busbw`` that times what each rank sends. A send is half of a message that goes and comes back (osu_latency).
"""

from __future__ import annotations

import csv
import os
import socket
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcprof.common.errors import UsageError
from hpcprof.workloads.failure import run_or_abort
from hpcprof.workloads.network.options import OUTPUT, Parameters
from hpcprof.workloads.rankenv import RankEnvironment

_WARM_UP = 2
_MIN_REPEATS, _MAX_REPEATS = 3, 1000
_MAX_OPERATION_S = 2.0
"""Duration of one operation beyond which larger buffers are left out."""
OPERATIONS = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "Send")
Operation = Callable[[], object]


def run(parameters: Parameters | UsageError) -> int:
    """Measure on this rank, and write the table on rank 0; return the exit status."""
    return run_or_abort(MPI.COMM_WORLD, lambda: _run(parameters, MPI.COMM_WORLD))


def _run(parameters: Parameters | UsageError, comm: Any) -> int:
    if isinstance(parameters, UsageError):
        raise parameters
    environment = RankEnvironment.from_environment(os.environ)
    if environment.world_size not in (None, comm.size):
        raise UsageError(f"MPI reports {comm.size} ranks, but the job has {environment.world_size}.")
    parameters.validate(comm.size)
    hosts = comm.allgather(socket.gethostname())
    library = _library(comm, parameters.library)
    rows: list[tuple[object, ...]] = []
    for ranks in _group_sizes(comm.size, hosts):
        nodes = len(set(hosts[:ranks]))
        group = library.group(ranks)
        comm.Barrier()
        if comm.rank < ranks:
            for op, size, seconds in _times(group, parameters):
                rate, share = size / seconds / 1e9, (ranks - 1) / ranks
                sent = {"AllReduce": 2 * share, "Send": 1.0}.get(op, share)
                rows.append((op, size, ranks, nodes, 1e6 * seconds, rate, rate * sent))
        comm.Barrier()
    if comm.rank == 0:
        path = (environment.run_dir or Path.cwd()) / OUTPUT
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("op", "bytes", "ranks", "nodes", "time_us", "algbw_gb_s", "busbw_gb_s"))
            writer.writerows(rows)
        print(f"{len(rows)} times over {library.name}: {path}", flush=True)
    library.close()
    return 0


def _group_sizes(size: int, hosts: list[str]) -> list[int]:
    """Return powers of two, the ranks of the first node, and all ranks."""
    powers = {1 << power for power in range(1, size.bit_length()) if 1 << power <= size}
    return sorted(count for count in {*powers, hosts.count(hosts[0]), size} if count > 1)


def _times(group: _Mpi, parameters: Parameters) -> Iterator[tuple[str, int, float]]:
    """Yield each operation with the bytes of its buffer and its time in seconds."""
    for op in OPERATIONS:
        size = 8
        while size <= parameters.max_bytes:
            whole = max(size // (4 * group.size), 1) * 4 * group.size
            seconds = _time(group, group.operation(op, whole), parameters.budget_ms / 1000)
            yield op, whole, seconds / (2 if op == "Send" else 1)
            if seconds > _MAX_OPERATION_S:
                break
            size *= 2


def _time(group: _Mpi, operation: Operation, budget: float) -> float:
    """Return the mean time of an operation in seconds, the longest of the group."""

    def mean(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            operation()
        group.synchronize()
        return group.longest((time.perf_counter() - begin) / count)

    mean(_WARM_UP)
    typical = mean(1)
    return mean(int(np.clip(budget / max(typical, 1e-9), _MIN_REPEATS, _MAX_REPEATS)))


class _Mpi:
    """Operations of MPI among the first ranks, on buffers of float32."""

    name = "MPI"

    def __init__(self, comm: Any) -> None:
        self._comm, self.size = comm, comm.size

    def group(self, ranks: int) -> _Mpi:
        """Return the operations among the first ranks; all ranks call this."""
        return _Mpi(self._comm.Split(int(self._comm.rank >= ranks)))

    def operation(self, op: str, size: int) -> Operation:
        """Return a function that communicates a whole buffer of ``size`` bytes."""
        comm, count = self._comm, size // 4
        source, target = np.ones(count, np.float32), np.empty(count, np.float32)
        part, peer = count // self.size, self.size - 1 - comm.rank
        turns = [lambda: comm.Send(source, peer), lambda: comm.Recv(target, peer)]
        operations: dict[str, Operation] = {
            "AllReduce": lambda: comm.Allreduce(source, target),
            "AllGather": lambda: comm.Allgather(source[:part], target),
            "ReduceScatter": lambda: comm.Reduce_scatter_block(source, target[:part]),
            "AlltoAll": lambda: comm.Alltoall(source, target),
            "Send": self._ping_pong(*turns),
        }
        return operations[op]

    def _ping_pong(self, send: Operation, receive: Operation) -> Operation:
        """Return the function that exchanges a message and its answer between the first and the last rank."""
        turns = {0: (send, receive), self.size - 1: (receive, send)}.get(self._comm.rank, ())
        return lambda: [turn() for turn in turns]

    def synchronize(self) -> None:
        self._comm.Barrier()

    def longest(self, seconds: float) -> float:
        return float(self._comm.allreduce(seconds, MPI.MAX))

    def close(self) -> None:
        """End the library."""


class _Torch(_Mpi):
    """Operations of torch.distributed (NCCL or gloo) among the first ranks."""

    def __init__(self, comm: Any, world: Any, group: Any = None) -> None:
        super().__init__(comm)
        self._world, self._group = world, group
        self.name = world.backend

    def group(self, ranks: int) -> _Torch:
        import torch.distributed as dist

        group = dist.new_group(list(range(ranks)))
        return _Torch(self._comm.Split(int(self._comm.rank >= ranks)), self._world, group)

    def operation(self, op: str, size: int) -> Operation:
        import torch
        import torch.distributed as dist

        from hpcprof.workloads import distributed

        count, world = size // 4, self._world
        source, target = (torch.ones(count, device=world.device) for _ in range(2))
        part, group = count // self.size, self._group
        peer = self.size - 1 - self._comm.rank
        turns = [lambda: dist.send(source, peer), lambda: dist.recv(source, peer)]
        operations: dict[str, Operation] = {
            "AllReduce": lambda: dist.all_reduce(source, group=group),
            "AllGather": lambda: distributed.gather_into(target, source[:part], group=group),
            "ReduceScatter": lambda: world.reduce_scatter(target[:part], source, group=group),
            "AlltoAll": lambda: dist.all_to_all_single(target, source, group=group),
            "Send": self._ping_pong(*turns),
        }
        return operations[op]

    def synchronize(self) -> None:
        """Wait for the device, and for all ranks of the group."""
        if self._world.device.type == "cuda":
            import torch

            torch.cuda.synchronize()
        super().synchronize()

    def close(self) -> None:
        from hpcprof.workloads.distributed import disconnect

        disconnect(self._world)


def _library(comm: Any, name: str) -> _Mpi:
    """Return the library that carries the data: with ``auto``, NCCL if there are GPUs, otherwise MPI."""
    if name != "mpi" and find_spec("torch"):
        import torch

        from hpcprof.workloads.distributed import connect

        if name != "auto" or torch.cuda.is_available():
            return _Torch(comm, connect(comm, device="cpu" if name == "gloo" else "auto", backend=name))
    if name not in ("auto", "mpi"):
        raise UsageError(f"--library {name} needs a Python with torch.")
    return _Mpi(comm)
