"""The base class of modes; a mode is one way to order communication and compute in a step."""

from abc import ABC, abstractmethod

import torch

from hpcprof.workloads.distributed import World
from hpcprof.workloads.sequence_parallel.buffers import BackwardBuffers, Buffers, Gradients
from hpcprof.workloads.sequence_parallel.modes.row_groups import RowGroups
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.timing import PhaseTimer


class Unavailable(Exception):
    """A mode cannot run here; the message gives the reason, without a full stop."""


class Mode(ABC):
    """One way to order all-gather, two matmuls and reduce-scatter, and the matmuls of the backward.

    With X the gathered input, Y = X W1 and P = Y W2 the forward returns this rank's rows of the ranks' sum of
    P. Backward, with dP gathered from the ranks' gradients: dY = dP W2ᵀ, dW2 = Yᵀ dP, dW1 = Xᵀ dY, and this
    rank's rows of the sum of dY W1ᵀ. Y is kept from the forward; X is gathered again unless it is kept.

    A mode is created on all ranks together before the first step, and allocates all its memory then. If it
    cannot run, it raises `Unavailable` on every rank.
    """

    phases: tuple[str, ...] = ()
    """The parts of a step that are timed; empty if they overlap."""
    note: str = ""
    """Information for readers of the figures."""
    row_groups: tuple[RowGroups, RowGroups] | None = None
    """The groups of rows of each matmul of the forward, if the mode chooses them."""
    adds: bool = False
    """True if the second matmul adds its last group to the buffer's content."""

    def __init__(self, parameters: PointParameters, world: World, buffers: Buffers) -> None:
        self._buffers = buffers
        self._regather = not parameters.keep_gathered
        self._index = 0

    @abstractmethod
    def forward(self, index: int, timer: PhaseTimer) -> torch.Tensor:
        """Enqueue the block on input ``index``, which stays as it is; return the output, [R/N, h]."""

    @abstractmethod
    def backward(self, index: int, timer: PhaseTimer) -> Gradients:
        """Enqueue the gradients of the latest forward, from `BackwardBuffers.source` of ``index``."""

    def poison(self) -> None:
        """Fill everything that the forward writes with NaN, so that a part that it leaves out is detected."""
        self._buffers.poison()

    def poison_backward(self) -> None:
        """Fill everything that the backward writes with NaN."""
        self._buffers.poison_backward(gathered=self._regather)

    def close(self) -> None:  # noqa: B027
        """Free what PyTorch does not free; a collective call after the last step."""

    @property
    def _backward(self) -> BackwardBuffers:
        assert self._buffers.backward is not None
        return self._buffers.backward
