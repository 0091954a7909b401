"""The training loop of one rank: steps, their phases, and what DDP does with its buckets."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
from torch.nn.parallel import DistributedDataParallel

from hpcprof.common.errors import UsageError
from hpcprof.workloads.capture import annotate
from hpcprof.workloads.ddp.options import Parameters
from hpcprof.workloads.ddp.program import Program, configured_ddp, ddp_replaced_by
from hpcprof.workloads.timing import Timer

PHASES = ("forward", "backward", "optimizer")

_HOOKS = {
    "allreduce": default_hooks.allreduce_hook,
    "bf16": default_hooks.bf16_compress_hook,
    "noop": debugging_hooks.noop_hook,
}

Around = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass
class Trainer:
    """A model with its optimizer; `step` trains on one batch.

    ``losses`` holds the last element of `step`'s calls, as tensors that nobody has waited for.
    """

    program: Program
    model: Any
    ddp: Any
    optimizer: Any
    no_sync: bool
    losses: list[Any] = field(default_factory=list)

    def step(self, inputs: Any, where: str, timer: Timer, around_backward: Around) -> None:
        """Train on one batch.

        Parameters
        ----------
        inputs : object
            What the loader gave, without the labels.
        where : str
            Which step it is, for the sentence about a failure.
        timer : Timer
            Receives the phases.
        around_backward : callable
            Makes the context of the backward pass.
        """
        errors_in = self.program.errors_in
        with self.ddp.no_sync() if self.no_sync else contextlib.nullcontext():
            with timer.phase("forward"), errors_in(f"{where}: forward_pass raised"):
                output = self.program.forward_pass(self.model, inputs)
            with around_backward(), timer.phase("backward"), errors_in(f"{where}: backward_pass raised"):
                returned = self.program.backward_pass(output)
        with timer.phase("optimizer"), errors_in(f"{where}: the optimizer raised"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        loss = returned if returned is not None else getattr(output, "loss", None)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self.losses.append(loss.detach())


def make_trainer(parameters: Parameters, program: Program, rank: Any, device: torch.device) -> Trainer:
    """Make the model, put DDP around it where it has none, and give DDP the job's hook.

    Raises
    ------
    UsageError
        get_model returns no model, or one that DDP does not take.
    """
    ddp = configured_ddp(parameters, device)
    with ddp_replaced_by(ddp), program.errors_in("get_model raised"):
        model = program.get_model(rank, parameters.bucket_cap_mb)
        if not isinstance(model, torch.nn.Module):
            raise UsageError(f"get_model returned a {type(model).__name__}, no torch.nn.Module.")
        if not isinstance(model, DistributedDataParallel):
            ids = None if device.type == "cpu" else [device.index]
            model = ddp(model, device_ids=ids, bucket_cap_mb=parameters.bucket_cap_mb)
    if parameters.comm_hook != "builtin":
        model.register_comm_hook(None, _annotated(_HOOKS[parameters.comm_hook]))
    compiled = torch.compile(model) if parameters.compile else model
    return Trainer(program, compiled, model, program.get_optimizer(model.parameters()), parameters.no_sync)


def _annotated(hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the hook with a range around the launch of each bucket's communication."""

    def annotated(state: Any, bucket: Any) -> Any:
        with annotate(f"allreduce {bucket.index()}"):
            return hook(state, bucket)

    # DDP checks the hook's signature; under postponed annotations it would see texts.
    annotated.__annotations__ = {}
    return annotated


def batches(loader: Any, steps: int) -> Iterator[Any]:
    """Yield the inputs of ``steps`` batches: of a pair (inputs, labels) the inputs, else the whole batch."""
    for _, batch in zip(range(steps), loader, strict=False):
        yield batch[0] if isinstance(batch, tuple | list) and batch else batch


def bucket_sizes(ddp: Any) -> tuple[list[int], bool]:
    """Return the sizes of DDP's buckets in bytes, and whether it has rebuilt them since its first step."""
    # The figures that DDP collects for its own log; it has no other way to tell them.
    told = ddp._get_ddp_logging_data()
    rebuilt = bool(told.get("has_rebuilt_buckets"))
    sizes = (rebuilt and told.get("rebuilt_bucket_sizes")) or told.get("bucket_sizes", "")
    return [int(size) for size in sizes.split(",") if size.strip()], rebuilt


def work_per_step(inputs: Any, batch_size: int) -> tuple[int, str]:
    """Return how much a step works through, and in which unit.

    Whole numbers of two dimensions are tokens (also under a key ``tokens`` or ``input_ids``); of anything
    else samples are counted.
    """
    if isinstance(inputs, dict):
        inputs = next((inputs[key] for key in ("tokens", "input_ids") if key in inputs), None)
    if isinstance(inputs, torch.Tensor) and inputs.dim() == 2 and not inputs.is_floating_point():
        return inputs.numel(), "tokens"
    return batch_size, "samples"


def peak_memory(device: torch.device) -> dict[str, int]:
    """Return the peaks of memory in bytes: of CUDA's allocator, or of the process."""
    if device.type == "cuda":
        return {
            "allocated": torch.cuda.max_memory_allocated(device),
            "reserved": torch.cuda.max_memory_reserved(device),
        }
    # Linux counts in KiB.
    return {"resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
