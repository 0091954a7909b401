"""Who the ranks are: MPI's communicator, or the ranks that torchrun started, with the same few methods.

mpi4py is loaded only where MPI started the ranks.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

# Set by torchrun in every process that it starts, and by no other launcher.
_TORCHRUN = "TORCHELASTIC_RUN_ID"
# A rank waits here for one that a profiler slows down; where one fails, torchrun ends the others.
_LONGEST = timedelta(days=1)


def communicator(environ: Mapping[str, str]) -> Any:
    """Return the communicator of all ranks: MPI's, or a `StoreComm` under torchrun."""
    if _TORCHRUN not in environ:
        from mpi4py import MPI

        return MPI.COMM_WORLD
    store, rank, size = next(iter(dist.rendezvous("env://")))
    store.set_timeout(_LONGEST)
    return StoreComm(dist.PrefixStore("hpcprof", store), range(size), rank)


def node_communicator(comm: Any) -> Any:
    """Return the communicator of the ranks of this node; every rank of ``comm`` calls it."""
    if isinstance(comm, StoreComm):
        return comm.split(socket.gethostname())
    from mpi4py import MPI

    return comm.Split_type(MPI.COMM_TYPE_SHARED)


def library_version() -> str:
    """Return the first line of the MPI library's description of itself."""
    from mpi4py import MPI

    first_line: str = MPI.Get_library_version().rstrip("\0").splitlines()[0]
    return " ".join(first_line.split())


def launcher_versions(comm: Any) -> dict[str, str]:
    """Return the versions of what connects the ranks before torch.distributed does, by name."""
    if isinstance(comm, StoreComm):
        return {}
    return {"mpi4py": importlib.metadata.version("mpi4py"), "mpi": library_version()}


class StoreComm:
    """What the workloads use of mpi4py's communicator, over a key-value store.

    Values must be what JSON holds; all ranks make the same calls in the same order.

    Parameters
    ----------
    store : torch.distributed.Store
        A store, or a part of one, that nobody else writes to.
    members : sequence of int
        The ranks of the communicator, as numbers in the job.
    rank : int
        This process' number in the job.
    """

    def __init__(self, store: Any, members: Sequence[int], rank: int) -> None:
        self.rank = list(members).index(rank)
        self.size = len(members)
        self._store = store
        self._members = members
        self._calls = 0

    def allgather(self, value: Any) -> list[Any]:
        """Return every rank's value, by rank."""
        call, self._calls = self._calls, self._calls + 1
        self._store.set(f"{call}/{self.rank}", json.dumps(value))
        return [json.loads(self._store.get(f"{call}/{rank}")) for rank in range(self.size)]

    def bcast(self, value: Any) -> Any:
        """Return rank 0's value."""
        return self.allgather(value)[0]

    def allreduce(self, value: int) -> int:
        """Return the sum over the ranks."""
        return sum(self.allgather(value))

    def Barrier(self) -> None:
        """Return when every rank has come."""
        self.allgather(None)

    def split(self, group: str) -> StoreComm:
        """Return the communicator of the ranks that give the same ``group``."""
        groups = self.allgather(group)
        members = [self._members[rank] for rank, other in enumerate(groups) if other == group]
        part = dist.PrefixStore(f"{self._calls}/{group}", self._store)
        return StoreComm(part, members, self._members[self.rank])

    def Abort(self, code: int) -> NoReturn:
        """End this process at once; torchrun then ends the others."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
