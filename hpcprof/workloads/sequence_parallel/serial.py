"""The serial order: all-gather, two matmuls and reduce-scatter, one after the other."""

from __future__ import annotations

import torch

from hpcprof.workloads.distributed import Collective, all_gather
from hpcprof.workloads.sequence_parallel.buffers import Buffers
from hpcprof.workloads.timing import Timer

PHASES = ("allgather", "matmul_1", "matmul_2", "reduce_scatter")


def step(buffers: Buffers, source: torch.Tensor, reduce_scatter: Collective, timer: Timer) -> None:
    """Run one step; on CUDA it only enqueues work, and nothing in it waits for the device.

    Parameters
    ----------
    buffers : Buffers
        Weights and results.
    source : Tensor [R/N, h]
        This rank's rows of the input; left as they are.
    reduce_scatter : callable
        ``reduce_scatter(output, input)``.
    timer : Timer
        Times and annotates each phase.
    """
    with timer.phase("allgather"):
        all_gather(buffers.gathered, source)
    with timer.phase("matmul_1"):
        torch.mm(buffers.gathered, buffers.weight_1, out=buffers.inner)
    with timer.phase("matmul_2"):
        torch.mm(buffers.inner, buffers.weight_2, out=buffers.partial)
    with timer.phase("reduce_scatter"):
        reduce_scatter(buffers.output, buffers.partial)
