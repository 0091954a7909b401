"""The training steps of one rank, their phases, and the communication of DDP's buckets."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
from torch.nn.parallel import DistributedDataParallel

from hpcprof.common.errors import HpcprofError, UsageError
from hpcprof.workloads.ddp.fault_injection import Arithmetic, Context, FaultInjection, LateSums, layers_of
from hpcprof.workloads.ddp.faults import parse_faults
from hpcprof.workloads.ddp.options import TrainingParameters
from hpcprof.workloads.ddp.program import Program, configured_ddp, ddp_replaced_by
from hpcprof.workloads.timing import Timer

PHASES = ("data", "forward", "backward", "optimizer")

_COMM_HOOKS = {
    "allreduce": default_hooks.allreduce_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "noop": debugging_hooks.noop_hook,
}

_END_OF_DATA = object()

ContextFactory = Callable[[], contextlib.AbstractContextManager[None]]


class Trainer:
    """A model with its optimizer, precision and faults; ``losses`` are tensors, not synchronized yet."""

    def __init__(
        self, parameters: TrainingParameters, program: Program, rank: Any, device: torch.device
    ) -> None:
        """Create the model, wrap it in DDP unless it is, register its hook, and inject the faults."""
        self.program, self._no_sync = program, parameters.no_sync
        self.losses: list[Any] = []
        ddp = configured_ddp(parameters, device)
        with ddp_replaced_by(ddp), program.errors_in("get_model raised"):
            model = program.get_model(rank, parameters.bucket_cap_mb)
            if not isinstance(model, torch.nn.Module):
                raise UsageError(f"get_model returned a {type(model).__name__}, not a torch.nn.Module.")
            if not isinstance(model, DistributedDataParallel):
                ids = None if device.type == "cpu" else [device.index]
                model = ddp(model, device_ids=ids, bucket_cap_mb=parameters.bucket_cap_mb)
        sums = None
        if parameters.comm_hook != "builtin":
            sums = LateSums(_COMM_HOOKS[parameters.comm_hook])
            model.register_comm_hook(sums, _sum_bucket)
        self.optimizer = optimizer = program.get_optimizer(model.parameters())
        self.arithmetic = Arithmetic(parameters.precision, device)
        context = Context(dist.get_rank(), device, layers_of(model.module), optimizer, self.arithmetic, sums)
        self.fault_injection = FaultInjection(
            parse_faults(parameters.fault), context, parameters.fault_blocks
        )
        self.ddp: Any = model
        self.model: Any = torch.compile(model) if parameters.compile else model

    def step(self, source: Iterator[Any], name: str, timer: Timer, around_backward: ContextFactory) -> None:
        """Train on the next batch of ``source``; ``name`` names the step in errors."""
        errors_in = self.program.errors_in
        with timer.phase("data"):
            with errors_in(f"{name}: the loader raised"):
                inputs = next(source, _END_OF_DATA)
            if inputs is _END_OF_DATA:
                raise HpcprofError(f"{name}: the loader yields fewer batches than its length promises.")
            self.fault_injection.in_data()
        with self.ddp.no_sync() if self._no_sync else contextlib.nullcontext():
            with timer.phase("forward"), errors_in(f"{name}: forward_pass raised"):
                with self.arithmetic.around_forward():
                    output = self.program.forward_pass(self.model, inputs)
                self.fault_injection.in_forward()
            with around_backward(), timer.phase("backward"), errors_in(f"{name}: backward_pass raised"):
                returned = self.program.backward_pass(output)
        with timer.phase("optimizer"), errors_in(f"{name}: the optimizer raised"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        loss = returned if returned is not None else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self.losses.append(loss.detach())


# DDP checks these annotations.
def _sum_bucket(sums: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    assert isinstance(sums, LateSums)
    future: torch.futures.Future[torch.Tensor] = sums.start(None, bucket)
    return future


def batches(loader: Any, steps: int) -> Iterator[Any]:
    """Yield the inputs of ``steps`` batches: the first item of a tuple or list, or else the whole batch."""
    for _, batch in zip(range(steps), loader, strict=False):
        yield batch[0] if isinstance(batch, tuple | list) and batch else batch


def bucket_sizes(ddp: Any) -> tuple[list[int], bool]:
    """Return the sizes of DDP's buckets in bytes, and whether it has rebuilt them since its first step."""
    # DDP exposes these only through the data for its log.
    logged = ddp._get_ddp_logging_data()
    rebuilt = bool(logged.get("has_rebuilt_buckets"))
    sizes = (rebuilt and logged.get("rebuilt_bucket_sizes")) or logged.get("bucket_sizes", "")
    return [int(size) for size in sizes.split(",") if size.strip()], rebuilt


def work_per_step(inputs: Any, batch_size: int) -> tuple[int, str]:
    """Return the work of a step and its unit: the tokens of a 2-D tensor of integers, else samples."""
    if isinstance(inputs, dict):
        inputs = next((inputs[key] for key in ("tokens", "input_ids") if key in inputs), None)
    if isinstance(inputs, torch.Tensor) and inputs.dim() == 2 and not inputs.is_floating_point():
        return inputs.numel(), "tokens"
    return batch_size, "samples"


def peak_memory(device: torch.device) -> dict[str, int]:
    """Return peaks of memory in bytes: of the CUDA allocator, or of the process on a CPU."""
    if device.type == "cuda":
        return {
            "allocated": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.max_memory_reserved(device),
        }
    # ru_maxrss begins with the peak of the process that started this one, such as torchrun.
    status = Path("/proc/self/status").read_text().splitlines()
    return {"resident": int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024}
