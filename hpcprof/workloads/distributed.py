"""Connect the ranks: the launcher numbers them, torch.distributed carries their data."""

import ctypes
import os
import platform
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from hpcprof.common import __version__
from hpcprof.common.errors import UsageError
from hpcprof.workloads.arguments import Options
from hpcprof.workloads.communicator import launcher_versions, library_version, node_communicator
from hpcprof.workloads.failure import print_once, run_or_abort
from hpcprof.workloads.placement import choose_gpu, device_and_backend, thread_count
from hpcprof.workloads.rankenv import RankEnvironment, RankProfiler

Collective = Callable[..., Any]
OptionsT = TypeVar("OptionsT", bound=Options)

# torch 2.13 renamed both and warns about the old names.
gather_into: Collective = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Collective = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_LOOPBACK = "127.0.0.1"
# The default of torch.
_STORE_TIMEOUT = timedelta(minutes=5)
GLOO_NOTE = (
    "gloo implements reduce_scatter as an all-reduce, so the time of that phase says nothing about the "
    "bandwidth of a reduce-scatter."
)


def all_gather(output: torch.Tensor, source: torch.Tensor, async_op: bool = False) -> Any:
    """Gather ``source`` [n, ...] of all ranks into ``output`` [size * n, ...]."""
    if source.dtype == torch.float8_e4m3fn:
        # Not every backend supports the type, and copying bytes does not need it.
        output, source = output.view(torch.uint8), source.view(torch.uint8)
    return gather_into(output, source, async_op=async_op)


def nccl_version() -> tuple[int, ...]:
    """Return the version of NCCL that this process has loaded, not the one PyTorch was built with."""
    number = ctypes.c_int()
    try:
        ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(number))
    except OSError:
        # It is part of PyTorch's own library.
        return tuple(torch.cuda.nccl.version())
    # Since NCCL 2.9, 22907 is 2.29.7.
    return number.value // 10_000, number.value // 100 % 100, number.value % 100


@dataclass(frozen=True)
class World:
    """A process and its connection to the other ranks.

    ``reduce_scatter(output, input)`` sums ``input`` of shape [size * n, ...] over the ranks and leaves this
    rank's n rows in ``output``; it may overwrite ``input``. With ``async_op=True`` it returns a handle with
    ``wait()``.
    """

    comm: Any
    rank: int
    size: int
    local_rank: int
    nodes: int
    host: str
    device: torch.device
    backend: str
    reduce_scatter: Collective
    notes: tuple[str, ...]

    @property
    def device_name(self) -> str:
        """The product name of the GPU, or ``cpu``."""
        cuda = self.device.type == "cuda"
        return str(torch.cuda.get_device_name(self.device)) if cuda else self.device.type

    def versions(self) -> dict[str, str]:
        """Return the versions of the libraries that can change a result, by name."""
        versions = {"hpcprof": __version__, "python": platform.python_version()}
        versions |= {"torch": str(torch.__version__), **launcher_versions(self.comm)}
        if self.device.type == "cuda":
            versions |= {"cuda": str(torch.version.cuda), "nccl": ".".join(map(str, nccl_version()))}
        return versions


def run_workload(
    comm: Any, wanted: OptionsT | UsageError, run: Callable[[OptionsT, RankEnvironment, Any], int]
) -> int:
    """Return the exit status of ``run`` on each rank, or 2 for an error in the options, found by all."""

    def checked() -> int:
        environment = RankEnvironment.from_environment(os.environ)
        check_launch(comm, environment)
        try:
            if isinstance(wanted, UsageError):
                raise wanted
            wanted.validate(comm.size)
            if any(comm.allgather(environment.profiler is not RankProfiler.NONE)):
                wanted.validate_profiled()
        except UsageError as error:
            return print_once(comm, str(error), error.exit_code)
        return run(wanted, environment, comm)

    return run_or_abort(comm, checked)


def check_launch(comm: Any, environment: RankEnvironment) -> None:
    """Raise UsageError if MPI and the wrapper disagree: with a foreign MPI, each rank is rank 0 of 1."""
    expected = environment.world_size
    if expected is not None and comm.size != expected:
        raise UsageError(environment.wrong_library(comm.size, library_version()))
    if environment.rank is not None and comm.rank != environment.rank:
        raise UsageError(f"MPI reports rank {comm.rank}, but HPCPROF_RANK is {environment.rank}.")


