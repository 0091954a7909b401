"""Compare a step's output with a float64 reference that shares no code with the step."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from mpi4py import MPI

from hpcprof.workloads.schema import Correctness
from hpcprof.workloads.sequence_parallel.buffers import Buffers, finite
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.sequence_parallel.steps import Outputs

# Bounds of the relative norm. They are far above the rounding errors of float32 sums, of 11 bits of mantissa
# (TF32, float16) and of 8 bits (bfloat16), and far below the effect of a wrong row or a missing summand. The
# bound of float32 is also below the errors of TF32.
BOUNDS = {"float32": 1e-5, "tf32": 2e-3, "float16": 2e-3, "bfloat16": 1e-2, "float8": 6e-2}

REFERENCE = "float64 matmuls of sampled rows, summed over the ranks by MPI"

# Over all ranks together, so that the cost of the check does not grow with their number.
_SAMPLED_ROWS = 64


def check(
    parameters: PointParameters, buffers: Buffers, outputs: Outputs, comm: Any, index: int, forward: int
) -> Correctness:
    """Check the results of a step that started on poisoned memory; a collective call over ``comm``.

    Each rank samples rows of its own shard. All ranks multiply all sampled rows by their own parts of the
    weights in float64; MPI, not the process group under test, distributes the rows and sums the products.
    Gradients of the weights sum over all rows, so single entries of them are compared. ``buffers`` are the
    weights, and the data with which the step began. The type in ``parameters`` selects the bound, and their
    seed the sample; the step's ``index`` the input, the gradient and the copy of the weights. ``forward`` is
    the index of the forward step to which the gradients belong.
    """
    reference = _Reference(buffers, comm, parameters.seed, index, forward)
    errors = [] if outputs.output is None else [reference.error_of_output(outputs.output)]
    if outputs.gradients is not None:
        errors += reference.errors_of_gradients(*outputs.gradients)
    # A NaN outside the sampled rows counts too: it is in a row that was never written.
    whole = all(finite(tensor) for tensor in outputs.tensors())
    # max() would skip NaN, which compares as neither smaller nor larger.
    error = max(errors) if whole and not any(math.isnan(e) for e in errors) else math.nan
    bound = BOUNDS[parameters.dtype]
    return Correctness(error < bound, error, bound, len(reference.rows), REFERENCE)


class _Reference:
    """The expected results of a step, in float64."""

    def __init__(self, buffers: Buffers, comm: Any, seed: int, index: int, forward: int) -> None:
        self._comm, self._seed = comm, seed
        self._device = buffers.inputs.device
        self.rows = sample_rows(len(buffers.input(index)), comm.size, seed)
        self._scales = (1.0, 1.0) if buffers.scales is None else tuple(map(float, buffers.scales[1:]))
        weights = buffers.weights
        copies = len(weights.first)
        self._weight_1, self._weight_2 = weights.first[index % copies], weights.second[index % copies]
        self._weight_1_forward = weights.first[forward % copies]
        self._input = buffers.input(forward)
        self._gradient = None if buffers.backward is None else buffers.backward.source(index)

    def error_of_output(self, output: torch.Tensor) -> float:
        """Return the relative error of sampled rows of the output."""
        first, second = (self._weight_1.double(), self._weight_2.double())
        return self._error_of_rows(output, self._input, first * self._scales[0], second * self._scales[1])

    def _error_of_rows(
        self, result: torch.Tensor, source: torch.Tensor, first: torch.Tensor, second: torch.Tensor
    ) -> float:
        rows = self.rows.to(self._device)
        everyone = self._everyones(_rows(source, rows))
        expected = self._summed((everyone.flatten(0, 1) @ first @ second).view_as(everyone))
        return relative_error(_rows(result, rows).cpu(), expected)

    def errors_of_gradients(
        self, result: torch.Tensor, found_1: torch.Tensor, found_2: torch.Tensor
    ) -> list[float]:
        """Return the relative errors of the gradients of the input, in sampled rows, and of each weight.

        With Y = X W1 and dY = dP W2ᵀ, dW1 = Xᵀ dY and dW2 = Yᵀ dP. Entries at sampled rows and columns are
        compared. For sampled columns of the inner width each rank needs all parts of the weights, and sums
        over its own rows.
        """
        assert self._gradient is not None
        back = self._weight_2.double().t(), self._weight_1.double().t()
        inner = sample_rows(found_1.shape[1], 1, self._seed).to(self._device)
        hidden = sample_rows(found_1.shape[0], 1, self._seed + 1).to(self._device)
        source, gradient = self._input.double(), self._gradient.double()
        # [N, samples, h]: the columns of W1 and rows of W2 for the samples of each rank.
        columns = self._everyones(self._weight_1_forward[:, inner].double().t())
        rows = self._everyones(self._weight_2[inner].double())
        # [N, samples of h, samples of f] and its transpose, to be summed over the rows of all ranks.
        first = source[:, hidden].t() @ (gradient @ rows.transpose(1, 2))
        second = (source @ columns.transpose(1, 2)).transpose(1, 2) @ gradient[:, hidden]
        return [
            self._error_of_rows(result, self._gradient, *back),
            relative_error(found_1[hidden][:, inner].double().cpu(), self._summed(first)),
            relative_error(found_2[inner][:, hidden].double().cpu(), self._summed(second)),
        ]

    def _everyones(self, tensor: torch.Tensor) -> torch.Tensor:
        sent = tensor.contiguous().cpu()
        everyone = torch.empty(self._comm.size, *sent.shape, dtype=torch.float64)
        self._comm.Allgather(sent, everyone)
        return everyone.to(self._device)

    def _summed(self, parts: torch.Tensor) -> torch.Tensor:
        total = parts.contiguous().cpu()
        self._comm.Allreduce(MPI.IN_PLACE, total)
        return total[self._comm.rank]


def _rows(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the given rows in float64; float8 can be indexed only as bytes."""
    if tensor.dtype == torch.float8_e4m3fn:
        return tensor.view(torch.uint8)[rows].view(tensor.dtype).double()
    return tensor[rows].double()


def sample_rows(count: int, ranks: int, seed: int) -> torch.Tensor:
    """Return the sorted indices of the rows to compare, at least one of ``count`` rows per rank."""
    generator = torch.Generator().manual_seed(seed)
    wanted = max(1, _SAMPLED_ROWS // ranks)
    return torch.randperm(count, generator=generator)[:wanted].sort().values


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Return ``norm(found - expected) / norm(expected)``; NaN if the reference is all zeros."""
    return float(torch.linalg.norm(result - expected) / torch.linalg.norm(expected))


def worst(checks: Sequence[Correctness]) -> Correctness:
    """Return the check with the largest error, NaN first: it passes only if all do."""
    return max(checks, key=lambda check: (math.isnan(check.relative_error), check.relative_error))


def error_message(checks: list[Correctness]) -> str | None:
    """Return the error message for the checks of all ranks, in the order of the ranks; None if all pass."""
    failed = [rank for rank, result in enumerate(checks) if not result.passed]
    if not failed:
        return None
    first = checks[failed[0]]
    reason = f"relative error {first.relative_error:.2e} is not below {first.bound:.0e}"
    if math.isnan(first.relative_error):
        reason = "the output contains NaN or infinity"
    failures_note = f" ({len(failed)} of {len(checks)} ranks fail)" if len(checks) > 1 else ""
    return f"rank {failed[0]}: the results are wrong: {reason}{failures_note}."
