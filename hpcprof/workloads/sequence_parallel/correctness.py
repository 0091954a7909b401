"""Compare a step's output with a float64 reference that shares no code with the step."""

from __future__ import annotations

import math
from typing import Any

import torch
from mpi4py import MPI

from hpcprof.workloads.schema import Correctness
from hpcprof.workloads.sequence_parallel.buffers import Buffers

# Relative norms: far above the rounding of float32 sums, of 11 bits of mantissa (TF32, float16) and of
# bfloat16's 8, and far below what a wrong row or a missing summand would give; float32's also below TF32's.
BOUNDS = {"float32": 1e-5, "tf32": 2e-3, "float16": 2e-3, "bfloat16": 1e-2}

REFERENCE = "float64 matmuls of sampled rows, summed over the ranks by MPI"

# Over all ranks together, so that the check's cost does not grow with their number.
_SAMPLED_ROWS = 64


def check(
    buffers: Buffers, source: torch.Tensor, output: torch.Tensor, comm: Any, *, dtype: str, seed: int
) -> Correctness:
    """Check the output of a step; every rank of ``comm`` calls it.

    Each rank samples rows of its own shard. All ranks multiply all sampled rows with their own parts of the
    weights in float64; MPI, not the process group under test, spreads the rows and sums the products.

    Parameters
    ----------
    buffers : Buffers
        The weights.
    source, output : Tensor [R/N, h]
        Input and output of a step that began with poisoned memory.
    comm : mpi4py.MPI.Comm
        All ranks.
    dtype : str
        Chooses the bound.
    seed : int
        Chooses the rows.
    """
    rows = sample_rows(len(source), comm.size, seed)
    mine = source[rows.to(source.device)].double().cpu()
    everyone = torch.empty(comm.size, *mine.shape, dtype=torch.float64)
    comm.Allgather(mine, everyone)
    products = everyone.flatten(0, 1).to(source.device) @ buffers.weight_1.double()
    reference = (products @ buffers.weight_2.double()).cpu()
    comm.Allreduce(MPI.IN_PLACE, reference)
    expected = reference.view_as(everyone)[comm.rank]
    found = output[rows.to(source.device)].double().cpu()
    # One NaN anywhere in the shard counts, also outside the sampled rows: it is a row nobody wrote.
    finite = bool(torch.isfinite(output).all())
    error = relative_error(found, expected) if finite else math.nan
    return Correctness(
        passed=error < BOUNDS[dtype],
        relative_error=error,
        bound=BOUNDS[dtype],
        rows=len(rows),
        reference=REFERENCE,
    )


def sample_rows(count: int, ranks: int, seed: int) -> torch.Tensor:
    """Return the sorted indices of rows to compare, of ``count`` on a rank; at least one."""
    generator = torch.Generator().manual_seed(seed)
    wanted = max(1, _SAMPLED_ROWS // ranks)
    return torch.randperm(count, generator=generator)[:wanted].sort().values


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return ``norm(found - expected) / norm(expected)``; NaN where the reference is all zeros."""
    return float(torch.linalg.norm(found - expected) / torch.linalg.norm(expected))


def sentence(checks: list[Correctness]) -> str | None:
    """Return what is wrong, from every rank's check in the order of the ranks; None if nothing is."""
    failed = [rank for rank, result in enumerate(checks) if not result.passed]
    if not failed:
        return None
    first = checks[failed[0]]
    reason = (
        "the output holds NaN or infinity"
        if math.isnan(first.relative_error)
        else f"relative error {first.relative_error:.2e} is not below {first.bound:.0e}"
    )
    others = f" ({len(failed)} of {len(checks)} ranks fail)" if len(checks) > 1 else ""
    return f"rank {failed[0]}: the results are wrong: {reason}{others}."
