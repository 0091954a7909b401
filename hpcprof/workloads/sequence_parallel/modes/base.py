"""What a mode is: one order of the communication and the compute of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from hpcprof.workloads.distributed import World
from hpcprof.workloads.sequence_parallel.buffers import Buffers
from hpcprof.workloads.sequence_parallel.options import Parameters
from hpcprof.workloads.timing import Timer


class Unavailable(Exception):
    """A mode cannot run here; the message is a sentence without its full stop that says why."""


class Mode(ABC):
    """One order of all-gather, two matmuls and reduce-scatter.

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

    @abstractmethod
    def step(self, index: int, timer: Timer) -> torch.Tensor:
        """Run one step on `Buffers.input` of ``index``, which stays as it is; return the output, [R/N, h].

        On CUDA it only enqueues work, and the current stream waits for all of it.
        """

    def poison(self) -> None:
        """Fill everything that a step writes with NaN, so that a part it leaves out shows."""
        self._buffers.poison()
