"""The cost of a step, computed without a GPU: memory, operations, bytes on the links, and the shortest time.

With R rows, hidden size h, inner width f, N ranks and e bytes per element, a matmul has 2 R h f / N
operations; a step has two matmuls forward and four backward. A collective moves (N - 1) / N R h e bytes over
the links of a rank (the bus bandwidth of nccl-tests); a step has two collectives forward, and two backward or
three if the input is gathered again.
"""

import math
from dataclasses import dataclass

from hpcprof.workloads.sequence_parallel.parameters import PointParameters, Sweep

ELEMENT_BYTES = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
# Type of what is summed over the ranks: float8 has too few bits for sums.
RESULT_BYTES = {**ELEMENT_BYTES, "float8": 2}


@dataclass(frozen=True)
class GpuSheet:
    """Data sheet of a GPU: dense TFLOP/s by matmul type, GB/s of its links in one direction."""

    name: str
    tflops: dict[str, float]
    link_gbps: float
    l2_bytes: int


FORWARD_PHASES = ("allgather", "matmul_1", "matmul_2", "reduce_scatter")
BACKWARD_PHASES = (
    *("grad_allgather", "input_allgather", "grad_matmul_2", "weight_matmul_2"),
    *("weight_matmul_1", "grad_matmul_1", "grad_reduce_scatter"),
)

# From NVIDIA's data sheets of the A100 (2021), H100 and H200 (2024): dense rates, one direction of NVLink.
GPUS = (
    GpuSheet("A100", {"float32": 19.5, "tf32": 156, "float16": 312, "bfloat16": 312}, 300, 40 << 20),
    GpuSheet(
        "H100/H200",
        {"float32": 67, "tf32": 494.5, "float16": 989, "bfloat16": 989, "float8": 1979},
        450,
        50 << 20,
    ),
)


@dataclass(frozen=True)
class Rotation:
    """The data of step i: input i % ``inputs``, a multiple of ``weights``, and weights i % ``weights``."""

    inputs: int
    weights: int


def memory(parameters: PointParameters, ranks: int, rotation: Rotation) -> dict[str, int]:
    """Return the bytes that the buffers and modes of one rank allocate, by purpose."""
    rows, hidden, inner = parameters.rows, parameters.hidden_size, parameters.inner_size
    size, result = ELEMENT_BYTES[parameters.dtype], RESULT_BYTES[parameters.dtype]
    whole, shard, middle = rows * hidden, rows // ranks * hidden, rows * inner // ranks
    weights = 2 * hidden * inner // ranks
    parts = {
        "inputs": rotation.inputs * shard * size,
        "weights": rotation.weights * weights * size,
        "gathered": whole * size,
        "inner": middle * size,
        "products": whole * result,
        "output": shard * result,
    }
    if parameters.backward:
        parts["gradients"] = (rotation.inputs * shard + whole + middle + shard + weights) * size
    if not parameters.forward:
        # The results of the one forward; each mode keeps its own, in its own order.
        elements = middle + whole * parameters.keep_gathered
        parts["kept by further modes"] = (len(parameters.modes) - 1) * elements * size
    if "copy-engine" in parameters.modes:
        parts["received (copy-engine)"] = whole * result
    if "symmetric" in parameters.modes:
        # The operators allocate what they gather and multiply, and a workspace of the same size.
        parts["results and workspace (symmetric)"] = (2 * whole + middle) * size
    return parts


def rotation(parameters: PointParameters, ranks: int, cache_bytes: int) -> Rotation:
    """Return the rotation with which every step reads its input and weights from memory, not from the cache.

    All inputs together are at least twice as large as the cache, and so are the inputs and weights that are
    read before a copy of the weights is used again. If one input and one copy are that large, a single copy
    of the weights is enough.
    """
    size = ELEMENT_BYTES[parameters.dtype]
    one_input = parameters.rows // ranks * parameters.hidden_size * size
    weights = 2 * parameters.hidden_size * parameters.inner_size // ranks * size
    copies = max(1, math.ceil(2 * cache_bytes / (one_input + weights)))
    inputs = max(2, math.ceil(2 * cache_bytes / one_input))
    # Each input always goes with the same copy, because a CUDA graph is captured per input.
    return Rotation(copies * math.ceil(inputs / copies), copies)


