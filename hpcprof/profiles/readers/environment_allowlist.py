"""The list of environment variables in a profile that may be read, stored and shared.

A profile of Nsight Systems holds the whole environment of the job, including tokens and keys.
"""

from __future__ import annotations

import re

RANKS = (
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PMIX_RANK",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
    "SLURM_PROCID",
    "RANK",
)
"""The most trusted first. A launcher's variable comes before that of the batch system, which has the same
value on all ranks if another launcher started them."""

SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "FLUX_JOB_SIZE", "SLURM_NTASKS", "WORLD_SIZE")

EXACT = (
    *RANKS,
    *SIZES,
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "PALS_LOCAL_RANKID",
    "FLUX_TASK_LOCAL_ID",
    "SLURM_LOCALID",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_ORDER",
    "CUBLAS_WORKSPACE_CONFIG",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "OMP_NUM_THREADS",
)
PREFIXES = ("NCCL_", "TORCH_NCCL_")

# Names with these prefixes whose values are addresses or private.
_PRIVATE = re.compile(r"COMM_ID|HOST|FILE|PATH|DIR|USER|TOKEN|SECRET|PASS|KEY")
# Numbers, words and lists of them; no paths, addresses or sentences.
_PLAIN = re.compile(r"[\w.,:;^=+-]{1,200}", re.ASCII)


def allowed(name: str, value: str) -> bool:
    """Return whether a variable may be kept: its name is listed, its value not a path, host or sentence."""
    listed = name in EXACT or (name.startswith(PREFIXES) and not _PRIVATE.search(name))
    return listed and _PLAIN.fullmatch(value) is not None


def split(item: str) -> tuple[str, str]:
    """Return name and value of ``NAME=value``; nsys puts some values in quotes."""
    name, _, value = item.partition("=")
    return name, value.strip().strip('"')
