"""What a step needs, computed without a GPU: memory, operations, bytes on the links, and the time at least.

R rows, h hidden size, f inner width, N ranks, e bytes an element. A matmul has 2 R h f / N operations: two
of them forward, four backward. A collective moves (N - 1) / N R h e over a rank's links (nccl-tests' bus
bandwidth): two of them forward, backward two or, with the input gathered again, three.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcprof.workloads.sequence_parallel.parameters import Parameters, Sweep

ELEMENT_BYTES = {"float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
# What is added up over the ranks: float8 has too few bits for sums.
RESULT_BYTES = {**ELEMENT_BYTES, "float8": 2}


@dataclass(frozen=True)
class Gpu:
    """A GPU's datasheet: dense TFLOP/s by type of matmul, GB/s of its links in one direction."""

    name: str
    tflops: dict[str, float]
    link_gbps: float
    l2_bytes: int


FORWARD_PHASES = ("allgather", "matmul_1", "matmul_2", "reduce_scatter")
BACKWARD_PHASES = (
    "grad_allgather",
    "input_allgather",
    "grad_matmul_2",
    "weight_matmul_2",
    "weight_matmul_1",
    "grad_matmul_1",
    "grad_reduce_scatter",
)

# NVIDIA's datasheets of A100 (2021), H100 and H200 (2024): dense, and one direction of NVLink.
GPUS = (
    Gpu("A100", {"float32": 19.5, "tf32": 156, "float16": 312, "bfloat16": 312}, 300, 40 << 20),
    Gpu(
        "H100/H200",
        {"float32": 67, "tf32": 494.5, "float16": 989, "bfloat16": 989, "float8": 1979},
        450,
        50 << 20,
    ),
)


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank's tensors by what they are."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Rotation:
    """How many copies of a step's inputs, and of the weights, the steps use in turns.

    Step i takes input i modulo ``inputs``, which is a multiple of ``weights``, and copy i modulo ``weights``.
    """

    inputs: int
    weights: int


def memory(parameters: Parameters, ranks: int, rotation: Rotation) -> Memory:
    """Return what one rank's buffers and modes allocate."""
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
        # The results of the one forward, which each mode has in an order of its own.
        kept = middle + whole * parameters.keep_gathered
        parts["kept by further modes"] = (len(parameters.modes) - 1) * kept * size
    if "copy-engine" in parameters.modes:
        parts["received (copy-engine)"] = whole * result
    if "symmetric" in parameters.modes:
        # The operators return what they gather and multiply, and keep a workspace of the same size.
        parts["results and workspace (symmetric)"] = (2 * whole + middle) * size
    return Memory(parts)


def rotation(parameters: Parameters, ranks: int, cache_bytes: int) -> Rotation:
    """Return how much rotates so that every step reads its inputs and weights from memory.

    The inputs are twice the cache, and so are the inputs and weights that are read before a copy of the
    weights comes again. Where one input and one copy are that large the weights stay the same.
    """
    size = ELEMENT_BYTES[parameters.dtype]
    one_input = parameters.rows // ranks * parameters.hidden_size * size
    weights = 2 * parameters.hidden_size * parameters.inner_size // ranks * size
    copies = max(1, math.ceil(2 * cache_bytes / (one_input + weights)))
    inputs = max(2, math.ceil(2 * cache_bytes / one_input))
    # A step's input says which copy goes with it: a CUDA graph is captured for each input.
    return Rotation(copies * math.ceil(inputs / copies), copies)


def step_flops(parameters: Parameters, ranks: int) -> int:
    """Return the operations of a step on each rank."""
    matmuls = 2 * parameters.forward + 4 * parameters.backward
    return 2 * matmuls * parameters.rows * parameters.hidden_size * parameters.inner_size // ranks


def link_bytes(parameters: Parameters, ranks: int) -> dict[str, int]:
    """Return the bytes that each collective of a step moves over a rank's links, in one direction."""
    elements = (ranks - 1) * parameters.rows * parameters.hidden_size // ranks
    size, result = ELEMENT_BYTES[parameters.dtype], RESULT_BYTES[parameters.dtype]
    of_phase = {name: result if "reduce_scatter" in name else size for name in collectives(parameters)}
    return {name: elements * size for name, size in of_phase.items()}


def collectives(parameters: Parameters) -> tuple[str, ...]:
    """Return the names of a step's phases that communicate."""
    return tuple(name for name in phases(parameters) if not is_matmul(name))


def phases(parameters: Parameters) -> tuple[str, ...]:
    """Return the names of the parts of a step, in the order of the serial mode."""
    names: tuple[str, ...] = FORWARD_PHASES if parameters.forward else ()
    if parameters.backward:
        kept = {"input_allgather"} if parameters.keep_gathered else set()
        names += tuple(name for name in BACKWARD_PHASES if name not in kept)
    return names


def is_matmul(phase: str) -> bool:
    """Say whether a phase computes; the others communicate."""
    return "matmul" in phase


def sweep_plan(sweep: Sweep, ranks: int) -> str:
    """Return the plan of every point as lines for people.

    Raises
    ------
    UsageError
        If the ranks cannot share the shape of one.
    """
    sweep.validate(ranks)
    blocks = []
    for name, parameters in sweep.points.items():
        blocks.append(
            f"at {name}:\n{point_plan(parameters, ranks)}" if name else point_plan(parameters, ranks)
        )
    return "\n\n".join(blocks)


def point_plan(parameters: Parameters, ranks: int) -> str:
    """Return the plan of one point, which must be valid for the ranks, as lines for people."""
    flops, moved = step_flops(parameters, ranks), link_bytes(parameters, ranks)
    turns = rotation(parameters, ranks, GPUS[-1].l2_bytes)
    needed = memory(parameters, ranks, turns)
    heads = f"{'matmuls ms':>12}{'collectives ms':>16}{'serial ms':>12}{'overlapped ms':>15}"
    lines = [
        f"R = {parameters.rows} rows, h = {parameters.hidden_size}, f = {parameters.inner_size}, "
        f"N = {ranks} ranks, {parameters.dtype}, {parameters.direction}",
        "",
        f"memory of a rank    {_gib(needed.total)}",
        *(f"  {name:<34}{_gib(count)}" for name, count in needed.parts.items()),
        f"in turns: {turns.inputs} inputs, {turns.weights} copies of the weights",
        f"operations of a step on a rank    {flops / 1e12:.3f} TFLOP",
        "bytes over a rank's links, MB: "
        + ", ".join(f"{name} {count / 1e6:.1f}" for name, count in moved.items()),
        "",
        f"{'by the datasheet':<20}{heads}",
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