def step_flops(parameters: PointParameters, ranks: int) -> int:
    """Return the number of operations of a step on each rank."""
    matmuls = 2 * parameters.forward + 4 * parameters.backward
    return 2 * matmuls * parameters.rows * parameters.hidden_size * parameters.inner_size // ranks


def link_bytes(parameters: PointParameters, ranks: int) -> dict[str, int]:
    """Return the bytes that each collective of a step moves over the links of a rank, in one direction."""
    elements = (ranks - 1) * parameters.rows * parameters.hidden_size // ranks
    size, result = ELEMENT_BYTES[parameters.dtype], RESULT_BYTES[parameters.dtype]
    return {
        name: elements * (result if "reduce_scatter" in name else size) for name in collectives(parameters)
    }


def collectives(parameters: PointParameters) -> tuple[str, ...]:
    """Return the names of the phases that communicate."""
    return tuple(name for name in phases(parameters) if not is_matmul(name))


def phases(parameters: PointParameters) -> tuple[str, ...]:
    """Return the names of the phases of a step, in the order of the serial mode."""
    names = FORWARD_PHASES * parameters.forward + BACKWARD_PHASES * parameters.backward
    return tuple(name for name in names if not (parameters.keep_gathered and name == "input_allgather"))


def is_matmul(phase: str) -> bool:
    """Return whether a phase is a matmul; the other phases are collectives."""
    return "matmul" in phase


def sweep_plan(sweep: Sweep, ranks: int) -> str:
    """Return the costs of every point as text."""
    sweep.validate(ranks)
    return "\n\n".join(
        (f"at {name}:\n" if name else "") + point_plan(parameters, ranks)
        for name, parameters in sweep.points.items()
    )


def point_plan(parameters: PointParameters, ranks: int) -> str:
    """Return the costs of one point as text; its shape must be valid for the number of ranks."""
    flops, moved = step_flops(parameters, ranks), link_bytes(parameters, ranks)
    turns = rotation(parameters, ranks, GPUS[-1].l2_bytes)
    needed = memory(parameters, ranks, turns)
    heads = f"{'matmuls ms':>12}{'collectives ms':>16}{'serial ms':>12}{'overlapped ms':>15}"
    lines = [
        f"R = {parameters.rows} rows, h = {parameters.hidden_size}, f = {parameters.inner_size}, "
        f"N = {ranks} ranks, {parameters.dtype}, {parameters.direction}",
        "",
        f"memory per rank     {_gib(sum(needed.values()))}",
        *(f"  {name:<34}{_gib(count)}" for name, count in needed.items()),
        f"rotating: {turns.inputs} inputs, {turns.weights} "
        f"{'copy' if turns.weights == 1 else 'copies'} of the weights",
        f"operations per step and rank    {flops / 1e12:.3f} TFLOP",
        "bytes over the links of a rank, MB: "
        + ", ".join(f"{name} {count / 1e6:.1f}" for name, count in moved.items()),
        "",
        f"{'by the data sheet':<20}{heads}",
    ]
    for gpu in GPUS:
        if parameters.dtype not in gpu.tflops:
            continue
        compute = flops / gpu.tflops[parameters.dtype] / 1e9
        links = sum(moved.values()) / gpu.link_gbps / 1e6
        row = f"{compute:>12.3f}{links:>16.3f}{compute + links:>12.3f}{max(compute, links):>15.3f}"
        lines.append(f"{gpu.name:<20}{row}")
    return "\n".join(lines)


def _gib(count: int) -> str:
    return f"{count / 2**30:>9.3f} GiB"
