"""A mode as an operation of PyTorch's autograd."""

from __future__ import annotations

from typing import Any

import torch

from hpcprof.workloads.sequence_parallel.modes import Mode
from hpcprof.workloads.timing import PhaseTimer


class Block(torch.autograd.Function):
    """``Block.apply(source, weight_1, weight_2, call)``: the block over all ranks, and its gradients.

    ``source`` and the weights are those of the mode's buffers, which hold what the backward needs: one
    forward at a time. The gradient that arrives must be ``call.gradient``, `BackwardBuffers.source` of
    ``call.index``, since a mode may have peers read it there.
    """

    @staticmethod
    def forward(
        ctx: Any, source: torch.Tensor, weight_1: torch.Tensor, weight_2: torch.Tensor, call: Call
    ) -> torch.Tensor:
        """Run the mode forward; return the output, [R/N, h]."""
        ctx.call = call
        # A tensor of its own on the same memory: autograd writes its history into what is returned.
        return call.mode.forward(call.index, call.timer).detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Run the mode backward; return the gradients of input and weights."""
        call: Call = ctx.call
        if call.gradient is None or gradient.data_ptr() != call.gradient.data_ptr():
            raise RuntimeError("the gradient is not where the mode's peers read it")
        found = call.mode.backward(call.index, call.timer)
        return (*(tensor.detach() for tensor in found), None)


class Call:
    """What one step of a mode runs with; it changes from step to step, also while a graph is kept."""

    def __init__(self, mode: Mode, index: int, timer: PhaseTimer) -> None:
        self.mode = mode
        self.index = index
        self.timer = timer
        self.gradient: torch.Tensor | None = None
