"""The modes of the benchmark, by name."""

from hpcprof.workloads.sequence_parallel.modes.base import Mode, Unavailable
from hpcprof.workloads.sequence_parallel.modes.chunked import Chunked
from hpcprof.workloads.sequence_parallel.modes.copy_engine import CopyEngine
from hpcprof.workloads.sequence_parallel.modes.cublasmp import CublasMp
from hpcprof.workloads.sequence_parallel.modes.serial import Serial
from hpcprof.workloads.sequence_parallel.modes.symmetric import Symmetric

MODES: dict[str, type[Mode]] = {
    "serial": Serial,
    "chunked": Chunked,
    "symmetric": Symmetric,
    "copy-engine": CopyEngine,
    "cublasmp": CublasMp,
}

__all__ = ["MODES", "Mode", "Unavailable"]
