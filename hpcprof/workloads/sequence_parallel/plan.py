"""What a step needs, computed without a GPU: memory, operations, bytes on the links, and the time at least.

R rows, h hidden size, f inner width, N ranks, e bytes an element. A step has two matmuls of 2 R h f / N
operations, and each collective moves (N - 1) / N R h e over a rank's links (nccl-tests' bus bandwidth).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcprof.workloads.sequence_parallel.options import Parameters

ELEMENT_BYTES = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Gpu:
    """A GPU's datasheet: dense TFLOP/s by type of matmul, GB/s of its links in one direction."""

    name: str
    tflops: dict[str, float]
    link_gbps: float
    l2_bytes: int


# NVIDIA's datasheets of A100 (2021), H100 and H200 (2024): dense, and one direction of NVLink.
GPUS = (
    Gpu("A100", {"float32": 19.5, "tf32": 156, "float16": 312, "bfloat16": 312}, 300, 40 << 20),
    Gpu("H100/H200", {"float32": 67, "tf32": 494.5, "float16": 989, "bfloat16": 989}, 450, 50 << 20),
)


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank's tensors by what they are."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts.values())


def memory(parameters: Parameters, ranks: int, inputs: int) -> Memory:
    """Return what one rank's buffers and modes allocate; so many ``inputs`` rotate."""
    rows, hidden, inner = parameters.rows, parameters.hidden_size, parameters.inner_size
    size = ELEMENT_BYTES[parameters.dtype]
    parts = {
        "inputs": inputs * rows // ranks * hidden,
        "weights": 2 * hidden * inner // ranks,
        "gathered": rows * hidden,
        "inner": rows * inner // ranks,
        "products": rows * hidden,
        "output": rows // ranks * hidden,
    }
    if "copy-engine" in parameters.modes:
        parts["received (copy-engine)"] = rows * hidden
    if "symmetric" in parameters.modes:
        # The operators return what they gather and multiply, and keep a workspace of the same size.
        parts["results and workspace (symmetric)"] = 2 * rows * hidden + rows * inner // ranks
    return Memory({name: count * size for name, count in parts.items()})


def rotating_inputs(input_bytes: int, cache_bytes: int) -> int:
    """Return how many inputs rotate: twice the cache, so that each is read from memory."""
    return max(2, math.ceil(2 * cache_bytes / input_bytes))


def step_flops(parameters: Parameters, ranks: int) -> int:
    """Return the operations of a step on each rank."""
    return 4 * parameters.rows * parameters.hidden_size * parameters.inner_size // ranks


def link_bytes(parameters: Parameters, ranks: int) -> int:
    """Return the bytes that each collective moves over a rank's links, in one direction."""
    size = ELEMENT_BYTES[parameters.dtype]
    return (ranks - 1) * parameters.rows * parameters.hidden_size * size // ranks


def plan(parameters: Parameters, ranks: int) -> str:
    """Return the plan as lines for people.

    Raises
    ------
    UsageError
        If the ranks cannot share the shape.
    """
    parameters.validate(ranks)
    size = ELEMENT_BYTES[parameters.dtype]
    flops, moved = step_flops(parameters, ranks), link_bytes(parameters, ranks)
    input_bytes = parameters.rows // ranks * parameters.hidden_size * size
    needed = memory(parameters, ranks, rotating_inputs(input_bytes, GPUS[-1].l2_bytes))
    heads = f"{'matmuls ms':>12}{'collectives ms':>16}{'serial ms':>12}{'overlapped ms':>15}"
    lines = [
        f"R = {parameters.rows} rows, h = {parameters.hidden_size}, f = {parameters.inner_size}, "
        f"N = {ranks} ranks, {parameters.dtype}",
        "",
        f"memory of a rank    {_gib(needed.total)}",
        *(f"  {name:<34}{_gib(count)}" for name, count in needed.parts.items()),
        f"operations of a step on a rank    {flops / 1e12:.3f} TFLOP",
        f"bytes over a rank's links, each collective    {moved / 1e6:.1f} MB",
        "",
        f"{'by the datasheet':<20}{heads}",
    ]
    for gpu in GPUS:
        compute = flops / gpu.tflops[parameters.dtype] / 1e9
        links = 2 * moved / gpu.link_gbps / 1e6
        row = f"{compute:>12.3f}{links:>16.3f}{compute + links:>12.3f}{max(compute, links):>15.3f}"
        lines.append(f"{gpu.name:<20}{row}")
    return "\n".join(lines)


def _gib(count: int) -> str:
    return f"{count / 2**30:>9.3f} GiB"