def connect(
    comm: Any, *, device: str, backend: str, max_ctas: int | None = None, timeout_s: float | None = None
) -> World:
    """Create the process group; a collective call over ``comm``, all ranks.

    ``device`` and ``backend`` may be ``auto``. ``max_ctas`` is the largest number of thread blocks that one
    NCCL collective may use, and ``timeout_s`` how long a collective waits for a rank, in seconds. Raises
    UsageError if a device is missing, does not work with the backend, or there are fewer GPUs than ranks.
    """
    node = node_communicator(comm)
    host = socket.gethostname()
    kind, backend = device_and_backend(device, backend, cuda=torch.cuda.is_available())
    kinds = comm.allgather(kind)
    if len(set(kinds)) > 1:
        raise UsageError(
            f"rank {kinds.index('cpu')} sees no CUDA device but rank {kinds.index('cuda')} does: "
            "use --device cpu, or give every rank a GPU."
        )
    chosen = _use_gpu(node, host) if kind == "cuda" else _use_cpu(node)
    one_node = node.size == comm.size
    if one_node:
        # By default gloo listens on the address of the host name, which other machines can reach.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        backend,
        store=_store(comm, _LOOPBACK if one_node else host),
        rank=comm.rank,
        world_size=comm.size,
        timeout=None if timeout_s is None else timedelta(seconds=timeout_s),
        device_id=chosen if kind == "cuda" else None,
        pg_options=_options(backend, max_ctas),
    )
    reduce_scatter, notes = _reduce_scatter_of(backend)
    return World(
        comm=comm,
        rank=comm.rank,
        size=comm.size,
        local_rank=node.rank,
        nodes=comm.allreduce(int(node.rank == 0)),
        host=host,
        device=chosen,
        backend=backend,
        reduce_scatter=reduce_scatter,
        notes=notes,
    )


def _options(backend: str, max_ctas: int | None) -> Any:
    """Return the options of NCCL, None for the defaults; UsageError if the limit cannot be passed on."""
    if max_ctas is None:
        return None
    if backend != "nccl":
        used = f"the ranks communicate through {backend}"
        raise UsageError(f"--comm-max-ctas applies to NCCL only, but {used}.")
    options = dist.ProcessGroupNCCL.Options()
    if not hasattr(options, "config"):
        raise UsageError(f"--comm-max-ctas: PyTorch {torch.__version__} cannot pass this limit on to NCCL.")
    options.config.max_ctas = max_ctas
    return options


def disconnect(world: World) -> None:
    """Destroy the process group on all ranks together, since rank 0 holds the store that the others use."""
    world.comm.Barrier()
    dist.destroy_process_group()
    world.comm.Barrier()


def _use_gpu(node: Any, host: str) -> torch.device:
    uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
    device = torch.device("cuda", choose_gpu(node.allgather(uuids), node.rank, host))
    torch.cuda.set_device(device)
    # TF32 keeps only 10 bits of the mantissa; float32 must mean float32.
    torch.set_float32_matmul_precision("highest")
    return device


def _use_cpu(node: Any) -> torch.device:
    cores = [frozenset(affinity) for affinity in node.allgather(sorted(os.sched_getaffinity(0)))]
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(thread_count(cores, node.rank))
    return torch.device("cpu")


def _store(comm: Any, host: str) -> Any:
    """Return the store through which the ranks find each other; it runs on ``host``, rank 0's node."""
    store_at = partial(dist.TCPStore, world_size=comm.size, wait_for_workers=False, timeout=_STORE_TIMEOUT)
    if comm.rank != 0:
        host, port = comm.bcast(None)
        return store_at(host, port, is_master=False)
    if host != _LOOPBACK:
        store = store_at(host, 0, is_master=True)
    else:
        # TCPStore would listen on every interface; with a socket of ours it listens only there, and owns it.
        listener = socket.create_server((host, 0))
        port = listener.getsockname()[1]
        store = store_at(host, port, is_master=True, master_listen_fd=listener.detach())
    comm.bcast([host, store.port])
    return store


def _reduce_scatter_of(backend: str) -> tuple[Collective, tuple[str, ...]]:
    if backend != "gloo":
        return _reduce_scatter, ()
    # Older gloo has no reduce-scatter into one tensor. All ranks run the same build and decide alike.
    size = dist.get_world_size()
    try:
        _reduce_scatter(torch.empty(1), torch.zeros(size))
    except RuntimeError:
        return reduce_scatter_by_all_reduce, (GLOO_NOTE,)
    return _reduce_scatter, (GLOO_NOTE,)


class _Done:
    """The handle of an operation that has already finished."""

    def wait(self) -> None:
        """Return at once."""


def reduce_scatter_by_all_reduce(output: torch.Tensor, full: torch.Tensor, async_op: bool = False) -> _Done:
    """Sum ``full`` over the ranks in place and copy this rank's rows to ``output``; always synchronous."""
    dist.all_reduce(full)
    output.copy_(full.chunk(dist.get_world_size())[dist.get_rank()])
    return _Done()
