"""The serial mode: collectives and matmuls one after the other."""

import torch

from hpcprof.workloads.distributed import World, all_gather
from hpcprof.workloads.sequence_parallel.buffers import Buffers, Gradients
from hpcprof.workloads.sequence_parallel.cost_model import phases
from hpcprof.workloads.sequence_parallel.modes.base import Mode
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.timing import PhaseTimer


class Serial(Mode):
    """Runs collectives of NCCL (or gloo) and matmuls of cuBLAS (or a CPU's BLAS) one after the other."""

    def __init__(self, parameters: PointParameters, world: World, buffers: Buffers) -> None:
        super().__init__(parameters, world, buffers)
        self.phases = phases(parameters)
        self._reduce_scatter = world.reduce_scatter

    def forward(self, index: int, timer: PhaseTimer) -> torch.Tensor:
        """Run one step forward."""
        buffers = self._buffers
        self._index = index
        with timer.phase("allgather"):
            all_gather(buffers.gathered, buffers.input(index))
        with timer.phase("matmul_1"):
            buffers.multiply_1(buffers.gathered, buffers.inner)
        with timer.phase("matmul_2"):
            buffers.multiply_2(buffers.inner, buffers.partial)
        with timer.phase("reduce_scatter"):
            self._reduce_scatter(buffers.output, buffers.partial)
        return buffers.output

    def backward(self, index: int, timer: PhaseTimer) -> Gradients:
        """Run one step backward."""
        buffers, backward = self._buffers, self._backward
        with timer.phase("grad_allgather"):
            all_gather(backward.gathered, backward.source(index))
        if self._regather:
            with timer.phase("input_allgather"):
                all_gather(buffers.gathered, buffers.input(self._index))
        with timer.phase("grad_matmul_2"):
            buffers.multiply_back_2(backward.gathered, backward.inner)
        with timer.phase("weight_matmul_2"):
            torch.mm(buffers.inner.t(), backward.gathered, out=backward.gradients.weight_2)
        with timer.phase("weight_matmul_1"):
            torch.mm(buffers.gathered.t(), backward.inner, out=backward.gradients.weight_1)
        with timer.phase("grad_matmul_1"):
            buffers.multiply_back_1(backward.inner, buffers.partial)
        with timer.phase("grad_reduce_scatter"):
            self._reduce_scatter(backward.gradients.input, buffers.partial)
        return backward.gradients
