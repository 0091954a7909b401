"""Every tensor of the workload, made once before the first step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hpcprof.errors import HpcprofError
from hpcprof.workloads.sequence_parallel.options import Parameters
from hpcprof.workloads.sequence_parallel.plan import Memory, memory, rotating_inputs

DTYPES = {
    "float32": torch.float32,
    # What is stored; the matmuls round their operands to 10 bits of mantissa.
    "tf32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}

# A CPU's last-level cache differs too much to be measured here; four inputs already alternate.
_CPU_INPUTS = 4


@dataclass(frozen=True)
class Buffers:
    """One rank's tensors, with R rows, hidden size h, inner width f and N ranks.

    Attributes
    ----------
    inputs : Tensor [count, R/N, h]
        Several inputs; a step uses one, and never one that the caches still hold.
    weight_1 : Tensor [h, f/N]
        The first matmul's columns on this rank.
    weight_2 : Tensor [f/N, h]
        The second matmul's rows on this rank.
    gathered : Tensor [R, h]
        The all-gather's output.
    inner : Tensor [R, f/N]
        The first matmul's output.
    partial : Tensor [R, h]
        The second matmul's output: this rank's summand.
    output : Tensor [R/N, h]
        The reduce-scatter's output; never an input again, since a result that is fed back decays to
        zeros, on which a GPU multiplies faster than on data.
    """

    inputs: torch.Tensor
    weight_1: torch.Tensor
    weight_2: torch.Tensor
    gathered: torch.Tensor
    inner: torch.Tensor
    partial: torch.Tensor
    output: torch.Tensor

    def input(self, step: int) -> torch.Tensor:
        """Return the input of a step, [R/N, h]."""
        return self.inputs[step % len(self.inputs)]

    def poison(self) -> None:
        """Fill everything a step writes with NaN, so that a part it leaves out shows."""
        for tensor in (self.gathered, self.inner, self.partial, self.output):
            tensor.fill_(math.nan)


def allocate(
    parameters: Parameters,
    rank: int,
    size: int,
    device: torch.device,
    empty_input: Callable[..., torch.Tensor] = torch.empty,
) -> Buffers:
    """Make the tensors of one rank.

    Inputs are N(0, 1) and a weight with K rows in all is N(0, 1/sqrt(K)), so that every intermediate result
    has a standard deviation near 1. Each rank draws its own part, from a seed that no other rank has.

    Parameters
    ----------
    parameters : Parameters
        Already validated for ``size`` ranks.
    rank, size : int
        This rank and the number of ranks.
    device : torch.device
        Where the tensors live.
    empty_input : callable
        Allocates the inputs, as ``torch.empty`` does: in memory that the peers can read, where they do.
    """
    generator = torch.Generator(device).manual_seed(parameters.seed * size + rank)
    dtype = DTYPES[parameters.dtype]
    rows, hidden, inner = parameters.rows, parameters.hidden_size, parameters.inner_size

    def normal(*shape: int, deviation: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=dtype).mul_(deviation)

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, device=device, dtype=dtype)

    count = input_count(rows // size * hidden * dtype.itemsize, device)
    _check_memory(memory(parameters, size, count), device)
    inputs = empty_input(count, rows // size, hidden, device=device, dtype=dtype)
    return Buffers(
        inputs=inputs.normal_(generator=generator),
        weight_1=normal(hidden, inner // size, deviation=1 / math.sqrt(hidden)),
        weight_2=normal(inner // size, hidden, deviation=1 / math.sqrt(inner)),
        gathered=empty(rows, hidden),
        inner=empty(rows, inner // size),
        partial=empty(rows, hidden),
        output=empty(rows // size, hidden),
    )


def _check_memory(needed: Memory, device: torch.device) -> None:
    """Refuse what does not fit, before anything is allocated.

    Raises
    ------
    HpcprofError
        With the bytes that are needed and those that are free.
    """
    if device.type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(device)
    if needed.total > free:
        raise HpcprofError(
            f"a rank needs {needed.total / 2**30:.1f} GiB and {device} has {free / 2**30:.1f} GiB free: make "
            "the shape smaller, use more ranks, or fewer modes (--plan RANKS prints what needs it)."
        )


def input_count(input_bytes: int, device: torch.device) -> int:
    """Return how many inputs rotate: on CUDA twice the L2 cache, so that each is read from memory."""
    if device.type != "cuda":
        return _CPU_INPUTS
    cache: int = torch.cuda.get_device_properties(device).L2_cache_size
    return rotating_inputs(input_bytes, cache)
