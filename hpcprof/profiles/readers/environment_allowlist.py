"""The list of environment variables in a profile that may be read, stored and shared.

A profile of Nsight Systems holds the whole environment of the job, including tokens and keys.
"""

import re
from collections.abc import Iterable, Mapping

RANKS = (
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
    "SLURM_PROCID",
    "RANK",
)
"""The most trusted first. A launcher's variable comes before the batch system's, whose value is
the same on all ranks if another launcher started them."""

SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "FLUX_JOB_SIZE", "SLURM_NTASKS", "WORLD_SIZE")

RANK_NUMBERS = (
    *RANKS,
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
    "FLUX_TASK_LOCAL_ID",
    "SLURM_LOCALID",
    "LOCAL_RANK",
    "GROUP_RANK",
)
"""Variables that differ between the ranks of a run."""

EXACT = (
    *RANK_NUMBERS,
    *SIZES,
    *("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_ORDER"),
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"),
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HIP_LAUNCH_BLOCKING", "GPU_MAX_HW_QUEUES"),
    *("HSA_XNACK", "HSA_ENABLE_SDMA", "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"),
)
PREFIXES = ("NCCL_", "TORCH_NCCL_", "RCCL_")

# Names with these prefixes whose values are addresses or private.
_PRIVATE_NAME = re.compile(r"COMM_ID|HOST|FILE|PATH|DIR|USER|TOKEN|SECRET|PASS|KEY")
# Values consist of numbers and of words that NCCL's and PyTorch's documentation lists. Any other word
# could name a project, a network or a machine.
_PARTS = re.compile(r"[,:;^=+\[\]-]+")
_NUMBER = re.compile(r"\d{1,20}(?:\.\d{1,20})?", re.ASCII)
_MAX_VALUE_CHARACTERS = 200
# fmt: off
_WORDS = frozenset((
    "true", "false", "on", "off", "yes", "no", "ring", "tree", "collnet", "collnetdirect", "collnetchain",
    "nvls", "nvlstree", "pat", "ll", "ll128", "simple", "version", "warn", "info", "trace", "abort",
    "init", "coll", "p2p", "shm", "net", "graph", "tuning", "env", "alloc", "call", "proxy", "bootstrap",
    "reg", "profile", "ras", "all", "loc", "nvl", "pix", "pxb", "pxn", "phb", "sys", "socket", "ib",
    "parallel", "group", "pci_bus_id", "fastest_first", "expandable_segments", "max_split_size_mb",
    "garbage_collection_threshold", "roundup_power2_divisions", "backend", "native", "cudamallocasync",
    "pinned_use_cuda_host_register", "pinned_num_register_threads", "pinned_use_background_threads",
    "release_lock_on_cudamalloc", "flat", "composite", "combined",
))
# fmt: on


def allowed(name: str, value: str) -> bool:
    """Return whether a variable may be kept: its name is listed, and its value is numbers and known words."""
    listed = name in EXACT or (name.startswith(PREFIXES) and not _PRIVATE_NAME.search(name))
    if not listed or not value or len(value) > _MAX_VALUE_CHARACTERS:
        return False
    return all(not part or _NUMBER.fullmatch(part) or part.lower() in _WORDS for part in _PARTS.split(value))


def first_number(variables: Mapping[str, str], names: Iterable[str]) -> int | None:
    """Return the first of some variables that is a number, such as those of `RANKS`; None if none is."""
    values = (variables[name] for name in names if name in variables)
    return next((int(v) for v in values if v.isascii() and v.isdigit() and len(v) < 10), None)


def split(item: str) -> tuple[str, str]:
    """Return name and value of ``NAME=value``; nsys puts some values in quotes."""
    name, _, value = item.partition("=")
    return name, value.strip().strip('"')
