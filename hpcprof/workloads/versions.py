"""Versions of what a workload ran on."""

from __future__ import annotations

import platform

import torch

from hpcprof.common import __version__
from hpcprof.workloads.communicator import launcher_versions
from hpcprof.workloads.distributed import World


def versions(world: World) -> dict[str, str]:
    """Return the versions of the libraries that can change a result, by name."""
    found = {
        "hpcprof": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **launcher_versions(world.comm),
    }
    if world.device.type == "cuda":
        found["cuda"] = str(torch.version.cuda)
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return found


def device_name(device: torch.device) -> str:
    """Return the GPU's product name, or ``cpu``."""
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type
