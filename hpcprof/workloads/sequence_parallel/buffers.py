"""The tensors of the workload, allocated once before the first step."""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from hpcprof.common.errors import HpcprofError
from hpcprof.workloads.sequence_parallel.cost_model import Rotation, memory, rotation
from hpcprof.workloads.sequence_parallel.parameters import PointParameters

DTYPES = {
    "float32": torch.float32,
    # Stored as float32; the matmuls round their operands to 10 bits of mantissa.
    "tf32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8": torch.float8_e4m3fn,
}

# The size of the last-level cache is not known on a CPU, so a fixed number of inputs rotates.
_ON_CPU = Rotation(inputs=4, weights=1)

# All bits but the sign: e4m3fn has no other NaN than this and its negative.
_FLOAT8_NAN = 0x7F
_FP8_TILE = 32
_CHECKED_ROWS = 1024

Multiply = Callable[[torch.Tensor, torch.Tensor], object]
"""``f(rows, out)``: one of the matmuls of a step."""


@dataclass(frozen=True)
class Gradients:
    """The results of a backward: gradients with respect to the input and to this rank's weights."""

    input: torch.Tensor
    weight_1: torch.Tensor
    weight_2: torch.Tensor

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter((self.input, self.weight_1, self.weight_2))


class Weights:
    """Copies of this rank's part of both weights, [h, f/N] and [f/N, h], which rotate and differ."""

    def __init__(self, first: list[torch.Tensor], second: list[torch.Tensor]) -> None:
        self.first, self.second = first, second
        self.present = 0

    def use(self, step: int) -> None:
        """Select the copy for a step."""
        self.present = step % len(self.first)


@dataclass(frozen=True)
class BackwardBuffers:
    """The tensors of the backward. It also reuses ``partial`` of the forward."""

    sources: torch.Tensor
    """Gradients with respect to the output, with which a backward step begins; they rotate as inputs do."""
    gathered: torch.Tensor
    """The gradient with respect to all rows of the output."""
    inner: torch.Tensor
    """The gradient with respect to the rows between the matmuls."""
    gradients: Gradients

    def source(self, step: int) -> torch.Tensor:
        """Return the gradient with which a step begins, [R/N, h]."""
        return self.sources[step % len(self.sources)]


