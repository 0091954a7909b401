"""The serial mode: all-gather, two matmuls and reduce-scatter, one after the other."""

from __future__ import annotations

import torch

from hpcprof.workloads.distributed import World, all_gather
from hpcprof.workloads.sequence_parallel.buffers import Buffers
from hpcprof.workloads.sequence_parallel.modes.base import Mode
from hpcprof.workloads.sequence_parallel.options import Parameters
from hpcprof.workloads.timing import Timer

PHASES = ("allgather", "matmul_1", "matmul_2", "reduce_scatter")


class Serial(Mode):
    """NCCL and cuBLAS (gloo and the CPU's BLAS), each waiting for the one before."""

    phases = PHASES

    def __init__(self, parameters: Parameters, world: World, buffers: Buffers) -> None:
        super().__init__(parameters, world, buffers)
        self._reduce_scatter = world.reduce_scatter

    def step(self, index: int, timer: Timer) -> torch.Tensor:
        """Run one step."""
        buffers = self._buffers
        with timer.phase("allgather"):
            all_gather(buffers.gathered, buffers.input(index))
        with timer.phase("matmul_1"):
            torch.mm(buffers.gathered, buffers.weight_1, out=buffers.inner)
        with timer.phase("matmul_2"):
            torch.mm(buffers.inner, buffers.weight_2, out=buffers.partial)
        with timer.phase("reduce_scatter"):
            self._reduce_scatter(buffers.output, buffers.partial)
        return buffers.output
