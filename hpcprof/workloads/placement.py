"""The device, backend and number of threads of a rank: pure functions of what the ranks of a node see."""

from collections.abc import Sequence

from hpcprof.common.errors import UsageError

BACKENDS = ("auto", "nccl", "gloo")
DEVICES = ("auto", "cpu", "cuda")

_BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def device_and_backend(device: str, backend: str, *, cuda: bool) -> tuple[str, str]:
    """Resolve ``auto``: the device is cpu with gloo, or cuda with nccl if a rank sees one (``cuda``)."""
    if device == "auto":
        wanted = {name: kind for kind, name in _BACKENDS.items()}
        device = wanted.get(backend, "cuda" if cuda else "cpu")
    if device == "cuda" and not cuda:
        raise UsageError(
            "CUDA was requested, but no CUDA device is visible: use --device cpu and --backend gloo."
        )
    if backend not in ("auto", _BACKENDS[device]):
        raise UsageError(f"--backend {backend} does not support --device {device}: use {_BACKENDS[device]}.")
    return device, _BACKENDS[device]


def choose_gpu(visible: Sequence[Sequence[str]], local_rank: int, host: str) -> int:
    """Return the index of a rank's GPU among those that it sees.

    Ranks take the first free GPU that they see, in the order of their local ranks. The index is
    ``local_rank`` if all ranks see the same GPUs, and 0 if the launcher gave each rank its own GPU.
    ``visible`` are the UUIDs of the GPUs that each rank of the node sees, by local rank. No GPU left is a
    UsageError: ranks that share one would measure contention.
    """
    taken: set[str] = set()
    for rank, gpus in enumerate(visible):
        free = [index for index, gpu in enumerate(gpus) if gpu not in taken]
        if not free:
            count = len({gpu for uuids in visible for gpu in uuids})
            raise UsageError(
                f"{host} runs {len(visible)} ranks, but they see only {count} GPU{'s' * (count != 1)}: "
                f"local rank {rank} gets none. Start at most {count} per node, or use --device cpu."
            )
        if rank == local_rank:
            return free[0]
        taken.add(gpus[free[0]])
    raise ValueError(f"local rank {local_rank} is not among {len(visible)} ranks")


def thread_count(cores: Sequence[frozenset[int]], local_rank: int) -> int:
    """Return the number of threads a rank can run alone; ``cores`` are those of each rank of the node."""
    share = len(frozenset().union(*cores)) // len(cores)
    return max(1, min(share, len(cores[local_rank])))
