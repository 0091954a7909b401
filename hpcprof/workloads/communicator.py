"""The communicator of the ranks: MPI's if MPI started them, or under torchrun a replacement."""

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
_TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"
# Ranks wait for one that a profiler slows down; if one fails, torchrun ends the others.
_MAX_WAIT = timedelta(days=1)


def communicator(environ: Mapping[str, str]) -> Any:
    """Return the communicator of all ranks: MPI's, or a `StoreComm` under torchrun.

    One rank that was started without a launcher needs no MPI. Raises ImportError if MPI started the ranks,
    and this Python has no mpi4py or no MPI library.
    """
    if _TORCHRUN_VARIABLE not in environ:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # the latter if it finds no MPI library
            if environ.get("HPCPROF_LAUNCHER") != "none":
                raise ImportError(str(error)) from None
            return StoreComm(dist.HashStore(), range(1), 0)
        return MPI.COMM_WORLD
    store, rank, size = next(iter(dist.rendezvous("env://")))
    store.set_timeout(_MAX_WAIT)
    return StoreComm(dist.PrefixStore("hpcprof", store), range(size), rank)


def node_communicator(comm: Any) -> Any:
    """Return the communicator of the ranks on this node; a collective call over ``comm``."""
    if isinstance(comm, StoreComm):
        return comm.split(socket.gethostname())
    from mpi4py import MPI

    return comm.Split_type(MPI.COMM_TYPE_SHARED)


def library_version() -> str:
    """Return the first line of the MPI library's version text."""
    from mpi4py import MPI

    first_line: str = MPI.Get_library_version().rstrip("\0").splitlines()[0]
    return " ".join(first_line.split())


def launcher_versions(comm: Any) -> dict[str, str]:
    """Return the versions of mpi4py and the MPI library, by name; empty under torchrun."""
    if isinstance(comm, StoreComm):
        return {}
    return {"mpi4py": importlib.metadata.version("mpi4py"), "mpi": library_version()}


class StoreComm:
    """The part of mpi4py's communicator that the workloads use, over a key-value store.

    Values must be valid JSON values. All ranks make the same calls in the same order. ``store`` is a store,
    or a part of one, that is used for nothing else; ``members`` are the ranks of this communicator, numbered
    as in the job.
    """

    def __init__(self, store: Any, members: Sequence[int], rank: int) -> None:
        self.rank = list(members).index(rank)
        self.size = len(members)
        self._store = store
        self._members = members
        self._calls = 0

    def allgather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank."""
        call, self._calls = self._calls, self._calls + 1
        self._store.set(f"{call}/{self.rank}", json.dumps(value))
        return [json.loads(self._store.get(f"{call}/{rank}")) for rank in range(self.size)]

    def bcast(self, value: Any) -> Any:
        """Return the value of rank 0."""
        return self.allgather(value)[0]

    def allreduce(self, value: int) -> int:
        """Return the sum over the ranks."""
        return sum(self.allgather(value))

    def Barrier(self) -> None:
        """Wait until every rank has called this."""
        self.allgather(None)

    def split(self, group: str) -> "StoreComm":
        """Return the communicator of the ranks that pass the same ``group``."""
        groups = self.allgather(group)
        members = [self._members[rank] for rank, other in enumerate(groups) if other == group]
        part = dist.PrefixStore(f"{self._calls}/{group}", self._store)
        return StoreComm(part, members, self._members[self.rank])

    def Abort(self, code: int) -> NoReturn:
        """End this process at once; torchrun then ends the others."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