@dataclass(frozen=True)
class Buffers:
    """The tensors of one rank, for R rows, hidden size h, inner width f and N ranks."""

    inputs: torch.Tensor
    """The inputs. A step uses one of them, in an order in which no cache still has it."""
    weights: Weights
    """This rank's columns of the first weight and rows of the second; a step uses one copy."""
    gathered: torch.Tensor
    """The output of the all-gather."""
    inner: torch.Tensor
    """The output of the first matmul."""
    partial: torch.Tensor
    """The output of the second matmul, which is this rank's summand."""
    output: torch.Tensor
    """The output of the reduce-scatter. It is never used as an input: results that are fed back decay to
    zeros, which a GPU multiplies faster than other data.
    """
    scales: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    """The scales of the rows, the first weight and the second weight in float8; None for other types."""
    backward: BackwardBuffers | None = None
    """None if only the forward is measured."""

    def input(self, step: int) -> torch.Tensor:
        """Return the input of a step, [R/N, h]."""
        return self.inputs[step % len(self.inputs)]

    @property
    def weight_1(self) -> torch.Tensor:
        """The copy of the first weight in use, [h, f/N]."""
        return self.weights.first[self.weights.present]

    @property
    def weight_2(self) -> torch.Tensor:
        """The copy of the second weight in use, [f/N, h]."""
        return self.weights.second[self.weights.present]

    def multiply_1(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Multiply rows of the gathered input by the first weight."""
        self._multiply(rows, self.weight_1, 1, out)

    def multiply_2(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Multiply rows of the inner result by the second weight."""
        self._multiply(rows, self.weight_2, 2, out)

    def multiply_back_2(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Multiply rows of the gathered gradient by the transpose of the second weight."""
        torch.mm(rows, self.weight_2.t(), out=out)

    def multiply_back_1(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Multiply rows of the inner gradient by the transpose of the first weight."""
        torch.mm(rows, self.weight_1.t(), out=out)

    def _multiply(self, rows: torch.Tensor, weight: torch.Tensor, index: int, out: torch.Tensor) -> None:
        if self.scales is None:
            torch.mm(rows, weight, out=out)
        else:
            unit, scale = self.scales[0], self.scales[index]
            torch._scaled_mm(rows, weight, scale_a=unit, scale_b=scale, out_dtype=out.dtype, out=out)

    def poison(self) -> None:
        """Fill everything that the forward writes with NaN, so that a part that it leaves out is detected."""
        for tensor in (self.gathered, self.inner, self.partial, self.output):
            poison(tensor)

    def poison_backward(self, *, gathered: bool) -> None:
        """Fill everything that the backward writes with NaN, including the gathered input if ``gathered``."""
        assert self.backward is not None
        backward = self.backward
        for tensor in (backward.gathered, backward.inner, self.partial, *backward.gradients):
            poison(tensor)
        if gathered:
            poison(self.gathered)


def poison(tensor: torch.Tensor) -> None:
    """Fill a tensor with NaN."""
    if tensor.dtype == torch.float8_e4m3fn:
        tensor.view(torch.uint8).fill_(_FLOAT8_NAN)
    else:
        tensor.fill_(math.nan)


def allocate(
    parameters: PointParameters,
    rank: int,
    size: int,
    device: torch.device,
    empty_input: Callable[..., torch.Tensor] = torch.empty,
) -> Buffers:
    """Allocate the tensors of one rank and fill them with random data.

    Inputs have standard deviation 1, and a weight with K rows over all ranks has 1/sqrt(K), so that every
    intermediate result has a standard deviation near 1. Each rank draws its own part from its own seed. In
    float8, with its few exponents, weights are stored with standard deviation 1 and scaled in the matmul.
    ``parameters`` are the shape, validated for ``size`` ranks; ``empty_input`` allocates the inputs as
    ``torch.empty`` does, for example in memory that the peers can read. Raises HpcprofError if the tensors do
    not fit, the device cannot multiply this type, or the random data are not finite.
    """
    check_device(parameters, size, device)
    generator = torch.Generator(device).manual_seed(parameters.seed * size + rank)
    dtype = DTYPES[parameters.dtype]
    eight = parameters.dtype == "float8"
    result = torch.bfloat16 if eight else dtype
    rows, hidden, inner = parameters.rows, parameters.hidden_size, parameters.inner_size
    shard, middle = rows // size, inner // size

    def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(*shape, device=device, dtype=dtype)

    def fill(tensor: torch.Tensor, deviation: float = 1.0) -> torch.Tensor:
        if not eight:
            return tensor.normal_(generator=generator).mul_(deviation)
        return tensor.copy_(torch.empty_like(tensor, dtype=torch.float32).normal_(generator=generator))

    def weight(rows: int, columns: int, deviation: float) -> torch.Tensor:
        # A scaled matmul takes its second operand column by column.
        return fill(empty(columns, rows).t() if eight else empty(rows, columns), deviation)

    def rotating() -> torch.Tensor:
        made = empty_input(turns.inputs, shard, hidden, device=device, dtype=dtype)
        for tensor in made:
            fill(tensor)
        return made

    turns = rotation_on(parameters, size, device)
    first, second = 1 / math.sqrt(hidden), 1 / math.sqrt(inner)
    inputs = rotating()
    weights = Weights(
        [weight(hidden, middle, first) for _ in range(turns.weights)],
        [weight(middle, hidden, second) for _ in range(turns.weights)],
    )
    buffers = Buffers(
        inputs=inputs,
        weights=weights,
        gathered=empty(rows, hidden),
        inner=empty(rows, middle),
        partial=empty(rows, hidden, dtype=result),
        output=empty(shard, hidden, dtype=result),
    )
    if eight:
        unit, *scales = (torch.tensor(value, device=device) for value in (1.0, first, second))
        buffers = replace(buffers, scales=(unit, scales[0], scales[1]))
    data = {"input": [inputs], "weight_1": weights.first, "weight_2": weights.second}
    if parameters.backward:
        gradients = Gradients(empty(shard, hidden), empty(hidden, middle), empty(middle, hidden))
        backward = BackwardBuffers(rotating(), empty(rows, hidden), empty(rows, middle), gradients)
        buffers, data["gradient"] = replace(buffers, backward=backward), [backward.sources]
    # No result could be correct otherwise.
    for name, tensors in data.items():
        if not all(map(finite, tensors)):
            raise HpcprofError(f"the {name} of rank {rank} contains NaN or infinity before the first step.")
    return buffers


def finite(tensor: torch.Tensor) -> bool:
    """Return whether all values are finite; in blocks of rows, which needs little memory."""
    return all(bool(torch.isfinite(part.float()).all()) for part in tensor.split(_CHECKED_ROWS))


def check_device(parameters: PointParameters, size: int, device: torch.device) -> None:
    """Check that a shape fits into the memory of a device, and that it can multiply this type."""
    if parameters.dtype == "float8":
        _check_float8(device)
    needed = sum(memory(parameters, size, rotation_on(parameters, size, device)).values())
    if device.type == "cuda":
        available, which = torch.cuda.mem_get_info(device)[0], "free"
    else:
        # Free memory of a host is not known, since the kernel can drop its caches: compare with all of it.
        available, which = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "in total"
    if needed > available:
        raise HpcprofError(
            f"a rank needs {needed / 2**30:.1f} GiB, but {device} has {available / 2**30:.1f} GiB {which}: "
            "use a smaller shape, more ranks, or fewer modes (--plan RANKS lists what needs the memory)."
        )


def _check_float8(device: torch.device) -> None:
    ones = torch.ones(_FP8_TILE, _FP8_TILE, device=device).to(torch.float8_e4m3fn)
    scale = torch.ones((), device=device)
    try:
        torch._scaled_mm(ones, ones.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)
    except (RuntimeError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise HpcprofError(f"--dtype float8: {device} has no scaled matmul ({reason}).") from None


def rotation_on(parameters: PointParameters, size: int, device: torch.device) -> Rotation:
    """Return the number of copies that rotate on a device; with CUDA, the size of the L2 cache decides."""
    if device.type != "cuda":
        return _ON_CPU
    return rotation(parameters, size, torch.cuda.get_device_properties(device).L2_cache_size)
