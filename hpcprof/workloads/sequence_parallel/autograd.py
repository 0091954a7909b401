"""A mode as an operation in PyTorch's autograd."""

from __future__ import annotations

from typing import Any

import torch

from hpcprof.workloads.sequence_parallel.modes import Mode
from hpcprof.workloads.timing import PhaseTimer


class Block(torch.autograd.Function):
    """``Block.apply(source, weight_1, weight_2, call)``: the block over all ranks, and its gradients.

    ``source`` and the weights belong to the buffers of the mode. The buffers also keep what the backward
    needs, so only one forward can be pending. The incoming gradient must be ``call.gradient``, which is
    `BackwardBuffers.source` of ``call.index``, because the peers may read it from there.
    """

    @staticmethod
    def forward(
        ctx: Any, source: torch.Tensor, weight_1: torch.Tensor, weight_2: torch.Tensor, call: Call
    ) -> torch.Tensor:
        """Run the mode forward; return the output, [R/N, h]."""
        ctx.call = call
        # Return another tensor on the same memory, since autograd stores its history in the returned tensor.
        return call.mode.forward(call.index, call.timer).detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Run the mode backward; return the gradients of input and weights."""
        call: Call = ctx.call
        if call.gradient is None or gradient.data_ptr() != call.gradient.data_ptr():
            raise RuntimeError("the gradient is not in the memory that the peers read")
        found = call.mode.backward(call.index, call.timer)
        return (*(tensor.detach() for tensor in found), None)


class Call:
    """The arguments of one step; they change from step to step, even if the autograd graph is kept."""

    def __init__(self, mode: Mode, index: int, timer: PhaseTimer) -> None:
        self.mode = mode
        self.index = index
        self.timer = timer
        self.gradient: torch.Tensor | None = None
