"""The symmetric mode: PyTorch operators over symmetric memory that fuse a collective with a matmul."""

import warnings
from typing import Any

import torch
import torch.distributed as dist

from hpcprof.workloads.distributed import World, all_gather
from hpcprof.workloads.sequence_parallel.buffers import Buffers, Gradients
from hpcprof.workloads.sequence_parallel.modes.base import Mode, Unavailable
from hpcprof.workloads.sequence_parallel.parameters import PointParameters
from hpcprof.workloads.timing import PhaseTimer


def symmetric_memory(world: World) -> Any:
    """Return PyTorch's module for symmetric memory, enabled for all ranks, or raise Unavailable."""
    if world.device.type != "cuda":
        raise Unavailable("symmetric memory needs CUDA")
    if world.nodes > 1:
        raise Unavailable("GPUs on different nodes share no memory")
    try:
        import torch.distributed._symmetric_memory as symmetric
    except ImportError:
        raise Unavailable(f"PyTorch {torch.__version__} has no symmetric memory") from None
    with warnings.catch_warnings():
        # Some versions need it, and later ones deprecate it.
        warnings.simplefilter("ignore")
        enable = getattr(symmetric, "enable_symm_mem_for_group", None)
        if enable is not None:
            enable(_group_name())
    return symmetric


def _group_name() -> str:
    group = dist.group.WORLD
    assert group is not None
    return group.group_name


class Symmetric(Mode):
    """Runs ``fused_all_gather_matmul``, then ``fused_matmul_reduce_scatter``."""

    def __init__(self, parameters: PointParameters, world: World, buffers: Buffers) -> None:
        super().__init__(parameters, world, buffers)
        if buffers.scales is not None:
            raise Unavailable("it does not support float8 here")
        symmetric_memory(world)
        operators = torch.ops.symm_mem
        names = ("fused_all_gather_matmul", "fused_matmul_reduce_scatter")
        missing = [name for name in names if not hasattr(operators, name)]
        if missing:
            raise Unavailable(f"PyTorch {torch.__version__} has no {missing[0]}")
        self._all_gather_matmul, self._matmul_reduce_scatter = (getattr(operators, name) for name in names)
        self._group = _group_name()

        self._inner = buffers.inner
        self._gathered = buffers.gathered

    def forward(self, index: int, timer: PhaseTimer) -> torch.Tensor:
        """Run one step forward; the operators allocate their results."""
        buffers = self._buffers
        self._index = index
        source = buffers.input(index)
        gathered, (inner,) = self._all_gather_matmul(
            source, [buffers.weight_1], 0, self._group, return_A=True
        )
        output: torch.Tensor = self._matmul_reduce_scatter(inner, buffers.weight_2, "sum", 0, self._group)
        self._gathered, self._inner = gathered, inner
        return output

    def backward(self, index: int, timer: PhaseTimer) -> Gradients:
        """Run one step backward; the gradients of the weights follow, since no operator fuses them."""
        buffers, backward = self._buffers, self._backward
        if self._regather:
            self._gathered = buffers.gathered
            again = all_gather(self._gathered, buffers.input(self._index), async_op=True)
        gathered, (inner,) = self._all_gather_matmul(
            backward.source(index), [buffers.weight_2.t()], 0, self._group, return_A=True
        )
        gradient = self._matmul_reduce_scatter(inner, buffers.weight_1.t(), "sum", 0, self._group)
        torch.mm(self._inner.t(), gathered, out=backward.gradients.weight_2)
        if self._regather:
            again.wait()
        torch.mm(self._gathered.t(), inner, out=backward.gradients.weight_1)
        return Gradients(gradient, backward.gradients.weight_1, backward.gradients.weight_2)
