"""The chunked mode: the collectives of one part of the rows run beside the matmuls of another."""

from __future__ import annotations

import torch

from hpcprof.workloads.distributed import World, all_gather
from hpcprof.workloads.sequence_parallel.buffers import Buffers
from hpcprof.workloads.sequence_parallel.modes.base import Mode, Unavailable
from hpcprof.workloads.sequence_parallel.options import Parameters
from hpcprof.workloads.timing import Timer


class Chunked(Mode):
    """Each rank's own rows are cut into C chunks, which needs no permutation of the result.

    All collectives of a group share one stream, in the order in which they are issued: the all-gather of
    chunk c + 1 goes before the matmuls of chunk c, whose reduce-scatter goes after them.
    """

    def __init__(self, parameters: Parameters, world: World, buffers: Buffers) -> None:
        super().__init__(parameters, world, buffers)
        rows, chunks = len(buffers.output), parameters.chunks
        if rows % chunks:
            raise Unavailable(f"the {rows} rows of a rank cannot be cut into --chunks {chunks}")
        self._reduce_scatter = world.reduce_scatter
        self._chunks = chunks
        # The rows of chunk c of all ranks; the tensors of a chunk are parts of the whole ones.
        self._gathered = buffers.gathered.chunk(chunks)
        self._inner = buffers.inner.chunk(chunks)
        self._partial = buffers.partial.chunk(chunks)
        self._output = buffers.output.chunk(chunks)

    def step(self, index: int, timer: Timer) -> torch.Tensor:
        """Run one step."""
        buffers = self._buffers
        parts = buffers.input(index).chunk(self._chunks)
        scattering = []
        gathering = all_gather(self._gathered[0], parts[0], async_op=True)
        for c in range(self._chunks):
            gathering.wait()
            if c + 1 < self._chunks:
                gathering = all_gather(self._gathered[c + 1], parts[c + 1], async_op=True)
            torch.mm(self._gathered[c], buffers.weight_1, out=self._inner[c])
            torch.mm(self._inner[c], buffers.weight_2, out=self._partial[c])
            scattering.append(self._reduce_scatter(self._output[c], self._partial[c], async_op=True))
        for work in scattering:
            work.wait()
        return buffers.output
