"""The chunked mode: the collectives of one part of the rows run during the matmuls of another."""

import torch

from hpcprof.workloads.distributed import World, all_gather
from hpcprof.workloads.sequence_parallel.buffers import Buffers, Gradients
from hpcprof.workloads.sequence_parallel.modes.base import Mode, Unavailable
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.timing import PhaseTimer


class Chunked(Mode):
    """Divides the rows of each rank into C chunks; the result needs no permutation.

    All collectives of a group run on one stream in the order in which they are issued. So the all-gather of
    chunk c + 1 is issued before the matmuls of chunk c, and the reduce-scatter of chunk c after them. In the
    backward, the gradients of the weights sum over all rows and come last, during the last reduce-scatter.
    """

    def __init__(self, parameters: PointParameters, world: World, buffers: Buffers) -> None:
        super().__init__(parameters, world, buffers)
        rows, chunks = len(buffers.output), parameters.chunks
        if rows % chunks:
            raise Unavailable(f"--chunks {chunks} does not divide the {rows} rows of a rank")
        self._reduce_scatter = world.reduce_scatter
        self._chunks = chunks
        # Chunk c holds rows of all ranks; its tensors are views of the whole ones.
        self._gathered = buffers.gathered.chunk(chunks)
        self._inner = buffers.inner.chunk(chunks)
        self._partial = buffers.partial.chunk(chunks)
        self._output = buffers.output.chunk(chunks)
        if buffers.backward is not None:
            self._grad_gathered = buffers.backward.gathered.chunk(chunks)
            self._grad_inner = buffers.backward.inner.chunk(chunks)
            self._grad_input = buffers.backward.gradients.input.chunk(chunks)

    def forward(self, index: int, timer: PhaseTimer) -> torch.Tensor:
        """Run one step forward."""
        buffers = self._buffers
        self._index = index
        parts = buffers.input(index).chunk(self._chunks)
        scattering = []
        gathering = all_gather(self._gathered[0], parts[0], async_op=True)
        for c in range(self._chunks):
            gathering.wait()
            if c + 1 < self._chunks:
                gathering = all_gather(self._gathered[c + 1], parts[c + 1], async_op=True)
            buffers.multiply_1(self._gathered[c], self._inner[c])
            buffers.multiply_2(self._inner[c], self._partial[c])
            scattering.append(self._reduce_scatter(self._output[c], self._partial[c], async_op=True))
        for work in scattering:
            work.wait()
        return buffers.output

    def backward(self, index: int, timer: PhaseTimer) -> Gradients:
        """Run one step backward."""
        buffers, backward = self._buffers, self._backward
        parts = backward.source(index).chunk(self._chunks)
        scattering, again = [], []
        gathering = all_gather(self._grad_gathered[0], parts[0], async_op=True)
        for c in range(self._chunks):
            gathering.wait()
            if c + 1 < self._chunks:
                gathering = all_gather(self._grad_gathered[c + 1], parts[c + 1], async_op=True)
            elif self._regather:
                sources = buffers.input(self._index).chunk(self._chunks)
                pairs = zip(self._gathered, sources, strict=True)
                again = [all_gather(whole, part, async_op=True) for whole, part in pairs]
            buffers.multiply_back_2(self._grad_gathered[c], self._grad_inner[c])
            buffers.multiply_back_1(self._grad_inner[c], self._partial[c])
            scattering.append(self._reduce_scatter(self._grad_input[c], self._partial[c], async_op=True))
        torch.mm(buffers.inner.t(), backward.gathered, out=backward.gradients.weight_2)
        for work in again:
            work.wait()
        torch.mm(buffers.gathered.t(), backward.inner, out=backward.gradients.weight_1)
        for work in scattering:
            work.wait()
        return backward.gradients
