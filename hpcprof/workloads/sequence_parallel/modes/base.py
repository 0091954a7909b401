"""What a mode is: one order of the communication and the compute of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from hpcprof.workloads.distributed import World
from hpcprof.workloads.sequence_parallel.buffers import BackwardBuffers, Buffers, Gradients
from hpcprof.workloads.sequence_parallel.parameters import Parameters
from hpcprof.workloads.timing import PhaseTimer


class Unavailable(Exception):
    """A mode cannot run here; the message is a sentence without its full stop that says why."""


class Mode(ABC):
    """One order of all-gather, two matmuls and reduce-scatter, and of the four matmuls backward.

    With X the gathered input, Y = X W1 and P = Y W2 the forward returns this rank's rows of the ranks' sum of
    P. Backward, with dP gathered from the ranks' gradients: dY = dP W2ᵀ, dW2 = Yᵀ dP, dW1 = Xᵀ dY, and this
    rank's rows of the sum of dY W1ᵀ. Y stays from the forward; X is gathered again unless it is kept.

    A mode is made on all ranks together, before the first step, with all its memory; it raises `Unavailable`
    on every rank where it cannot run.

    Attributes
    ----------
    phases : tuple of str
        Parts of a step that follow each other, and are timed; empty where they overlap.
    note : str
        What the mode found out that a reader of its figures should know; may be empty.
    """

    phases: tuple[str, ...] = ()
    note: str = ""

    def __init__(self, parameters: Parameters, world: World, buffers: Buffers) -> None:
        self._buffers = buffers
        self._regather = not parameters.keep_gathered
        self._index = 0

    @abstractmethod
    def forward(self, index: int, timer: PhaseTimer) -> torch.Tensor:
        """Run the block on `Buffers.input` of ``index``, which stays as it is; return the output, [R/N, h].

        On CUDA it only enqueues work, and the current stream waits for all of it.
        """

    @abstractmethod
    def backward(self, index: int, timer: PhaseTimer) -> Gradients:
        """Run the gradients of the latest forward, from `BackwardBuffers.source` of ``index``.

        As the forward it only enqueues work.
        """

    def poison(self) -> None:
        """Fill everything that the forward writes with NaN, so that a part it leaves out shows."""
        self._buffers.poison()

    def poison_backward(self) -> None:
        """Fill everything that the backward writes with NaN."""
        self._buffers.poison_backward(gathered=self._regather)

    @property
    def _backward(self) -> BackwardBuffers:
        assert self._buffers.backward is not None
        return self._buffers.backward
